"""Whether a value is of a declared type, for values that come from people and files."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union, get_args, get_origin


def matches_type(value: Any, hint: Any) -> bool:
    """Whether a value is of a type as annotations spell it; a bool is no number here, and a text no list."""
    origin = get_origin(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(matches_type(value, option) for option in get_args(hint))
    if origin in (list, tuple, Sequence):
        return isinstance(value, (list, tuple)) and all(matches_type(item, get_args(hint)[0]) for item in value)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping)
    if origin is Callable:
        return callable(value)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def type_words(hint: Any) -> str:
    """A type for people.

    >>> type_words(bool | None)
    'true, false or null'
    """
    if get_origin(hint) in (Union, types.UnionType):
        options = [type_words(option) for option in get_args(hint)]
        parts = ", ".join(options).replace(" or ", ", ").split(", ")
        return f"{', '.join(parts[:-1])} or {parts[-1]}"
    if get_origin(hint) in (list, tuple, Sequence):
        return f"a list of {type_words(get_args(hint)[0]).removeprefix('a ')}s"
    named = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", types.NoneType: "null"}
    return named.get(hint, getattr(hint, "__name__", str(hint)))
