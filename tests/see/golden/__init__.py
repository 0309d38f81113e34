"""Golden renders: each view as text in a file next to this one, so that a change of its looks shows up in review.

A test calls `golden("journey", view, 80)`. Fractions are drawn as they were recorded in a file beside the pictures, since
their last digits depend on the processor; those that were computed now must agree with them as closely as sums of float32
numbers do. To rewrite the files, run it with GLASS_GOLDEN=write, and read the difference.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassformer.page.terminal import plain_text
from tests.rounding import SHARE

FOLDER = Path(__file__).parent
WIDTHS = (80, 120)


def with_floats(value: Any, change: Callable[[float], float]) -> Any:
    """Data with each of its fractions changed, in order."""
    if isinstance(value, (float, np.floating)):
        return change(float(value))
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return np.array([change(float(item)) for item in value.flat], value.dtype).reshape(value.shape)
    if is_dataclass(value) and not isinstance(value, type):
        data = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        changed = {name: with_floats(item, change) for name, item in data.items()}
        return replace(value, **changed)
    if isinstance(value, Mapping):
        return {name: with_floats(item, change) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(with_floats(item, change) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(with_floats(item, change) for item in value)
    return value


def recorded(name: str, view: Any) -> Any:
    """The view with the fractions of its file, which are those that it has, but for the order in which sums were made."""
    file, found = FOLDER / f"{name}.json", list[float]()
    with_floats(view, lambda number: found.append(number) or number)  # type: ignore[func-returns-value]
    if os.environ.get("GLASS_GOLDEN") == "write" and found:
        file.write_text(json.dumps(found) + "\n", "utf-8", newline="\n")
    numbers = json.loads(file.read_text("utf-8")) if file.exists() else []
    assert found == pytest.approx(numbers, rel=SHARE, abs=SHARE, nan_ok=True), f"{file.name}: other numbers"
    left = iter(numbers)
    return with_floats(view, lambda number: next(left))


def golden(name: str, view: Any, width: int) -> None:
    """Compare a view's render with its file; whatever differs from run to run must be taken out before."""
    file = FOLDER / f"{name}-{width}.txt"
    rendered = "\n".join(line.rstrip() for line in plain_text(recorded(name, view), width).splitlines()) + "\n"
    if os.environ.get("GLASS_GOLDEN") == "write":
        file.write_text(rendered, "utf-8", newline="\n")
    assert file.exists(), f"{file.name} is not there yet. Write it: GLASS_GOLDEN=write, and read it."
    assert rendered == file.read_text("utf-8")
