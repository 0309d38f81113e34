"""Regular expressions out of files, refused where matching one could take for ever.

Python's matcher tries one way after another: a repetition inside a repetition makes their number exponential in the text's
length. Names of modules are short, so that a few repetitions side by side are harmless.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from glassformer.ground.errors import CheckpointError
from glassformer.ground.typecheck import brief

MAX_LENGTH = 4000
MAX_REPEATS = 8  # unbounded ones, side by side
MANY = 16  # a repetition that may go on for longer is unbounded


def compile_pattern(pattern: str, path: Path) -> re.Pattern[str]:
    """A pattern that a file has, compiled."""
    try:
        if len(pattern) > MAX_LENGTH:
            raise ValueError(f"it has {len(pattern)} characters, and {MAX_LENGTH} are enough")
        if _unbounded(_parsed(pattern)) > MAX_REPEATS:
            raise ValueError("it has repetitions inside repetitions, or too many of them")
        return re.compile(pattern)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: {brief(pattern)} is no pattern that can be used: {error}. Write the modules' names out."
        ) from error


def _parsed(pattern: str) -> Any:
    parser: Any = getattr(re, "_parser")  # noqa: B009  # the standard library's own, which has no public name
    return parser.parse(pattern)


def _unbounded(node: Any, inside: bool = False) -> int:
    """How many unbounded repetitions a parsed pattern has; one inside another counts as too many."""
    total = 0
    for item in node if isinstance(node, list) or type(node).__name__ == "SubPattern" else ():
        kind, value = (str(item[0]), item[1]) if isinstance(item, tuple) else ("", item)
        if kind.endswith("REPEAT"):
            _, most, body = value
            unbounded = int(most) > MANY
            total += unbounded * (MAX_REPEATS + 1 if inside else 1) + _unbounded(body, inside or unbounded)
        else:
            total += sum(_unbounded(part, inside) for part in _subpatterns(value))
    return total


def _subpatterns(value: Any) -> list[Any]:
    """The parts of a group, a branch or a look-around that are patterns themselves."""
    if type(value).__name__ == "SubPattern":
        return [value]
    if isinstance(value, (tuple, list)):
        return [inner for part in value for inner in _subpatterns(part)]
    return []
