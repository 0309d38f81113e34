"""Columns of a batch out of its rows: lists, or arrays filled at once, without a padded list in between."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from glassformer.ground.errors import InputError, needed_for
from glassformer.text.encoding import TensorType, to_array
from glassformer.text.token_rows import TokenRow

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
    for at, row in enumerate(rows):
        text[at, row.padding_before : width - row.padding_after] = True
    if name == "attention_mask":
        return text.astype(np.int64)
    matrix = np.full((len(rows), width), rows[0].padding_token[0] if rows and name == "input_ids" else 0, np.int64)
    values = (_unpadded(row, row.source.ids if name == "input_ids" else row.source.type_ids) for row in rows)
    matrix[text] = np.fromiter(chain.from_iterable(values), np.int64, int(text.sum()))
    return matrix


def _unpadded(row: TokenRow, values: list[int]) -> list[int]:
    return values if row.positions is None else [values[at] for at in row.positions]
