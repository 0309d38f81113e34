"""What a test needs beside this process: a marker for each need, read off its code, or given where nothing there shows it.

`make test` runs what needs nothing (`not needs`), `make test-full` the rest. A file's `pytestmark` is for all of its tests,
that of a folder's `__init__.py` for all of its files. Files that a run leaves out whole are not imported, so both are read
from the text. No file is named here: each may be moved.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from inspect import unwrap
from itertools import chain, combinations
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

ROOT = Path(__file__).parent
NEEDS = ("browser", "cluster", "interpreter", "clients", "docs", "processes")
ANY = "needs"  # marks a test that has one of these

LIBRARIES = {  # what a file needs that imports one of them at its top
    **dict.fromkeys(("playwright", "tests.studio.browser"), "browser"),
    "ray": "cluster",
    **dict.fromkeys(("anthropic", "datasets", "langchain_openai", "litellm", "openai", "schemathesis", "trl"), "clients"),
}
FIXTURES = {"open_page": "browser", "cluster": "cluster"}
PARAMETERS = {"gpu": "interpreter"}  # an executor's name
PROCESSES = ({"fork"}, {"multiprocessing"}, {"openpty"}, {"Popen"}, {"subprocess", "run"})  # what starts some has such names
SHARED = ("tests.conftest", "tests.patience")  # may start one, whoever calls them
MAYBE = ("tests.cli.test_cli.glass",)  # starts one for some that call it, which are marked by hand

ASSIGNED = re.compile(r"^pytestmark = (.*(?:\n(?: .*|[\])]))*)", re.M)
MARK = re.compile(r"\bmark\.(\w+)")

FILES, TESTS = pytest.StashKey[Counter[str]](), pytest.StashKey[Counter[str]]()  # what this run leaves out, by need


@cache
def of_place(path: Path) -> frozenset[str]:
    """What every test of a file or a folder needs."""
    if not path.is_relative_to(ROOT):
        return frozenset()
    file = path / "__init__.py" if path.is_dir() else path
    text = file.read_text("utf-8") if file.exists() else ""
    marked = {name for assigned in ASSIGNED.findall(text) for name in MARK.findall(assigned)}.intersection(NEEDS)
    imported = {need for name, need in LIBRARIES.items() if re.search(rf"^(?:from|import) {re.escape(name)}\b", text, re.M)}
    return of_place(path.parent) | marked | imported


def of_test(item: pytest.Item) -> set[str]:
    """What a test needs, whatever says so."""
    found = {mark.name for mark in item.iter_markers()}.intersection(NEEDS)
    found |= of_place(item.path)
    if isinstance(item, pytest.Function):
        if any(map(_starts_processes, _functions(item))):
            found.add("processes")
        found.update(FIXTURES[name] for name in item.fixturenames if name in FIXTURES)
        values = item.callspec.params.values() if hasattr(item, "callspec") else ()
        words = (word for value in values for word in (value if isinstance(value, tuple) else (value,)))
        found.update(PARAMETERS[word] for word in words if isinstance(word, str) and word in PARAMETERS)
    return found


def _functions(item: pytest.Function) -> Iterator[FunctionType]:
    """A test's own function, and those of its fixtures."""
    yield item.function
    definitions = item._fixtureinfo.name2fixturedefs
    yield from (
        one.func for name in item.fixturenames for one in definitions.get(name, ())[-1:] if hasattr(one.func, "__code__")
    )


@cache
def _starts_processes(code: FunctionType | type) -> bool:
    """Whether a function or a class of the tests starts processes, itself or in what it calls."""
    waiting, seen = [code], {code}
    while waiting:
        one = waiting.pop()
        if not one.__module__.startswith(("tests.", "test_")) or one.__module__ in SHARED:
            continue
        called: Iterable[Any]
        if isinstance(one, type):
            called = vars(one).values()
        else:
            function = unwrap(one)
            if f"{function.__module__}.{function.__name__}" in MAYBE:
                continue
            names = set(_names(function.__code__))
            if any(start <= names for start in PROCESSES):
                return True
            called = (function.__globals__.get(name) for name in names)
        new = {other for other in called if isinstance(other, FunctionType | type)} - seen
        waiting += new
        seen |= new
    return False


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    yield from (name for inner in code.co_consts if isinstance(inner, CodeType) for name in _names(inner))


@cache
def may_choose(expression: str, *marks: str) -> bool:
    """Whether pytest's `-m` may choose a test that has these marks, and perhaps more."""
    if not expression:
        return True
    code = compile(expression, "-m", "eval")
    known = ("sweep", ANY, *NEEDS)
    if not set(code.co_names) <= set(known):
        return True
    others = [mark for mark in ("sweep", *NEEDS) if mark not in marks]
    supersets = chain.from_iterable(combinations(others, count) for count in range(len(others) + 1))
    return any(eval(code, {"__builtins__": {}}, _truths({*marks, *more})) for more in supersets)


def _truths(marks: set[str]) -> dict[str, bool]:
    return {name: name in marks for name in ("sweep", *NEEDS)} | {ANY: not marks.isdisjoint(NEEDS)}


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FILES], config.stash[TESTS] = Counter(), Counter()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    found = of_place(collection_path) if re.fullmatch(r"test_.*\.py", collection_path.name) else frozenset()
    if not found or may_choose(config.option.markexpr, *found):
        return None
    asked = (Path(config.invocation_params.dir, argument.partition("::")[0]) for argument in config.args)
    config.stash[FILES][min(found, key=NEEDS.index)] += any(
        map(collection_path.is_relative_to, asked)
    )  # the others are none of this run's
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if found := of_test(item):
            for name in (ANY, *found):
                item.add_marker(name)


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if "sweep" not in marks:
            item.config.stash[TESTS].update(name for name in NEEDS if name in marks)


def left_out(files: dict[str, int], tests: dict[str, int]) -> str:
    """What a run has left out, and how to run it; nothing where nothing is."""

    def counted(name: str) -> str:
        counts = ((files.get(name, 0), "file"), (tests.get(name, 0), "test"))
        return " and ".join(f"{count} {noun}{'s'[: count != 1]}" for count, noun in counts if count)

    each = [f"{name} ({counted(name)})" for name in NEEDS if counted(name)]
    return f"Left out: {', '.join(each)}. Run them: make test-full; one of them: pytest -m NAME" if each else ""
