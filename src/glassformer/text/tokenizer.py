"""The tokenizer: text ⇄ ids, over the tokenizers library, with the familiar face of `AutoTokenizer`.

Three numbers are all called "vocabulary size", and all are right: `vocab_size` counts what was trained (151,643 for
Qwen3), `len(tokenizer)` adds the tokens put in later such as `<|im_start|>` (151,669), and the model's score vector
is padded to a size that hardware likes (151,936). Ids from the third range stand for no text.
"""

from __future__ import annotations

import json
from collections import UserDict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias, overload

import tokenizers

from glassformer.errors import CheckpointError, InputError, InputTypeError, TemplateError, refuse
from glassformer.text import gguf_bpe
from glassformer.text.pieces import Pieces
from glassformer.text.template import ChatTemplate

Tensors: TypeAlias = Literal["pt", "np"] | None
Ids: TypeAlias = Any  # an int, a (nested) list of ints, an array or a tensor
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
UNLIMITED = 10**30  # what the field writes for "no limit"


class BatchEncoding(UserDict[str, Any]):
    """What a tokenizer gives: a mapping that `model(**tokens)` accepts, its keys also attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["data"][name]
        except KeyError:
            raise AttributeError(
                f"the encoding has no {name!r}; it has {', '.join(self.__dict__.get('data', {}))}"
            ) from None

    def to(self, device: Any) -> BatchEncoding:
        """The same with its tensors on another device."""
        return BatchEncoding({k: v.to(device) if hasattr(v, "to") else v for k, v in self.data.items()})


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
        self._special = {name: token for name, token in (special or {}).items() if token is not None}
        self._additional = tuple(additional)
        self.chat_template = template
        self.padding_side = padding_side
        self.model_max_length = model_max_length
        self._clean_up = clean_up
        self._source = dict(source or {})  # the tokenizer_config.json it came with, for saving

    # Reading and writing ----------------------------------------------------------------------------------------

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """From tokenizer.json and the small files beside it."""
        path = folder / "tokenizer.json"
        if not path.exists():
            raise CheckpointError(f"{folder}: holds no tokenizer.json. Fetch the tokenizer's files into it.")
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except BaseException as error:  # the library panics on some bad files, and a panic is no Exception
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            raise CheckpointError(f"{path}: not a tokenizer file ({error}). Fetch it again.") from error
        config = _json(folder / "tokenizer_config.json")
        named = {**_json(folder / "special_tokens_map.json"), **config}
        added = [
            _added(entry, path)
            for _, entry in sorted(config.get("added_tokens_decoder", {}).items(), key=lambda kv: int(kv[0]))
        ]
        backend.add_tokens([token for token in added if backend.token_to_id(token.content) is None])
        additional = [_content(token) for token in named.get("additional_special_tokens") or ()]
        return cls(
            backend,
            special={name: token for name in NAMED if (token := _content(named.get(name))) is not None},
            additional=[token for token in additional if token is not None],
            template=_template(folder, config),
            padding_side=config.get("padding_side", "right"),
            model_max_length=int(config.get("model_max_length") or UNLIMITED),
            clean_up=bool(config.get("clean_up_tokenization_spaces", False)),
            source=config,
        )

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """From the `tokenizer.…` entries of a GGUF file."""
        backend, special = gguf_bpe.build(metadata)
        template = metadata.get("tokenizer.chat_template")
        context = metadata.get(f"{metadata.get('general.architecture')}.context_length", UNLIMITED)
        return cls(backend, special=special, template=template, model_max_length=int(context))

    def save_pretrained(self, folder: str | Path) -> None:
        """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.backend.save(str(folder / "tokenizer.json"))
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **{k: v for k, v in self._source.items() if k != "chat_template"},
            **self._special,
            "padding_side": self.padding_side,
            "model_max_length": self.model_max_length,
            "clean_up_tokenization_spaces": self._clean_up,
        }
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
        number = self.backend.token_to_id(token)
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
        if name in NAMED:
            self._id(value)
            self._special[name] = value
        else:
            object.__setattr__(self, name, value)

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
        rows = [self._encode(one, add_special_tokens) for one in texts]
        if truncation:
            limit = self.model_max_length if max_length is None else max_length
            rows = [row[:limit] for row in rows]
        masks = [[1] * len(row) for row in rows]
        if padding:
            rows, masks = self._pad(rows, masks, padding, max_length, padding_side or self.padding_side)
        found: dict[str, Any] = {"input_ids": rows}
        if return_attention_mask:
            found["attention_mask"] = masks
        if return_tensors is not None:
            return BatchEncoding({name: _array(value, return_tensors) for name, value in found.items()})
        return BatchEncoding({name: value[0] if single else value for name, value in found.items()})

    def encode(self, text: str, *, add_special_tokens: bool = True, return_tensors: Tensors = None) -> Any:
        """The ids of one text: a list, or a (1, length) tensor."""
        return self(text, add_special_tokens=add_special_tokens, return_tensors=return_tensors)["input_ids"]

    def tokenize(self, text: str) -> list[str]:
        """The pieces of one text, as the vocabulary spells them."""
        return self.convert_ids_to_tokens(self._encode(text, add_special_tokens=False))

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        if not isinstance(text, str):
            raise InputTypeError(f"the tokenizer takes text, not {type(text).__name__}.")
        try:
            return list(self.backend.encode(text, add_special_tokens=add_special_tokens).ids)
        except (UnicodeEncodeError, TypeError) as error:
            raise InputError("the text holds a lone surrogate, which is no character. Repair its encoding first.") from error

    def _pad(
        self, rows: list[list[int]], masks: list[list[int]], padding: Any, max_length: int | None, side: str
    ) -> tuple[list[list[int]], list[list[int]]]:
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
        ids = ids.tolist() if hasattr(ids, "tolist") else ids
        if isinstance(ids, int):
            ids = [ids]
        ids = list(ids)
        if ids and not isinstance(ids[0], int):
            return [self.decode(row, skip_special_tokens) for row in ids]
        try:
            text: str = self.backend.decode(ids, skip_special_tokens=skip_special_tokens)
        except (OverflowError, TypeError) as error:
            raise InputError(f"{ids!r} are not token ids: {error}.") from error
        return _cleaned(text) if self._clean_up else text

    def batch_decode(self, sequences: Ids, skip_special_tokens: bool = False) -> list[str]:
        """Texts of many sequences."""
        return [self.decode(row, skip_special_tokens) for row in sequences]

    def pieces(self, skip_special_tokens: bool = True) -> Pieces:
        """An incremental decoder for one sequence: `feed` it ids as they come."""
        return Pieces(lambda ids: self.decode(list(ids), skip_special_tokens))

    @overload
    def convert_ids_to_tokens(self, ids: int, skip_special_tokens: bool = False) -> str: ...
    @overload
    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> list[str]: ...
    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> str | list[str]:
        """Ids as the vocabulary spells them: `Ġ` is a space, `Ċ` a line break."""
        ids = ids.tolist() if hasattr(ids, "tolist") else ids
        if isinstance(ids, int):
            return self._token(ids)
        hidden = set(self.all_special_ids) if skip_special_tokens else set()
        return [self._token(number) for number in ids if number not in hidden]

    def _token(self, number: int) -> str:
        token = self.backend.id_to_token(number) if number >= 0 else None
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
        token = self.backend.id_to_token(number)
        if token is None:
            return b""
        if self._bytes_of is None or number in self._added_ids:
            return token.encode()
        return bytes(self._bytes_of[character] for character in token)

    @cached_property
    def _added_ids(self) -> frozenset[int]:
        return frozenset(self.backend.get_added_tokens_decoder())

    # Conversations ----------------------------------------------------------------------------------------------

    def template(self, name: str | None = None) -> ChatTemplate:
        """The model's own chat template, or the one of that name where it has several."""
        held = self.chat_template
        source = held.get(name or "default") if isinstance(held, Mapping) else held
        if source is None:
            raise TemplateError("this tokenizer has no chat template. Pass chat_template=…, or use plain text.")
        return ChatTemplate(source)

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
            chat_template: another template than the model's own.
            add_generation_prompt: end with the words that open the assistant's turn.
            tokenize: False gives the text.
            return_dict: False gives the ids alone.
            variables: whatever the template declares, such as `enable_thinking=False`.
        """
        template = ChatTemplate(chat_template) if chat_template is not None else self.template()
        many = bool(conversation) and isinstance(conversation[0], Sequence) and not isinstance(conversation[0], str)
        conversations: Sequence[Any] = conversation if many else [conversation]
        texts = [
            template.render(
                one,
                add_generation_prompt=add_generation_prompt,
                special_tokens=self.special_tokens_map,
                variables=variables,
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


def _cleaned(text: str) -> str:
    """English spacing put right after word-wise decoding, as the field does it."""
    for apart, joined in (
        (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"),
        (" n't", "n't"), (" 'm", "'m"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
    ):  # fmt: skip
        text = text.replace(apart, joined)
    return text


def _array(rows: Sequence[Sequence[int]], kind: Tensors) -> Any:
    lengths = {len(row) for row in rows}
    if len(lengths) > 1:
        raise InputError(f"texts of {min(lengths)} to {max(lengths)} tokens do not form one tensor. Pass padding=True.")
    if kind == "pt":
        import torch

        return torch.tensor(rows, dtype=torch.long).reshape(len(rows), -1)
    if kind == "np":
        import numpy as np

        return np.array(rows, dtype=np.int64).reshape(len(rows), -1)
    raise InputError(f"return_tensors={kind!r} is not known. Use 'pt', 'np' or None.")


def _json(path: Path) -> dict[str, Any]:
    """A small file that may be missing."""
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON ({error}). Fetch it again.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds a {type(value).__name__} where an object belongs. Fetch it again.")
    return value


def _content(token: Any) -> str | None:
    """A token is written as a string, or as an object with its content and stripping habits."""
    return token.get("content") if isinstance(token, dict) else token


def _added(entry: Any, path: Path) -> tokenizers.AddedToken:
    if not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
        raise CheckpointError(f"{path}: an entry of 'added_tokens_decoder' has no content: {entry!r}. Fetch it again.")
    habits = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return tokenizers.AddedToken(entry["content"], **{h: bool(entry[h]) for h in habits if h in entry})


def _template(folder: Path, config: Mapping[str, Any]) -> str | dict[str, str] | None:
    """The chat template: a file of its own in newer checkpoints, an entry of the config in older ones."""
    if (path := folder / "chat_template.jinja").exists():
        return path.read_text(encoding="utf-8")
    found = _json(folder / "chat_template.json").get("chat_template", config.get("chat_template"))
    if isinstance(found, list):
        return {entry["name"]: entry["template"] for entry in found}
    return found if isinstance(found, str) else None
