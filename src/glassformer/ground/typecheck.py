"""Whether a value is of a declared type, for values that come from people and files."""

from __future__ import annotations

import math
import os
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from reprlib import Repr
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

LISTS = (list, tuple, Sequence, Collection, Iterable)
JSON_WORDS = {bool: "true or false", types.NoneType: "null"}
PYTHON_WORDS = {bool: "True or False", types.NoneType: "None"}
WORDS = {int: "a whole number", float: "a number", str: "a text", os.PathLike: "a path", Callable: "a function"}

OWN_CHECK = object()  # in Annotated[…]: the function checks the value itself; a text in its place is the type in words

_brief = Repr()
_brief.maxstring = _brief.maxother = _brief.maxlong = 60


class Unknown:
    """A type that only a type checker knows: every value may be of it."""

    def __class_getitem__(cls, arguments: Any) -> type[Unknown]:
        return cls


def matches_type(value: Any, hint: Any) -> bool:
    """Whether a value is of a type as annotations spell it; a bool is no number here, and a text no list."""
    origin = get_origin(hint)
    if hint in (Any, Unknown) or isinstance(hint, (TypeVar, str)):
        return True
    if origin is Annotated:
        return OWN_CHECK in hint.__metadata__ or matches_type(value, hint.__origin__)
    if origin in (Union, types.UnionType):
        return any(matches_type(value, option) for option in get_args(hint))
    if origin is Literal:
        return any(type(value) is type(option) and value == option for option in get_args(hint))
    if origin is tuple and get_args(hint)[-1] is not Ellipsis:
        items = get_args(hint)
        return isinstance(value, (list, tuple)) and len(value) == len(items) and all(map(matches_type, value, items))
    if origin is Iterable and isinstance(value, Iterable) and not isinstance(value, (str, bytes, Sequence)):
        return True  # whose items come later
    if origin in LISTS:
        kinds = (list, tuple, range, *((AbstractSet,) if origin in (Collection, Iterable) else ()))
        item_hint = get_args(hint)[0]
        if not isinstance(value, kinds):
            return False
        return all(kind is item_hint for kind in set(map(type, value))) or all(
            matches_type(item, item_hint) for item in value
        )
    if origin in (dict, Mapping):
        return isinstance(value, Mapping)
    if origin is Callable or hint is Callable:
        return callable(value)
    if hint is None:
        return value is None
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    kind = origin or hint
    tellable = isinstance(kind, type) and not getattr(kind, "_is_protocol", False)
    return isinstance(value, kind) if tellable else True  # what cannot be told is not refused


def is_finite(number: float) -> bool:
    """Whether it is neither infinite nor "not a number"; a whole number may be too long for a float."""
    return isinstance(number, int) or math.isfinite(number)


def type_words(hint: Any, *, python: bool = False) -> str:
    """A type for people, who write JSON or Python.

    >>> type_words(bool | None)
    'true, false or null'
    """
    origin = get_origin(hint)
    if origin is Annotated:
        own = next((word for word in hint.__metadata__ if isinstance(word, str)), None)
        return own or type_words(hint.__origin__, python=python)
    if origin in (Union, types.UnionType):
        each = [(option, type_words(option, python=python)) for option in get_args(hint)]
        options = [part for option, word in each for part in (word.split(" or ") if option is bool else [word])]
        *others, last = dict.fromkeys(options)
        return f"{', '.join(others)} or {last}" if others else last
    if origin is Literal:
        *others, last = map(repr, get_args(hint))
        return f"{', '.join(others)} or {last}" if others else last
    if origin in LISTS:
        items = list(dict.fromkeys(type_words(item, python=python) for item in get_args(hint) if item is not Ellipsis))
        return "a list" if items == ["Any"] else f"a list of {plural(items[0])}"
    words: dict[Any, str] = {
        **WORDS,
        **(PYTHON_WORDS if python else JSON_WORDS),
        dict: "a dictionary",
        Mapping: "a dictionary",
    }
    kind = types.NoneType if hint is None else origin or hint
    return words.get(kind) or str(getattr(kind, "__name__", kind))


def text_choices(hint: Any) -> list[str]:
    """The texts among which a type lets one choose."""
    literals = [option for option in (hint, *get_args(hint)) if get_origin(option) is Literal]
    return [text for literal in literals for text in get_args(literal) if isinstance(text, str)]


def plural(words: str) -> str:
    """What one of a list is, of all of them."""
    options = [option.removeprefix("a ") for option in words.split(" or ")]
    return " or ".join({"dictionary": "dictionaries"}.get(option, f"{option}s") for option in options)


def brief(value: Any) -> str:
    """A value for the middle of a message, whatever it is, and however long."""
    try:
        return " ".join(_brief.repr(value).split())  # an array's takes several lines
    except ValueError:  # a whole number with too many digits for Python to write it
        return "a number of thousands of digits"
    except Exception:
        return f"an object of {type(value).__name__}"


def as_python_number(value: Any) -> Any:
    """NumPy's numbers and truth values as Python's, which are the same, in lists too; everything else as it is."""
    kind = type(value)
    if kind in (list, tuple, set) and any(item.__module__ == "numpy" for item in set(map(type, value))):
        return kind(map(as_python_number, value))
    return value.item() if kind.__module__ == "numpy" and hasattr(kind, "item") and getattr(value, "ndim", 1) == 0 else value
