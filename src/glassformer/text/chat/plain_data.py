"""What a template is shown: plain data only, copied from whatever the caller gave.

A template comes with a model and must not reach into the caller's objects, whose methods may do anything. So all that
it sees is rebuilt of dicts, lists, texts and numbers; an image or an array becomes the name of its kind.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

# The names that a message's thoughts go by; templates read the first, and a few read the second.
THOUGHTS = ("reasoning_content", "thinking", "reasoning")


def plain(value: Any) -> Any:
    """The same in dicts, lists, tuples, texts, numbers, booleans and None."""
    kind = type(value)
    if value is None or kind in (str, int, float, bool):
        return value
    for base in (str, int, float):  # a subclass may carry methods of its own: an enum, a NumPy number
        if isinstance(value, base):
            return base.__str__(value) if base is str else getattr(base, f"__{base.__name__}__")(value)
    if isinstance(value, Mapping):
        return {plain(key): plain(held) for key, held in value.items()}
    if isinstance(value, (list, tuple)):
        held = [plain(one) for one in value]
        return held if isinstance(value, list) else tuple(held)
    if kind.__module__ == "numpy" and getattr(value, "shape", None) == () and kind.__name__ != "ndarray":
        return plain(value.item())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if callable(dump := getattr(value, "model_dump", None)):
        return plain(dump())
    return f"<{kind.__name__}>"


def with_thoughts(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, each with its thoughts under every name that templates read."""
    found = []
    for message in messages:
        thoughts = next((message[name] for name in THOUGHTS if message.get(name) is not None), None)
        found.append(message if thoughts is None else {"thinking": thoughts, **message, "reasoning_content": thoughts})
    return found
