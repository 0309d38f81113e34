"""Whether a value is of a declared type, for values that come from people and files."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union, get_args, get_origin


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type as annotations spell it; true and false are no numbers here, and a text no list."""
    origin = get_origin(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(fits(value, one) for one in get_args(hint))
    if origin in (list, tuple, Sequence):
        return isinstance(value, (list, tuple)) and all(fits(one, get_args(hint)[0]) for one in value)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping)
    if origin is Callable:
        return callable(value)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def words(hint: Any) -> str:
    """A type for people.

    >>> words(bool | None)
    'true, false or null'
    """
    if get_origin(hint) in (Union, types.UnionType):
        every = [words(one) for one in get_args(hint)]
        parts = ", ".join(every).replace(" or ", ", ").split(", ")
        return f"{', '.join(parts[:-1])} or {parts[-1]}"
    if get_origin(hint) in (list, tuple, Sequence):
        return f"a list of {words(get_args(hint)[0]).removeprefix('a ')}s"
    named = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", types.NoneType: "null"}
    return named.get(hint, getattr(hint, "__name__", str(hint)))
