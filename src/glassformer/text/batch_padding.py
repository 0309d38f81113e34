"""`tokenizer.pad`: encoded texts, as a data loader collects them, padded to one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glassformer.ground.errors import InputError, InputTypeError

PADDING_VALUES = {"attention_mask": 0, "token_type_ids": 0, "special_tokens_mask": 1}  # besides the ids'


def as_columns(encoded: Any) -> dict[str, Any]:
    """One mapping of columns, out of such a mapping or a list of rows, as plain lists."""
    if isinstance(encoded, (list, tuple)) and encoded and all(isinstance(row, Mapping) for row in encoded):
        names = list(encoded[0])
        for at, row in enumerate(encoded):
            missing = [name for name in names if name not in row]
            if missing:
                raise InputError(f"row {at} lacks {missing[0]!r}, which the first row has. Give each row the same names.")
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
        unpadded = ({name: values[at] for name, values in columns.items()} for at in range(len(ids)))
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
