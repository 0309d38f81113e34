"""The tokenizer: text ⇄ ids, over the tokenizers library, called as those of transformers are.

Three numbers are all called "vocabulary size", and all are right: `vocab_size` counts what was trained (151,643 for
Qwen3), `len(tokenizer)` adds the tokens put in later such as `<|im_start|>` (151,669), and the model's score vector
is padded to a size that hardware likes (151,936). Ids from the third range stand for no text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, overload

import tokenizers
from tokenizers.models import BPE

from glassformer.ground.errors import InputError, InputTypeError, refuse_unknown
from glassformer.ground.files import atomic_save, finish_saves, upload
from glassformer.ground.transformers_isinstance import FamiliarClass
from glassformer.text import inputs
from glassformer.text.chat.chat_mixin import ChatMixin
from glassformer.text.encoding import (
    BatchEncoding,
    TensorType,
    as_columns,
    batch_columns,
    pad_columns,
    tensor_type_of,
    to_array,
)
from glassformer.text.inputs import refuse_lone_surrogates
from glassformer.text.languages import LanguageMixin, LanguageTokens
from glassformer.text.streaming import Detokenizer
from glassformer.text.token_bytes import TokenSizes, bytes_decoder
from glassformer.text.token_rows import NO_TRUNCATION, TRUNCATIONS, Padding, TokenRow, Truncation, truncate
from glassformer.text.tokenizer_files import gguf, tiktoken
from glassformer.text.tokenizer_files.config_fields import NAMED_TOKEN_FIELDS, NO_LIMIT, SPECIAL_TOKEN_NAMES
from glassformer.text.tokenizers_errors import DECODE_ERRORS, ENCODE_ERRORS
from glassformer.text.vocabulary_mixin import ADDITIONAL, VocabularyMixin, in_role_order

LONG_TEXT = 2**14  # characters
SAVED_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
Ids: TypeAlias = Any  # an int, a (nested) list of ints, an array or a tensor


class LengthLimits(NamedTuple):
    """How long rows may be, and how long padding makes them."""

    max_length: int
    pad_to: int | None  # None for as long as the longest
    multiple: int

    def rounded(self, width: int) -> int:
        return -(-width // self.multiple) * self.multiple


class Tokenizer(FamiliarClass, VocabularyMixin, ChatMixin, LanguageMixin):
    """Made by `AutoTokenizer.from_pretrained`; not by hand."""

    transformers_classes = (
        "transformers.tokenization_utils_tokenizers.PreTrainedTokenizerFast",
        "transformers.tokenization_utils_fast.PreTrainedTokenizerFast",
    )
    name_or_path = ""  # where it was loaded from

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special: Mapping[str, str] | None = None,
        additional: Sequence[str] = (),
        template: str | Mapping[str, str] | None = None,
        padding_side: str = "right",
        truncation_side: str = "right",
        model_max_length: int = NO_LIMIT,
        token_types: bool = False,
        clean_up: bool = False,
        clean_up_bpe: bool = False,
        control_tokens: Sequence[str] | None = None,
        trained: int | None = None,
        source: Mapping[str, Any] | None = None,
        languages: LanguageTokens | None = None,
    ) -> None:
        self.backend = backend
        self.languages = languages
        backend.no_padding()
        backend.no_truncation()
        self._special = in_role_order(special or {})
        self._trained = trained  # where the library counts added tokens among the others
        self._additional = tuple(additional)
        self.chat_template = template
        self.padding_side = padding_side
        self.truncation_side = truncation_side
        self.model_max_length = model_max_length
        self.model_input_names = ["input_ids", *(["token_type_ids"] if token_types else []), "attention_mask"]
        self._clean_up = clean_up
        self._wordwise = clean_up_bpe or not isinstance(backend.model, BPE)  # which spells its spaces: nothing to repair
        self.chat_control_tokens = control_tokens
        self._source = dict(source or {})  # the tokenizer_config.json it came with, for saving

    is_fast = True  # as transformers has it

    def __getstate__(self) -> dict[str, Any]:
        """Without what was computed on the way: a used tokenizer is pickled as a new one, and `datasets` knows it again."""
        cls = type(self)
        return {
            name: value for name, value in vars(self).items() if not isinstance(getattr(cls, name, None), cached_property)
        }

    @property
    def class_stems(self) -> tuple[str, ...]:
        """The class that its files name, without what all names end in: "Bert"; none where they name none."""
        name = self._source.get("tokenizer_class")
        return (name.removesuffix("Fast").removesuffix("Tokenizer"),) if isinstance(name, str) else ()

    @property
    def backend_tokenizer(self) -> tokenizers.Tokenizer:
        """The library's tokenizer, by its familiar name."""
        return self.backend

    # Reading and writing ----------------------------------------------------------------------------------------

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """From tokenizer.json and the small files beside it, or from an older checkpoint's vocabulary files."""
        from glassformer.text.tokenizer_files.tokenizer_folder import read_tokenizer_folder

        finish_saves(folder)
        return cls(**read_tokenizer_folder(folder))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], kept_in: Path | None = None) -> Tokenizer:
        """From the `tokenizer.…` entries of a GGUF file; `kept_in`: a folder for what takes long to build."""
        backend, special, token_types = gguf.build(metadata, kept_in)
        template = metadata.get("tokenizer.chat_template")
        context = metadata.get(f"{metadata.get('general.architecture')}.context_length")
        return cls(
            backend,
            special=special,
            template=template if isinstance(template, str) else None,
            model_max_length=context if isinstance(context, int) else NO_LIMIT,
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
        ranks = tiktoken.read_ranks(Path(path))
        end = "<|endoftext|>"
        roles = {"eos_token": end} if end in special else {}
        additional = [token for token in special if token not in roles.values()]
        return cls(tiktoken.build(ranks, pattern, special), special=roles, additional=additional, trained=len(ranks))

    def save_pretrained(self, save_directory: str | Path) -> tuple[str, ...]:
        """Write tokenizer.json, tokenizer_config.json and chat_template.jinja; the paths that were written."""
        templates = self.chat_template.values() if isinstance(self.chat_template, Mapping) else [self.chat_template or ""]
        for template in templates:
            refuse_lone_surrogates(template, "the chat template")
        folder = Path(save_directory)
        named = {name: token for name, token in self._special.items() if name not in SPECIAL_TOKEN_NAMES}
        rewritten = ("chat_template", *ADDITIONAL, *NAMED_TOKEN_FIELDS, *SPECIAL_TOKEN_NAMES, *named)
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **{name: value for name, value in self._source.items() if name not in rewritten},
            **self.language_fields,
            **{name: token for name, token in self.special_tokens_map.items() if name not in named},
            **({"extra_special_tokens": named} if named else {}),
            "model_input_names": self.model_input_names,
            "padding_side": self.padding_side,
            "truncation_side": self.truncation_side,
            "model_max_length": self.model_max_length,
        }
        if isinstance(self.chat_template, Mapping):
            config["chat_template"] = [{"name": n, "template": t} for n, t in self.chat_template.items()]
        texts = {
            "tokenizer.json": self.backend.to_str(pretty=True),
            "tokenizer_config.json": json.dumps(config, indent=2, ensure_ascii=False),
        }
        if isinstance(self.chat_template, str):
            texts["chat_template.jinja"] = self.chat_template
        with atomic_save(folder, "tokenizer.json", lambda name: name in SAVED_FILES) as work:
            for name, text in texts.items():
                (work / name).write_text(text, "utf-8", newline="")
        return tuple(str(folder / name) for name in texts)

    def push_to_hub(self, repo_id: str, *, commit_message: str = "Upload tokenizer", **options: Any) -> str:
        """Save the tokenizer into a repository of the hub, as `model.push_to_hub` does."""
        return upload(self.save_pretrained, repo_id, commit_message=commit_message, **options)

    def __repr__(self) -> str:
        sizes = f"trained {self.vocab_size:,} · with added tokens {len(self):,}"
        return f"Tokenizer({sizes}, special_tokens={self.special_tokens_map})"

    # Text to ids ------------------------------------------------------------------------------------------------

    def __call__(
        self,
        text: Any = None,
        text_pair: Any = None,
        text_target: Any = None,
        text_pair_target: Any = None,
        *,
        add_special_tokens: bool = True,
        padding: Padding = False,
        truncation: Truncation = None,
        max_length: int | None = None,
        stride: int = 0,
        is_split_into_words: bool = False,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_tensors: TensorType = None,
        return_token_type_ids: bool | None = None,
        return_attention_mask: bool | None = None,
        return_overflowing_tokens: bool = False,
        return_special_tokens_mask: bool = False,
        return_offsets_mapping: bool = False,
        return_length: bool = False,
        verbose: bool = True,
        **unknown: Any,
    ) -> BatchEncoding:
        """Encode one text or many, each alone or with a second one.

        Args:
            text: a string, or a list of strings for a batch; pairs of strings are texts with their second ones.
            text_pair: the second text, such as the answer to a question; a list of them for a batch.
            text_target, text_pair_target: what the model is to write; its ids come as `labels`.
            add_special_tokens: put the tokens around each text that the model was trained with, if any.
            padding: True or "longest" pads a batch to its longest text, "max_length" to `max_length`.
            truncation: cut texts longer than `max_length` (by default the model's own limit): True or
                "longest_first" takes from the longer of two, "only_first" and "only_second" from that one. A
                `max_length` without padding and truncation cuts too.
            stride: how many tokens neighbouring windows share, with return_overflowing_tokens.
            is_split_into_words: a text is a list of words; `word_ids` then counts those.
            pad_to_multiple_of: round the padded length up to a multiple of this.
            return_tensors: "pt" for torch tensors, "np" for numpy arrays, None for lists.
            return_token_type_ids: which of two texts each token belongs to; by default where the model wants it.
            return_attention_mask: 0 where there is only padding; by default where the model wants it.
            return_overflowing_tokens: what was cut off comes in further rows, as windows over the text;
                `overflow_to_sample_mapping` says which text each row is from.
            return_special_tokens_mask: 1 for each token that was put around the texts.
            return_offsets_mapping: where each token begins and ends in its text.
            return_length: how many tokens each row has.
            verbose: accepted for familiarity; there is nothing that it would silence.
        """
        refuse_unknown(unknown, self.__call__)
        if text is None and text_target is not None:
            text, text_pair, text_target = text_target, text_pair_target, None
        single, batch = inputs.as_batch(text, text_pair, is_split_into_words)
        if max_length is not None and padding is False and truncation is None:
            truncation = True
        limits = self._limits(padding, truncation, max_length, stride, pad_to_multiple_of)
        encodings = self._encodings(batch, single, is_split_into_words, add_special_tokens)
        rows: list[TokenRow]
        if truncation in NO_TRUNCATION:
            rows, sample_indices = [TokenRow(encoding) for encoding in encodings], None
        else:
            special = add_special_tokens and self.num_special_tokens_to_add() > 0
            how = (limits.max_length, truncation, self.truncation_side, stride, return_overflowing_tokens, special)
            windows = [truncate(encoding, *how) for encoding in encodings]
            rows = [row for rows in windows for row in rows]
            sample_indices = [index for index, rows in enumerate(windows) for _ in rows]
        if padding not in (False, "do_not_pad"):
            self._pad(rows, limits, padding_side or self.padding_side)
        input_names = self.model_input_names
        returned = {
            "input_ids": True,
            "token_type_ids": "token_type_ids" in input_names if return_token_type_ids is None else return_token_type_ids,
            "attention_mask": "attention_mask" in input_names if return_attention_mask is None else return_attention_mask,
            "special_tokens_mask": return_special_tokens_mask,
            "offset_mapping": return_offsets_mapping,
        }
        columns = batch_columns(rows, [name for name, is_returned in returned.items() if is_returned], return_tensors)
        if single and return_tensors is None and not return_overflowing_tokens:
            columns = {name: values[0] for name, values in columns.items()}
        more = {"length": [len(row) for row in rows]} if return_length else {}
        if return_overflowing_tokens:
            more["overflow_to_sample_mapping"] = list(range(len(rows))) if sample_indices is None else sample_indices
        for name, values in more.items():
            columns[name] = values if return_tensors is None else to_array(values, return_tensors)
        if text_target is not None:
            options: dict[str, Any] = {
                "add_special_tokens": add_special_tokens, "padding": padding, "truncation": truncation,
                "max_length": max_length, "stride": stride, "is_split_into_words": is_split_into_words,
                "pad_to_multiple_of": pad_to_multiple_of, "padding_side": padding_side, "return_tensors": return_tensors,
                "return_overflowing_tokens": return_overflowing_tokens,
            }  # fmt: skip
            with self._as_target():
                columns["labels"] = self(text_target, text_pair_target, **options)["input_ids"]
        return BatchEncoding(columns, rows)

    def encode(self, text: Any, text_pair: Any = None, **options: Any) -> Any:
        """The ids of one text, or of a text and its second one: a list, or a (1, length) tensor.

        The options are those of calling the tokenizer: `add_special_tokens`, `truncation`, `return_tensors`, ….
        """
        return self(text, text_pair, **options)["input_ids"]

    def tokenize(self, text: str, pair: str | None = None, add_special_tokens: bool = False) -> list[str]:
        """The pieces of one text, as the vocabulary spells them."""
        if not isinstance(text, str):
            raise InputTypeError(f"the tokenizer takes text, not {type(text).__name__}.")
        return self(text, pair, add_special_tokens=add_special_tokens).tokens()

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """How many tokens are put around one text, or around and between two."""
        with ENCODE_ERRORS:
            return self.backend.num_special_tokens_to_add(is_pair=pair)

    def pad(
        self,
        encoded_inputs: Any,
        padding: Padding = True,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_attention_mask: bool | None = None,
        return_tensors: TensorType = None,
        verbose: bool = True,
    ) -> BatchEncoding:
        """Fill encoded texts up to one length: what the tokenizer gave, or a list of rows as a data loader collects it.

        Ids and the masks beside them are filled; other columns, such as `labels`, stay as they are. Tensors and arrays
        come back as such, on the processor.
        """
        return_tensors = return_tensors or tensor_type_of(encoded_inputs)
        columns = as_columns(encoded_inputs)
        ids = columns["input_ids"]
        rows = ids if ids and isinstance(ids[0], list) else [ids]
        wants_mask = "attention_mask" in self.model_input_names if return_attention_mask is None else return_attention_mask
        if wants_mask and "attention_mask" not in columns:
            masks = [[1] * len(row) for row in rows]
            columns["attention_mask"] = masks if rows is ids else masks[0]
        if ids and padding not in (False, "do_not_pad"):
            limits = self._limits(padding, False, max_length, 0, pad_to_multiple_of)
            width = limits.rounded(max(map(len, rows)) if limits.pad_to is None else limits.pad_to)
            columns = pad_columns(columns, width, self._padding_token()[0], self._side(padding_side))
        return BatchEncoding(columns, None, return_tensors)

    def _limits(self, padding: Any, truncation: Any, max_length: Any, stride: Any, multiple: Any) -> LengthLimits:
        """The lengths that the options ask for, checked."""
        if max_length is not None and (not isinstance(max_length, int) or max_length < 0):
            raise InputError(f"max_length={max_length!r} is no length. Give a number of tokens, 0 or more.")
        if not isinstance(stride, int) or stride < 0:
            raise InputError(f"stride={stride!r} is no length. Give a number of tokens, 0 or more.")
        if multiple is not None and (not isinstance(multiple, int) or multiple < 1):
            raise InputError(f"pad_to_multiple_of={multiple!r} is no length. Give a number of tokens, 1 or more.")
        if truncation not in TRUNCATIONS:
            raise InputError(
                f"truncation={truncation!r} is not known. Use True, 'longest_first', 'only_first', 'only_second' or False."
            )
        if padding not in (True, False, "longest", "max_length", "do_not_pad"):
            raise InputError(f"padding={padding!r} is not known. Use True, 'longest', 'max_length' or False.")
        limit = self.model_max_length if max_length is None else max_length
        filled = padding not in (False, "do_not_pad")
        if filled and multiple and truncation not in NO_TRUNCATION and limit < NO_LIMIT and limit % multiple:
            raise InputError(f"max_length={limit} is no multiple of pad_to_multiple_of={multiple}. Change one of them.")
        return LengthLimits(limit, limit if padding == "max_length" else None, multiple or 1)

    def _encodings(self, batch: list[Any], single: bool, words: bool, add_special_tokens: bool) -> list[tokenizers.Encoding]:
        """The library's encodings; where it refuses, the error names the entry at fault."""
        try:
            if single:
                text, second = batch[0] if isinstance(batch[0], tuple) else (batch[0], None)
                if len(text) + len(second or ()) < LONG_TEXT:  # of a batch alone the library lets other threads go on
                    return [self.backend.encode(text, second, is_pretokenized=words, add_special_tokens=add_special_tokens)]
            return self.backend.encode_batch(batch, is_pretokenized=words, add_special_tokens=add_special_tokens)
        except BaseException:
            inputs.check_inputs(batch, single, words)
            with ENCODE_ERRORS:
                raise

    def _padding_token(self) -> tuple[int, str]:
        if self.pad_token is None:
            raise InputError("this tokenizer has no padding token. Set one: tokenizer.pad_token = tokenizer.eos_token.")
        return self.pad_token_id, self.pad_token

    def _side(self, side: str | None) -> str:
        side = side or self.padding_side
        if side not in ("left", "right"):
            raise InputError(f"padding_side={side!r} is not known. Use 'left' or 'right'.")
        return side

    def _pad(self, rows: list[TokenRow], limits: LengthLimits, side: str) -> None:
        side, token = self._side(side), self._padding_token()
        width = max(map(len, rows), default=0) if limits.pad_to is None else limits.pad_to
        if width >= NO_LIMIT:
            raise InputError("padding='max_length' needs max_length=….")
        for row in rows:
            row.pad(limits.rounded(width), token, side)

    # Ids to text ------------------------------------------------------------------------------------------------

    def decode(self, ids: Ids, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool | None = None) -> Any:
        """Text of one id or one sequence; a list of texts for a batch (two dimensions).

        Args:
            skip_special_tokens: leave out the tokens that were put around a text.
            clean_up_tokenization_spaces: put English spacing right after word-wise decoding; by default as the
                tokenizer's files say. Byte-pair vocabularies spell their spaces, and are never touched.
        """
        clean = self._clean_up if clean_up_tokenization_spaces is None else clean_up_tokenization_spaces
        token_ids = [ids] if type(ids) is int else ids.tolist() if hasattr(ids, "tolist") else ids
        try:
            if type(token_ids) is list and token_ids and type(token_ids[0]) is list:
                texts = self.backend.decode_batch(token_ids, skip_special_tokens=skip_special_tokens)
                return [_clean_up_spaces(text) for text in texts] if clean and self._wordwise else texts
            if type(token_ids) is not list:
                raise TypeError
            text: str = self.backend.decode(token_ids, skip_special_tokens=skip_special_tokens)
            return _clean_up_spaces(text) if clean and self._wordwise else text
        except (TypeError, OverflowError):  # something rarer than lists of ids
            return self._decode(token_ids, skip_special_tokens, clean)
        except BaseException:
            with DECODE_ERRORS:
                raise

    def _decode(self, ids: Ids, skip: bool, clean: bool) -> Any:
        """Text out of whatever holds ids, one id after another."""
        token_ids = _as_ints(ids)
        if isinstance(token_ids, int):
            token_ids = [token_ids]
        if any(isinstance(row, list) for row in token_ids):
            return [self._decode(row, skip, clean) for row in token_ids]
        for token_id in token_ids:
            if not 0 <= token_id < 2**32:
                raise InputError(f"{token_id} is no token id; the vocabulary has {len(self)}.")
        with DECODE_ERRORS:
            text: str = self.backend.decode(token_ids, skip_special_tokens=skip)
        return _clean_up_spaces(text) if clean and self._wordwise else text

    def batch_decode(
        self, sequences: Ids, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool | None = None
    ) -> list[str]:
        """Texts of many sequences; a list even for one."""
        texts = self.decode(sequences, skip_special_tokens, clean_up_tokenization_spaces)
        return [texts] if isinstance(texts, str) else texts

    def detokenizer(self, skip_special_tokens: bool = True, visible_tokens: Collection[str] = ()) -> Detokenizer:
        """An incremental decoder for one sequence: `feed` it ids as they come.

        `visible_tokens`: special tokens that are not skipped, such as those that a tool call begins and ends with.
        """
        special = self.special_added_tokens
        if not skip_special_tokens or special.keys().isdisjoint(visible_tokens):
            return Detokenizer(lambda ids: self.decode(list(ids), skip_special_tokens))
        hidden = {token_id for token, token_id in special.items() if token not in visible_tokens}
        return Detokenizer(lambda ids: self.decode([token_id for token_id in ids if token_id not in hidden]))

    @overload
    def convert_ids_to_tokens(self, ids: int, skip_special_tokens: bool = False) -> str: ...
    @overload
    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> list[str]: ...
    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> str | list[str]:
        """Ids as the vocabulary spells them: `Ġ` is a space, `Ċ` a line break."""
        token_ids = _as_ints(ids)
        if isinstance(token_ids, int):
            return self._token(token_ids)
        hidden = self.all_special_ids if skip_special_tokens else []
        return [self._token(token_id) for token_id in token_ids if token_id not in hidden]

    def convert_tokens_to_ids(self, tokens: str | Iterable[str]) -> Any:
        """The inverse; an unknown token gives the unknown token's id, or None when there is none."""
        if isinstance(tokens, str):
            token_id = self._find_id(tokens)
            return self.unk_token_id if token_id is None else token_id
        return [self.convert_tokens_to_ids(token) for token in tokens]

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        """The text of tokens as the vocabulary spells them."""
        for token in tokens:
            refuse_lone_surrogates(token, "the token")
        decoder = self.backend.decoder
        if decoder is None:
            return " ".join(tokens)
        with DECODE_ERRORS:
            text: str = decoder.decode(list(tokens))
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one id adds to the text; half a character is possible, a padding id gives none."""
        token = self.backend.id_to_token(token_id) if 0 <= token_id < 2**32 else None
        return b"" if token is None else self._bytes_of(token, token_id in self._added_ids)

    def least_tokens(self, text: str) -> int:
        """The fewest tokens that a text can have, by its length and the longest token; it is not encoded."""
        return self._token_sizes.least_tokens(text)

    @cached_property
    def _token_sizes(self) -> TokenSizes:
        return TokenSizes.of(self.backend)

    @cached_property
    def _bytes_of(self) -> Callable[[str, bool], bytes]:
        return bytes_decoder(self.backend)


def _clean_up_spaces(text: str) -> str:
    """English spacing put right after word-wise decoding, as the field does it."""
    for spaced, joined in (
        (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"),
        (" n't", "n't"), (" 'm", "'m"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
    ):  # fmt: skip
        text = text.replace(spaced, joined)
    return text


def _as_ints(ids: Ids) -> Any:
    """Ids out of whatever holds them, as an int or (nested) lists of ints."""
    ids = ids.tolist() if hasattr(ids, "tolist") else ids
    if isinstance(ids, int):
        return ids
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise InputTypeError(f"token ids are whole numbers, or lists or tensors of them, not {type(ids).__name__}.")
    return [_as_ints(item) for item in ids]
