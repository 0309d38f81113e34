"""`tokenizer.pad`: encoded texts, as a data loader collects them, filled up to one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glassformer.errors import InputError, InputTypeError

BESIDE = {"attention_mask": 0, "token_type_ids": 0, "special_tokens_mask": 1}  # what is filled up besides the ids


def collected(given: Any) -> dict[str, Any]:
    """One mapping of columns, out of such a mapping or a list of rows, as plain lists."""
    if isinstance(given, (list, tuple)) and given and all(isinstance(one, Mapping) for one in given):
        names = list(given[0])
        for at, one in enumerate(given):
            missing = [name for name in names if name not in one]
            if missing:
                raise InputError(f"row {at} lacks {missing[0]!r}, which the first row has. Give each row the same names.")
        given = {name: [one[name] for one in given] for name in names}
    if not isinstance(given, Mapping):
        raise InputTypeError(f"pad takes what the tokenizer gave, or a list of such, not {type(given).__name__}.")
    if "input_ids" not in given:
        raise InputError(f"pad needs 'input_ids', but there are only {', '.join(map(repr, given)) or 'no columns'}.")
    return {name: _plain(value) for name, value in given.items()}


def kind_of(given: Any) -> Any:
    """ "pt" or "np" where tensors or arrays were given, whole or row by row."""
    rows = given[0] if isinstance(given, (list, tuple)) and given else given
    ids = rows.get("input_ids") if isinstance(rows, Mapping) else None
    while isinstance(ids, (list, tuple)) and ids:
        ids = ids[0]
    return None if not hasattr(ids, "ndim") else "np" if type(ids).__module__ == "numpy" else "pt"


def fill(held: Mapping[str, Any], width: int, number: int, side: str) -> dict[str, Any]:
    """One row, or a column of rows, brought to `width`; what has no known filling stays as it is."""
    ids = held["input_ids"]
    if ids and isinstance(ids[0], list):
        rows = [fill({name: value[at] for name, value in held.items()}, width, number, side) for at in range(len(ids))]
        return {name: [row[name] for row in rows] for name in held}
    missing = width - len(ids)
    if missing < 0:
        raise InputError(f"a row of {len(ids)} tokens cannot be filled up to {width}. Cut it, or give a larger max_length.")
    fillings = {"input_ids": number, **BESIDE}
    return {
        name: value if name not in fillings else [fillings[name]] * missing + value if side == "left"
        else value + [fillings[name]] * missing
        for name, value in held.items()
    }  # fmt: skip


def _plain(value: Any) -> Any:
    """Lists all the way down, out of lists, tuples, arrays and tensors."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return [_plain(one) for one in value] if isinstance(value, Sequence) and not isinstance(value, str) else value
