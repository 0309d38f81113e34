"""The tokenizer: text ⇄ ids, over the tokenizers library, with the familiar face of `AutoTokenizer`.

Three numbers are all called "vocabulary size", and all are right: `vocab_size` counts what was trained (151,643 for
Qwen3), `len(tokenizer)` adds the tokens put in later such as `<|im_start|>` (151,669), and the model's score vector
is padded to a size that hardware likes (151,936). Ids from the third range stand for no text.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias, overload

import tokenizers
from tokenizers.models import BPE

from glassformer.errors import InputError, InputTypeError, TemplateError, refuse
from glassformer.text import files, gguf_bpe
from glassformer.text.encoding import BatchEncoding, Tensors, array
from glassformer.text.files import NAMED, UNLIMITED
from glassformer.text.pieces import Pieces
from glassformer.text.template import ChatTemplate

Ids: TypeAlias = Any  # an int, a (nested) list of ints, an array or a tensor


class Tokenizer:
    """Made by `AutoTokenizer.from_pretrained`; not by hand."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special: Mapping[str, str] | None = None,
        additional: Sequence[str] = (),
        template: str | Mapping[str, str] | None = None,
        padding_side: str = "right",
        model_max_length: int = UNLIMITED,
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
        self.model_max_length = model_max_length
        self._clean_up = clean_up and not isinstance(backend.model, BPE)  # which spells its spaces: nothing to repair
        self._source = dict(source or {})  # the tokenizer_config.json it came with, for saving

    # Reading and writing ----------------------------------------------------------------------------------------

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """From tokenizer.json and the small files beside it."""
        return cls(**files.read(folder))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """From the `tokenizer.…` entries of a GGUF file."""
        backend, special = gguf_bpe.build(metadata)
        template = metadata.get("tokenizer.chat_template")
        context = metadata.get(f"{metadata.get('general.architecture')}.context_length")
        return cls(
            backend,
            special=special,
            template=template if isinstance(template, str) else None,
            model_max_length=context if isinstance(context, int) else UNLIMITED,
        )

    def save_pretrained(self, folder: str | Path) -> None:
        """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.backend.save(str(folder / "tokenizer.json"))
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **{k: v for k, v in self._source.items() if k not in ("chat_template", "extra_special_tokens", *NAMED)},
            **self.special_tokens_map,
            "padding_side": self.padding_side,
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
        text: str | Sequence[str],
        *,
        add_special_tokens: bool = True,
        padding: bool | Literal["longest", "max_length"] = False,
        truncation: bool = False,
        max_length: int | None = None,
        padding_side: str | None = None,
        return_tensors: Tensors = None,
        return_attention_mask: bool = True,
        **unknown: Any,
    ) -> BatchEncoding:
        """Encode one text or many.

        Args:
            text: a string, or a list of strings for a batch.
            add_special_tokens: put the tokens around each text that the model was trained with, if any.
            padding: True or "longest" pads a batch to its longest text, "max_length" to `max_length`.
            truncation: cut texts longer than `max_length` (by default the model's own limit).
            return_tensors: "pt" for torch tensors, "np" for numpy arrays, None for lists.
        """
        refuse(unknown, self.__call__)
        single = isinstance(text, str)
        if not single and (not isinstance(text, Sequence) or isinstance(text, (bytes, bytearray))):
            raise InputTypeError(f"the tokenizer takes a string or a list of strings, not {type(text).__name__}.")
        texts: Sequence[str] = [text] if isinstance(text, str) else text
        if max_length is not None and (not isinstance(max_length, int) or max_length < 0):
            raise InputError(f"max_length={max_length!r} is no length. Give a number of tokens, 0 or more.")
        if truncation not in (True, False):
            raise InputError(f"truncation={truncation!r} is not known. Use True or False.")
        limit = self.model_max_length if max_length is None else max_length
        rows = [self._encode(one, add_special_tokens, limit if truncation else UNLIMITED) for one in texts]
        masks = [[1] * len(row) for row in rows]
        if padding:
            rows, masks = self._pad(rows, masks, padding, max_length, padding_side or self.padding_side)
        found: dict[str, Any] = {"input_ids": rows}
        if return_attention_mask:
            found["attention_mask"] = masks
        if return_tensors is not None:
            return BatchEncoding({name: array(value, return_tensors) for name, value in found.items()})
        return BatchEncoding({name: value[0] if single else value for name, value in found.items()})

    def encode(self, text: str, *, add_special_tokens: bool = True, return_tensors: Tensors = None) -> Any:
        """The ids of one text: a list, or a (1, length) tensor."""
        return self(text, add_special_tokens=add_special_tokens, return_tensors=return_tensors)["input_ids"]

    def tokenize(self, text: str) -> list[str]:
        """The pieces of one text, as the vocabulary spells them."""
        return self.convert_ids_to_tokens(self._encode(text, add_special_tokens=False))

    def _encode(self, text: str, add_special_tokens: bool, limit: int = UNLIMITED) -> list[int]:
        """At most `limit` ids; it is the text that is cut, and never the tokens around it while they have room."""
        if not isinstance(text, str):
            raise InputTypeError(f"the tokenizer takes text, not {type(text).__name__}.")
        try:
            found = self.backend.encode(text, add_special_tokens=False)
        except (UnicodeEncodeError, TypeError) as error:
            raise InputError("the text holds a lone surrogate, which is no character. Repair its encoding first.") from error
        if add_special_tokens:
            if (room := max(0, limit - self.backend.num_special_tokens_to_add(is_pair=False))) < len(found):
                found.truncate(room)
            found = self.backend.post_process(found)
        ids: list[int] = found.ids
        return ids[:limit]

    def _pad(
        self, rows: list[list[int]], masks: list[list[int]], padding: Any, max_length: int | None, side: str
    ) -> tuple[list[list[int]], list[list[int]]]:
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
            width = max(map(len, rows), default=0)
        pad = self.pad_token_id
        if side == "left":
            filled = [[pad] * (width - len(row)) + row for row in rows]
            return filled, [[0] * (width - len(mask)) + mask for mask in masks]
        filled = [row + [pad] * (width - len(row)) for row in rows]
        return filled, [mask + [0] * (width - len(mask)) for mask in masks]

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

    @cached_property
    def _bytes_of(self) -> dict[str, int] | None:
        """For byte-level vocabularies, the byte behind each character they are spelt with."""
        decoder = json.loads(self.backend.to_str()).get("decoder") or {}
        kinds = {decoder.get("type"), *(part.get("type") for part in decoder.get("decoders", []))}
        if "ByteLevel" not in kinds:
            return None
        whole = [*range(33, 127), *range(161, 173), *range(174, 256)]  # printable Latin-1, spelt as itself
        spelt = {chr(byte): byte for byte in whole}
        rest = [byte for byte in range(256) if byte not in whole]
        return spelt | {chr(256 + at): byte for at, byte in enumerate(rest)}

    def token_bytes(self, number: int) -> bytes:
        """The bytes that one id adds to the text; half a character is possible, a padding id gives none."""
        token = self.backend.id_to_token(number) if 0 <= number < 2**32 else None
        if token is None:
            return b""
        spelt = self._bytes_of
        if spelt is None or number in self._added_ids or not spelt.keys() >= set(token):
            return token.encode()
        return bytes(spelt[character] for character in token)

    @cached_property
    def _added_ids(self) -> frozenset[int]:
        return frozenset(self.backend.get_added_tokens_decoder())

    # Conversations ----------------------------------------------------------------------------------------------

    def template(self, name: str = "default") -> ChatTemplate:
        """The model's own chat template, or the one of that name where it has several."""
        held = self.chat_template
        if not held:
            raise TemplateError("this tokenizer has no chat template. Pass chat_template=…, or use plain text.")
        if isinstance(held, str):
            return ChatTemplate(held)
        if name not in held:
            raise TemplateError(
                f"there is no chat template {name!r}. Pass chat_template= one of: {', '.join(sorted(held))}."
            )
        return ChatTemplate(held[name])

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        padding: bool | Literal["longest", "max_length"] = False,
        truncation: bool = False,
        max_length: int | None = None,
        return_tensors: Tensors = None,
        return_dict: bool = True,
        **variables: Any,
    ) -> Any:
        """Format messages as the model was trained on them, and tokenize.

        Args:
            conversation: `[{"role": "user", "content": "…"}, …]`, or a list of such lists for a batch.
            chat_template: another template than the model's own, or the name of one where it has several.
            add_generation_prompt: end with the words that open the assistant's turn.
            tokenize: False gives the text.
            return_dict: False gives the ids alone.
            variables: whatever the template declares, such as `enable_thinking=False`.
        """
        named = self.chat_template if isinstance(self.chat_template, Mapping) else {}
        if chat_template is None:
            template = self.template("tool_use" if variables.get("tools") and "tool_use" in named else "default")
        else:
            template = ChatTemplate(named.get(chat_template, chat_template))
        first = conversation[0] if isinstance(conversation, Sequence) and conversation else None
        many = isinstance(first, Sequence) and not isinstance(first, str)
        conversations: Sequence[Any] = conversation if many else [conversation]
        texts = [
            template.render(
                one,
                add_generation_prompt=add_generation_prompt,
                special_tokens=self.special_tokens_map,
                variables=variables,
                also=inspect.signature(self.apply_chat_template).parameters,
            )
            for one in conversations
        ]
        if not tokenize:
            return texts if many else texts[0]
        found = self(
            texts if many else texts[0],
            add_special_tokens=False,
            padding=padding,
            truncation=truncation,
            max_length=max_length,
            return_tensors=return_tensors,
        )
        return found if return_dict else found["input_ids"]


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
