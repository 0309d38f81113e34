"""What a template is shown: plain data only, copied from whatever the caller gave.

A template comes with a model and must not reach into the caller's objects, whose methods may do anything. So all that
it sees is rebuilt of dicts, lists, texts and numbers; an image or an array becomes the name of its kind.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from glassformer.ground.errors import InputError

# The names that a message's thoughts go by; templates read the first, and a few read the second.
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")


MAX_LEVELS = 150  # of lists within lists


def plain_data(value: Any, levels: int = MAX_LEVELS) -> Any:
    """The same in dicts, lists, tuples, texts, numbers, booleans and None."""
    kind = type(value)
    if value is None or kind in (str, int, float, bool):
        return value
    if not levels:
        raise InputError(
            f"the conversation is nested more than {MAX_LEVELS} levels deep. Pass shallower messages and tools."
        )
    for base in (str, int, float):  # a subclass may carry methods of its own: an enum, a NumPy number
        if isinstance(value, base):
            return base.__str__(value) if base is str else getattr(base, f"__{base.__name__}__")(value)
    if isinstance(value, Mapping):
        return {plain_data(key, levels - 1): plain_data(item, levels - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [plain_data(item, levels - 1) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if kind.__module__ == "numpy" and getattr(value, "shape", None) == () and kind.__name__ != "ndarray":
        return plain_data(value.item())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain_data(getattr(value, field.name), levels - 1) for field in dataclasses.fields(value)}
    if callable(dump := getattr(value, "model_dump", None)):
        return plain_data(dump(), levels - 1)
    return f"<{kind.__name__}>"


def with_reasoning_keys(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, each with its thoughts under every name that templates read."""
    copies = []
    for message in messages:
        reasoning = next((message[name] for name in REASONING_KEYS if message.get(name) is not None), None)
        copies.append(message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning})
    return copies
