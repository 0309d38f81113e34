"""A few of many parameters at every run, and the others with the sweeps, which only `make test-all` runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

import pytest

from tests.needs import may_choose

Test = TypeVar("Test", bound=Hashable)

_wanted = True


def choose(marks: str) -> None:
    """A run without sweeps does not even make their parameters: to collect tens of thousands and drop them takes long."""
    global _wanted
    _wanted = may_choose(marks, "sweep")


def swept(values: Iterable[Any]) -> list[Any]:
    """Parameters for the sweeps, to be put beside quick ones."""
    return [pytest.param(value, marks=pytest.mark.sweep) for value in values] if _wanted else []


def mostly_swept(values: Iterable[Any], *quick: Any) -> list[Any]:
    """Parameters, of which all but the quick ones are for the sweeps."""
    every = list(values)
    assert all(value in every for value in quick)
    marked = (value if value in quick else pytest.param(*_fields(value), marks=pytest.mark.sweep) for value in every)
    return [parameter for parameter, value in zip(marked, every, strict=True) if _wanted or value in quick]


def wanted() -> bool:
    """Whether this run may choose sweeps."""
    return _wanted


def examples(quick: int, many: int) -> int:
    """How many examples hypothesis tries: few at every run, more where the sweeps are run."""
    return many if _wanted else quick


def beyond_covering(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Of tests that run each combination of several parameters, those that remain when a few have tried each value."""
    combined: dict[tuple[str, str], dict[pytest.Item, set[Hashable]]] = defaultdict(dict)
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            combined[item.module.__name__, item.nodeid.partition("[")[0]][item] = _choices(item)
    return [item for choices in combined.values() for item in choices.keys() - covering(choices)]


def _choices(item: pytest.Function) -> set[Hashable]:
    """What a test is run with: for each parameter, or for those that are given together, which one."""
    values = dict(item.callspec.params)
    together = [mark.args[0] for mark in item.iter_markers("parametrize") if mark.args]
    names = [
        tuple(name.strip() for name in given.split(",")) if isinstance(given, str) else tuple(given) for given in together
    ]
    alone = {name: value for name, value in values.items() if not any(name in group for group in names)}
    given = {(group, tuple(id(values[name]) for name in group if name in values)) for group in names}
    return given | {(name, choice) for name, value in alone.items() for choice in _parts(value)}


def _parts(value: Any) -> list[Hashable]:
    """A fixture's parameter; one of several words, such as a family and an executor, is as many choices."""
    words = isinstance(value, tuple) and all(isinstance(word, str) for word in value)
    return list(enumerate(value)) if words else [id(value)]


def covering(tests: Mapping[Test, AbstractSet[Hashable]]) -> set[Test]:
    """So few tests that each choice is in one of them, and none in many more than the others."""
    held = Counter(choice for choices in tests.values() for choice in choices)
    kept = {test for test, choices in tests.items() if all(held[choice] == 1 for choice in choices)}  # as with one parameter
    left = {test: choices for test, choices in tests.items() if test not in kept}
    missing, used = set[Hashable]().union(*left.values()), Counter[Hashable]()
    while missing:
        new = {test: len(choices & missing) for test, choices in left.items()}
        most = max(new.values())
        left = {test: choices for test, choices in left.items() if new[test]}
        best = min((test for test in left if new[test] == most), key=lambda test: sum(used[choice] for choice in left[test]))
        kept.add(best)
        missing -= left[best]
        used.update(left.pop(best))
    return kept


def _fields(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
