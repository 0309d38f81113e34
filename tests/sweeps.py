"""A few of many parameters at every run, and the others with the sweeps, which only `make test-all` runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

NO_SWEEPS = "not sweep"  # the choice of `make test`, as pytest's -m has it
_wanted = True


def choose(marks: str) -> None:
    """A run without sweeps does not even make their parameters: to collect tens of thousands and drop them takes long."""
    global _wanted
    _wanted = marks != NO_SWEEPS


def swept(values: Iterable[Any]) -> list[Any]:
    """Parameters for the sweeps, to be put beside quick ones."""
    return [pytest.param(value, marks=pytest.mark.sweep) for value in values] if _wanted else []


def mostly_swept(values: Iterable[Any], *quick: Any) -> list[Any]:
    """Parameters, of which all but the quick ones are for the sweeps."""
    every = list(values)
    assert all(value in every for value in quick)
    marked = (value if value in quick else pytest.param(*_fields(value), marks=pytest.mark.sweep) for value in every)
    return [parameter for parameter, value in zip(marked, every, strict=True) if _wanted or value in quick]


def examples(quick: int, many: int) -> int:
    """How many examples hypothesis tries: few at every run, more where the sweeps are run."""
    return many if _wanted else quick


def _fields(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
