"""The tokenizer: text ⇄ ids, over the tokenizers library, with the familiar face of `AutoTokenizer`.

Three numbers are all called "vocabulary size", and all are right: `vocab_size` counts what was trained (151,643 for
Qwen3), `len(tokenizer)` adds the tokens put in later such as `<|im_start|>` (151,669), and the model's score vector
is padded to a size that hardware likes (151,936). Ids from the third range stand for no text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, overload

import tokenizers
from tokenizers.models import BPE

from glassformer.errors import InputError, InputTypeError, refuse
from glassformer.text import files, gguf, spelling, tiktoken
from glassformer.text.chats import Chats
from glassformer.text.encoding import BatchEncoding, Tensors, array
from glassformer.text.files import NAMED, UNLIMITED
from glassformer.text.pieces import Pieces
from glassformer.text.rows import TRUNCATIONS, Padding, Row, Truncation, cut, pad, row

Ids: TypeAlias = Any  # an int, a (nested) list of ints, an array or a tensor
Pair: TypeAlias = tuple[str, str]


class Tokenizer(Chats):
    """Made by `AutoTokenizer.from_pretrained`; not by hand."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special: Mapping[str, str] | None = None,
        additional: Sequence[str] = (),
        template: str | Mapping[str, str] | None = None,
        padding_side: str = "right",
        truncation_side: str = "right",
        model_max_length: int = UNLIMITED,
        token_types: bool = False,
        clean_up: bool = False,
        source: Mapping[str, Any] | None = None,
    ) -> None:
        self.backend = backend
        backend.no_padding()
        backend.no_truncation()
        self._special = _by_name(special or {})
        self._additional = tuple(additional)
        self.chat_template = template
        self.padding_side = padding_side
        self.truncation_side = truncation_side
        self.model_max_length = model_max_length
        self.model_input_names = ["input_ids", *(["token_type_ids"] if token_types else []), "attention_mask"]
        self._clean_up = clean_up and not isinstance(backend.model, BPE)  # which spells its spaces: nothing to repair
        self._source = dict(source or {})  # the tokenizer_config.json it came with, for saving

    # Reading and writing ----------------------------------------------------------------------------------------

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """From tokenizer.json and the small files beside it, or from an older checkpoint's vocabulary files."""
        return cls(**files.read(folder))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """From the `tokenizer.…` entries of a GGUF file."""
        backend, special, token_types = gguf.build(metadata)
        template = metadata.get("tokenizer.chat_template")
        context = metadata.get(f"{metadata.get('general.architecture')}.context_length")
        return cls(
            backend,
            special=special,
            template=template if isinstance(template, str) else None,
            model_max_length=context if isinstance(context, int) else UNLIMITED,
            token_types=token_types,
        )

    @classmethod
    def from_tiktoken(
        cls,
        path: str | Path,
        pattern: str = tiktoken.CL100K,
        special: Mapping[str, int] = tiktoken.CL100K_SPECIAL,
    ) -> Tokenizer:
        """From tiktoken's ranks; the pattern and the special tokens are `cl100k_base`'s unless others are given."""
        backend = tiktoken.build(tiktoken.read_ranks(Path(path)), pattern, special)
        last = "<|endoftext|>"
        named = {"eos_token": last} if last in special else {}
        return cls(backend, special=named, additional=[token for token in special if token not in named.values()])

    def save_pretrained(self, folder: str | Path) -> None:
        """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.backend.save(str(folder / "tokenizer.json"))
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **{k: v for k, v in self._source.items() if k not in ("chat_template", "extra_special_tokens", *NAMED)},
            **self.special_tokens_map,
            "model_input_names": self.model_input_names,
            "padding_side": self.padding_side,
            "truncation_side": self.truncation_side,
            "model_max_length": self.model_max_length,
        }
        if isinstance(self.chat_template, Mapping):
            config["chat_template"] = [{"name": n, "template": t} for n, t in self.chat_template.items()]
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False), "utf-8")
        if isinstance(self.chat_template, str):
            (folder / "chat_template.jinja").write_text(self.chat_template, "utf-8")

    # The vocabulary ---------------------------------------------------------------------------------------------

    @property
    def vocab_size(self) -> int:
        """The trained vocabulary, without added tokens; `len(tokenizer)` counts those too."""
        return self.backend.get_vocab_size(with_added_tokens=False)

    def __len__(self) -> int:
        return self.backend.get_vocab_size(with_added_tokens=True)

    def get_vocab(self) -> dict[str, int]:
        return self.backend.get_vocab(with_added_tokens=True)

    @property
    def vocab(self) -> dict[str, int]:
        return self.get_vocab()

    def get_added_vocab(self) -> dict[str, int]:
        """The tokens added to the trained vocabulary, special ones among them."""
        return {t.content: i for i, t in sorted(self.backend.get_added_tokens_decoder().items())}

    @property
    def special_tokens_map(self) -> dict[str, Any]:
        extra = {"additional_special_tokens": list(self._additional)} if self._additional else {}
        return {**self._special, **extra}

    @property
    def additional_special_tokens(self) -> list[str]:
        return list(self._additional)

    @property
    def all_special_tokens(self) -> list[str]:
        return list(dict.fromkeys([*self._special.values(), *self._additional]))

    @property
    def all_special_ids(self) -> list[int]:
        return [self._id(token) for token in self.all_special_tokens]

    def _id(self, token: str) -> int:
        number = self.backend.token_to_id(token) if isinstance(token, str) else None
        if number is None:
            raise InputError(f"{token!r} is not in the vocabulary.")
        return number

    def __getattr__(self, name: str) -> Any:
        """`eos_token`, `eos_token_id` and their kin; None when the tokenizer has no such token."""
        stem = name.removesuffix("_id")
        if stem in NAMED:
            token = self._special.get(stem)
            return token if name == stem or token is None else self._id(token)
        raise AttributeError(f"the tokenizer has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        """`pad_token`, `pad_token_id` and their kin can be set to any token of the vocabulary, or to None."""
        stem = name.removesuffix("_id")
        if stem not in NAMED:
            object.__setattr__(self, name, value)
            return
        token = value if name == stem or value is None else self._token(value)
        if token is not None:
            self._id(token)
        self._special = _by_name({**self._special, stem: token})

    def __repr__(self) -> str:
        return f"Tokenizer(vocab_size={self.vocab_size}, length={len(self)}, special_tokens={self.special_tokens_map})"

    # Text to ids ------------------------------------------------------------------------------------------------

    def __call__(
        self,
        text: str | Sequence[str] | Sequence[Pair],
        text_pair: str | Sequence[str] | None = None,
        *,
        add_special_tokens: bool = True,
        padding: Padding = False,
        truncation: Truncation = False,
        max_length: int | None = None,
        padding_side: str | None = None,
        return_tensors: Tensors = None,
        return_token_type_ids: bool | None = None,
        return_attention_mask: bool = True,
        return_special_tokens_mask: bool = False,
        return_offsets_mapping: bool = False,
        **unknown: Any,
    ) -> BatchEncoding:
        """Encode one text or many, each alone or with a second one.

        Args:
            text: a string, or a list of strings for a batch; pairs of strings are texts with their second ones.
            text_pair: the second text, such as the answer to a question; a list of them for a batch.
            add_special_tokens: put the tokens around each text that the model was trained with, if any.
            padding: True or "longest" pads a batch to its longest text, "max_length" to `max_length`.
            truncation: cut texts longer than `max_length` (by default the model's own limit): True or
                "longest_first" takes from the longer of two, "only_first" and "only_second" from that one.
            return_tensors: "pt" for torch tensors, "np" for numpy arrays, None for lists.
            return_token_type_ids: which of two texts each token belongs to; by default where the model wants it.
            return_special_tokens_mask: 1 for each token that was put around the texts.
            return_offsets_mapping: where each token begins and ends in its text.
        """
        refuse(unknown, self.__call__)
        single, pairs = _pairs(text, text_pair)
        if max_length is not None and (not isinstance(max_length, int) or max_length < 0):
            raise InputError(f"max_length={max_length!r} is no length. Give a number of tokens, 0 or more.")
        if truncation not in TRUNCATIONS:
            raise InputError(
                f"truncation={truncation!r} is not known. Use True, 'longest_first', 'only_first', 'only_second' or False."
            )
        types = "token_type_ids" in self.model_input_names if return_token_type_ids is None else return_token_type_ids
        wanted = {
            "input_ids": True,
            "token_type_ids": types,
            "attention_mask": return_attention_mask,
            "special_tokens_mask": return_special_tokens_mask,
            "offset_mapping": return_offsets_mapping,
        }
        names = [name for name, wish in wanted.items() if wish]
        limit = self.model_max_length if max_length is None else max_length
        rows = []
        for first, second in pairs:
            found = self._encode(first, second, add_special_tokens)
            whole = row(found, names)
            if truncation not in (False, "do_not_truncate"):
                whole = cut(whole, found.sequence_ids, limit, truncation, self.truncation_side)
            rows.append(whole)
        if padding not in (False, "do_not_pad"):
            rows = self._pad(rows, padding, max_length, padding_side or self.padding_side)
        columns = {name: [one[name] for one in rows] for name in names}
        if return_tensors is not None:
            return BatchEncoding({name: array(values, return_tensors) for name, values in columns.items()})
        return BatchEncoding({name: values[0] if single else values for name, values in columns.items()})

    def encode(
        self,
        text: str,
        text_pair: str | None = None,
        *,
        add_special_tokens: bool = True,
        padding: Padding = False,
        truncation: Truncation = False,
        max_length: int | None = None,
        return_tensors: Tensors = None,
    ) -> Any:
        """The ids of one text, or of a text and its second one: a list, or a (1, length) tensor."""
        found = self(
            text,
            text_pair,
            add_special_tokens=add_special_tokens,
            padding=padding,
            truncation=truncation,
            max_length=max_length,
            return_tensors=return_tensors,
        )
        return found["input_ids"]

    def tokenize(self, text: str) -> list[str]:
        """The pieces of one text, as the vocabulary spells them."""
        return self.convert_ids_to_tokens(self._encode(text, None, add_special_tokens=False).ids)

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """How many tokens are put around one text, or around and between two."""
        return self.backend.num_special_tokens_to_add(is_pair=pair)

    def _encode(self, text: str, second: str | None, add_special_tokens: bool) -> tokenizers.Encoding:
        for one in (text,) if second is None else (text, second):
            if not isinstance(one, str):
                raise InputTypeError(f"the tokenizer takes text, not {type(one).__name__}.")
        try:
            return self.backend.encode(text, second, add_special_tokens=add_special_tokens)
        except (UnicodeEncodeError, TypeError) as error:
            raise InputError("the text holds a lone surrogate, which is no character. Repair its encoding first.") from error

    def _pad(self, rows: list[Row], padding: Any, max_length: int | None, side: str) -> list[Row]:
        if padding not in (True, "longest", "max_length"):
            raise InputError(f"padding={padding!r} is not known. Use True, 'longest', 'max_length' or False.")
        if side not in ("left", "right"):
            raise InputError(f"padding_side={side!r} is not known. Use 'left' or 'right'.")
        if self.pad_token_id is None:
            raise InputError("this tokenizer has no padding token. Set one: tokenizer.pad_token = tokenizer.eos_token.")
        if padding == "max_length":
            width = self.model_max_length if max_length is None else max_length
            if width >= UNLIMITED:
                raise InputError("padding='max_length' needs max_length=….")
        else:
            width = max((len(one["input_ids"]) for one in rows), default=0)
        return pad(rows, width, self.pad_token_id, side)

    # Ids to text ------------------------------------------------------------------------------------------------

    def decode(self, ids: Ids, skip_special_tokens: bool = False) -> Any:
        """Text of one id or one sequence; a list of texts for a batch (two dimensions)."""
        numbers = _numbers(ids)
        if isinstance(numbers, int):
            numbers = [numbers]
        if any(isinstance(row, list) for row in numbers):
            return [self.decode(row, skip_special_tokens) for row in numbers]
        for number in numbers:
            if not 0 <= number < 2**32:
                raise InputError(f"{number} is no token id; the vocabulary has {len(self)}.")
        text: str = self.backend.decode(numbers, skip_special_tokens=skip_special_tokens)
        return _cleaned(text) if self._clean_up else text

    def batch_decode(self, sequences: Ids, skip_special_tokens: bool = False) -> list[str]:
        """Texts of many sequences; a list even for one."""
        found = self.decode(sequences, skip_special_tokens)
        return [found] if isinstance(found, str) else found

    def pieces(self, skip_special_tokens: bool = True) -> Pieces:
        """An incremental decoder for one sequence: `feed` it ids as they come."""
        return Pieces(lambda ids: self.decode(list(ids), skip_special_tokens))

    @overload
    def convert_ids_to_tokens(self, ids: int, skip_special_tokens: bool = False) -> str: ...
    @overload
    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> list[str]: ...
    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> str | list[str]:
        """Ids as the vocabulary spells them: `Ġ` is a space, `Ċ` a line break."""
        numbers = _numbers(ids)
        if isinstance(numbers, int):
            return self._token(numbers)
        hidden = self.all_special_ids if skip_special_tokens else []
        return [self._token(number) for number in numbers if number not in hidden]

    def _token(self, number: int) -> str:
        token = self.backend.id_to_token(number) if isinstance(number, int) and 0 <= number < 2**32 else None
        if token is None:
            raise InputError(f"id {number} stands for no token; the vocabulary has {len(self)}.")
        return token

    def convert_tokens_to_ids(self, tokens: str | Iterable[str]) -> Any:
        """The inverse; an unknown token gives the unknown token's id, or None when there is none."""
        if isinstance(tokens, str):
            found = self.backend.token_to_id(tokens)
            return self.unk_token_id if found is None else found
        return [self.convert_tokens_to_ids(token) for token in tokens]

    def token_bytes(self, number: int) -> bytes:
        """The bytes that one id adds to the text; half a character is possible, a padding id gives none."""
        token = self.backend.id_to_token(number) if 0 <= number < 2**32 else None
        return b"" if token is None else self._bytes_of(token, number in self._added_ids)

    @cached_property
    def _bytes_of(self) -> Callable[[str, bool], bytes]:
        return spelling.reader(self.backend)

    @cached_property
    def _added_ids(self) -> frozenset[int]:
        return frozenset(self.backend.get_added_tokens_decoder())


def _pairs(text: Any, second: Any) -> tuple[bool, list[tuple[Any, Any]]]:
    """Whether it was one text and no list, and the texts with their second ones, or with None."""
    if isinstance(text, str):
        if second is not None and not isinstance(second, str):
            raise InputTypeError(f"one text takes one second text, not {type(second).__name__}.")
        return True, [(text, second or None)]  # an empty second text is none, as the field has it
    if not isinstance(text, Sequence) or isinstance(text, (bytes, bytearray)):
        raise InputTypeError(f"the tokenizer takes a string or a list of strings, not {type(text).__name__}.")
    if second is None:
        return False, [tuple(one) if _is_pair(one) else (one, None) for one in text]
    if isinstance(second, (str, bytes)) or not isinstance(second, Sequence):
        raise InputTypeError(f"a list of texts takes a list of second texts, not {type(second).__name__}.")
    if len(second) != len(text):
        raise InputError(f"there are {len(text)} texts but {len(second)} second texts. Give each text one.")
    return False, list(zip(text, second, strict=True))


def _is_pair(one: Any) -> bool:
    return isinstance(one, (tuple, list)) and len(one) == 2


def _by_name(special: Mapping[str, str | None]) -> dict[str, str]:
    """The special tokens that there are, in the field's order."""
    return {name: token for name in NAMED if (token := special.get(name)) is not None}


def _cleaned(text: str) -> str:
    """English spacing put right after word-wise decoding, as the field does it."""
    for apart, joined in (
        (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"),
        (" n't", "n't"), (" 'm", "'m"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
    ):  # fmt: skip
        text = text.replace(apart, joined)
    return text


def _numbers(ids: Ids) -> Any:
    """Ids out of whatever holds them, as an int or (nested) lists of ints."""
    ids = ids.tolist() if hasattr(ids, "tolist") else ids
    if isinstance(ids, int):
        return ids
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise InputTypeError(f"token ids are whole numbers, or lists or tensors of them, not {type(ids).__name__}.")
    return [_numbers(one) for one in ids]
