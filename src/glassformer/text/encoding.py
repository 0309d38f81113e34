"""What a tokenizer gives: ids and masks as a mapping, in lists, numpy arrays or torch tensors; and where each came from.

A batch's columns are made out of the tokenizer's rows, as lists or as arrays filled at once; or out of encoded texts, as a
data loader collects them, padded (`tokenizer.pad`).
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeAlias

from glassformer.ground.errors import InputError, InputTypeError, needed_for
from glassformer.text.token_rows import TokenRow

TensorType: TypeAlias = Literal["pt", "np"] | None


class CharSpan(NamedTuple):
    """Characters of a text, the last not included."""

    start: int
    end: int


class TokenSpan(NamedTuple):
    """Tokens of a row, the last not included."""

    start: int
    end: int


class BatchEncoding(UserDict[str, Any]):
    """What a tokenizer gives: a mapping that `model(**tokens)` accepts, its keys also attributes.

    The lookups take the row first where there are several: `char_to_token(row, character)`, or `char_to_token(character)`
    for the first. `sequence_index=1` asks about the second text of a pair.
    """

    def __init__(
        self,
        data: Mapping[str, Any] | None = None,
        encoding: Sequence[TokenRow] | None = None,
        tensor_type: TensorType = None,
    ) -> None:
        self.data = dict(data or {})
        self._rows = encoding
        if tensor_type is not None:
            self.convert_to_tensors(tensor_type)

    def __getitem__(self, key: Any) -> Any:
        """A column by its name, a row by its index, or some rows of each column."""
        if isinstance(key, str):
            return self.data[key]
        if self._rows is not None:
            return self._rows[key]
        if isinstance(key, slice):
            return {name: value[key] for name, value in self.data.items()}
        raise KeyError(key)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["data"][name]
        except KeyError:
            raise AttributeError(
                f"the encoding has no {name!r}; it has {', '.join(self.__dict__.get('data', {}))}"
            ) from None

    def to(self, device: Any, *, non_blocking: bool = False) -> BatchEncoding:
        """The encoding with its tensors on another device."""
        moved = {k: v.to(device, non_blocking=non_blocking) if hasattr(v, "to") else v for k, v in self.data.items()}
        return BatchEncoding(moved, self._rows)

    def convert_to_tensors(self, tensor_type: TensorType = None, prepend_batch_axis: bool = False) -> BatchEncoding:
        """Lists into tensors ("pt") or arrays ("np"), in place; with one more axis in front if `prepend_batch_axis`."""
        for name, value in self.data.items() if tensor_type is not None else ():
            if not hasattr(value, "ndim"):
                self.data[name] = to_array([value] if prepend_batch_axis else value, tensor_type, name)
        return self

    # Where each token came from -----------------------------------------------------------------------------------

    @property
    def is_fast(self) -> bool:
        """Whether the lookups below work: not after `pad`, which takes ids and no text."""
        return self._rows is not None

    @property
    def encodings(self) -> list[TokenRow] | None:
        """The rows, each with `ids`, `tokens`, `offsets`, `word_ids` and the rest."""
        return None if self._rows is None else list(self._rows)

    @property
    def n_sequences(self) -> int | None:
        """1 for texts, 2 for pairs of them."""
        return self._rows[0].n_sequences if self._rows else None

    def _row(self, index: int) -> TokenRow:
        if self._rows is None:
            raise InputError("this encoding was made from ids and knows no text. Ask the one that the tokenizer gave.")
        if not -len(self._rows) <= index < len(self._rows):
            raise InputError(f"there is no row {index}; there are {len(self._rows)}.")
        return self._rows[index]

    def _row_and_position(self, index: int, inner: int | None, what: str) -> tuple[TokenRow, int]:
        row, position = (self._row(0), index) if inner is None else (self._row(index), inner)
        position += len(row) if what == "token" and position < 0 else 0
        if position < 0 or (what == "token" and position >= len(row)):
            raise InputError(f"there is no {what} {position} in a row of {len(row)} tokens.")
        return row, position

    def tokens(self, batch_index: int = 0) -> list[str]:
        """The pieces of a row, as the vocabulary spells them."""
        return self._row(batch_index).tokens

    def word_ids(self, batch_index: int = 0) -> list[int | None]:
        """Of each token, which word of its text it belongs to; None for those around the texts."""
        return self._row(batch_index).word_ids

    def sequence_ids(self, batch_index: int = 0) -> list[int | None]:
        """Of each token, which of two texts it belongs to; None for those around the texts."""
        return self._row(batch_index).sequence_ids

    def token_to_sequence(self, batch_or_token_index: int, token_index: int | None = None) -> int | None:
        row, token = self._row_and_position(batch_or_token_index, token_index, "token")
        return row.token_to_sequence(token)

    def token_to_word(self, batch_or_token_index: int, token_index: int | None = None) -> int | None:
        row, token = self._row_and_position(batch_or_token_index, token_index, "token")
        return row.token_to_word(token)

    def token_to_chars(self, batch_or_token_index: int, token_index: int | None = None) -> CharSpan | None:
        """Where a token stands in its text; None for those around the texts."""
        row, token = self._row_and_position(batch_or_token_index, token_index, "token")
        span = row.token_to_chars(token)
        return None if span is None else CharSpan(*span)

    def word_to_tokens(
        self, batch_or_word_index: int, word_index: int | None = None, sequence_index: int = 0
    ) -> TokenSpan | None:
        row, word = self._row_and_position(batch_or_word_index, word_index, "word")
        span = row.word_to_tokens(word, sequence_index)
        return None if span is None else TokenSpan(*span)

    def word_to_chars(
        self, batch_or_word_index: int, word_index: int | None = None, sequence_index: int = 0
    ) -> CharSpan | None:
        row, word = self._row_and_position(batch_or_word_index, word_index, "word")
        span = row.word_to_chars(word, sequence_index)
        return None if span is None else CharSpan(*span)

    def char_to_token(self, batch_or_char_index: int, char_index: int | None = None, sequence_index: int = 0) -> int | None:
        """The token that a character of the text is in; None for a space that no token covers."""
        row, char = self._row_and_position(batch_or_char_index, char_index, "character")
        return row.char_to_token(char, sequence_index)

    def char_to_word(self, batch_or_char_index: int, char_index: int | None = None, sequence_index: int = 0) -> int | None:
        row, char = self._row_and_position(batch_or_char_index, char_index, "character")
        return row.char_to_word(char, sequence_index)


def to_array(values: Any, tensor_type: TensorType, name: str = "input_ids") -> Any:
    """Numbers, rows of them, or rows of pairs, as an array or tensor."""
    if tensor_type not in ("pt", "np"):
        raise InputError(f"return_tensors={tensor_type!r} is not known. Use 'pt', 'np' or None.")
    import numpy as np

    values = list(values)
    if values and hasattr(values[0], "__len__"):
        lengths = {len(row) for row in values}
        if len(lengths) > 1:
            fix = "Pass padding=True" if name != "labels" else "Fill them up first"
            what = "texts" if name != "labels" else "labels"
            raise InputError(f"{what} of {min(lengths)} to {max(lengths)} tokens do not form one tensor. {fix}.")
        width = lengths.pop()
        flat = list(chain.from_iterable(values))
        pairs = bool(flat) and isinstance(flat[0], (tuple, list))
        try:
            array = np.array(flat).reshape(len(values), width, *([2] if pairs else [])) if flat else None
        except ValueError as error:
            raise InputError(f"{name!r} is nested too deeply or unevenly for a tensor ({error}).") from error
        array = np.zeros((len(values), width), np.int64) if array is None else array
    else:
        array = np.array(values) if values else np.zeros((0, 0), np.int64)
    if tensor_type == "np":
        return array
    with needed_for("return_tensors='pt'"):
        import torch

    return torch.from_numpy(array)


# Columns of a batch -----------------------------------------------------------------------------------------------

ROW_ATTRIBUTES = {
    "input_ids": "ids",
    "token_type_ids": "type_ids",
    "attention_mask": "attention_mask",
    "special_tokens_mask": "special_tokens_mask",
    "offset_mapping": "offsets",
}


def batch_columns(rows: Sequence[TokenRow], names: Sequence[str], tensor_type: TensorType) -> dict[str, Any]:
    """The columns of these names: a list for each row, or one array (rows, length)."""
    if tensor_type is None:
        return {name: [getattr(row, ROW_ATTRIBUTES[name]) for row in rows] for name in names}
    if tensor_type not in ("pt", "np"):
        raise InputError(f"return_tensors={tensor_type!r} is not known. Use 'pt', 'np' or None.")
    lengths = {len(row) for row in rows} or {0}
    if len(lengths) > 1:
        raise InputError(f"texts of {min(lengths)} to {max(lengths)} tokens do not form one tensor. Pass padding=True.")
    width = lengths.pop()
    columns: dict[str, Any] = {}
    for name in names:
        if name in ("input_ids", "token_type_ids", "attention_mask"):
            columns[name] = _matrix(rows, name, width)
        else:
            values = to_array([getattr(row, ROW_ATTRIBUTES[name]) for row in rows], "np", name)
            columns[name] = values.reshape(len(rows), width, *([2] if name == "offset_mapping" else []))
    if tensor_type == "np":
        return columns
    with needed_for("return_tensors='pt'"):
        import torch

    return {name: torch.from_numpy(values) for name, values in columns.items()}


def _matrix(rows: Sequence[TokenRow], name: str, width: int) -> Any:
    """The numbers of all rows in one go, each at its place among the padding."""
    import numpy as np

    text = np.zeros((len(rows), width), bool)  # where a row has text
    for position, row in enumerate(rows):
        text[position, row.padding_before : width - row.padding_after] = True
    if name == "attention_mask":
        return text.astype(np.int64)
    matrix = np.full((len(rows), width), rows[0].padding_token[0] if rows and name == "input_ids" else 0, np.int64)
    values = (_unpadded(row, row.source.ids if name == "input_ids" else row.source.type_ids) for row in rows)
    matrix[text] = np.fromiter(chain.from_iterable(values), np.int64, int(text.sum()))
    return matrix


def _unpadded(row: TokenRow, values: list[int]) -> list[int]:
    return values if row.positions is None else [values[position] for position in row.positions]


# `tokenizer.pad` --------------------------------------------------------------------------------------------------

PADDING_VALUES = {"attention_mask": 0, "token_type_ids": 0, "special_tokens_mask": 1}  # besides the ids'


def as_columns(encoded: Any) -> dict[str, Any]:
    """One mapping of columns, out of such a mapping or a list of rows, as plain lists."""
    if isinstance(encoded, (list, tuple)) and encoded and all(isinstance(row, Mapping) for row in encoded):
        names = list(encoded[0])
        for position, row in enumerate(encoded):
            missing = [name for name in names if name not in row]
            if missing:
                raise InputError(
                    f"row {position} lacks {missing[0]!r}, which the first row has. Give each row the same names."
                )
        encoded = {name: [row[name] for row in encoded] for name in names}
    if not isinstance(encoded, Mapping):
        raise InputTypeError(f"pad takes what the tokenizer gave, or a list of such, not {type(encoded).__name__}.")
    if "input_ids" not in encoded:
        raise InputError(f"pad needs 'input_ids', but there are only {', '.join(map(repr, encoded)) or 'no columns'}.")
    return {name: _as_lists(value) for name, value in encoded.items()}


def tensor_type_of(encoded: Any) -> Any:
    """ "pt" or "np" where tensors or arrays were given, whole or row by row."""
    rows = encoded[0] if isinstance(encoded, (list, tuple)) and encoded else encoded
    ids = rows.get("input_ids") if isinstance(rows, Mapping) else None
    while isinstance(ids, (list, tuple)) and ids:
        ids = ids[0]
    return None if not hasattr(ids, "ndim") else "np" if type(ids).__module__ == "numpy" else "pt"


def pad_columns(columns: Mapping[str, Any], width: int, pad_id: int, side: str) -> dict[str, Any]:
    """One row, or a column of rows, padded to `width`; a column without a known padding value stays as it is."""
    ids = columns["input_ids"]
    if ids and isinstance(ids[0], list):
        unpadded = ({name: values[position] for name, values in columns.items()} for position in range(len(ids)))
        rows = [pad_columns(row, width, pad_id, side) for row in unpadded]
        return {name: [row[name] for row in rows] for name in columns}
    missing = width - len(ids)
    if missing < 0:
        raise InputError(f"a row of {len(ids)} tokens cannot be padded to {width}. Cut it, or give a larger max_length.")
    padding = {"input_ids": pad_id, **PADDING_VALUES}
    return {
        name: value if name not in padding else [padding[name]] * missing + value if side == "left"
        else value + [padding[name]] * missing
        for name, value in columns.items()
    }  # fmt: skip


def _as_lists(value: Any) -> Any:
    """Lists all the way down, out of lists, tuples, arrays and tensors."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return [_as_lists(item) for item in value] if isinstance(value, Sequence) and not isinstance(value, str) else value
