"""Some of many parameters at every run, the others in the sweeps: interpreted kernels are slow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def mostly_swept(values: Iterable[Any], *quick: Any) -> list[Any]:
    """Parameters, of which all but the quick ones are for the sweeps."""
    every = list(values)
    assert all(value in every for value in quick)
    return [value if value in quick else pytest.param(*_fields(value), marks=pytest.mark.sweep) for value in every]


def _fields(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
