"""What tests cost: unmarked ones that take long or start processes are named at the end, beside what was left out.

Time is the processor's, of this process and of those it has started and awaited, so that a busy machine changes nothing. A
fixture of the whole session is shared, so what it takes is not counted for the test that comes first.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

from tests import needs

MOST_SECONDS = 5.0
STARTED = 0.25  # seconds in processes that count; a compiler asked for its version takes less

Times = tuple[float, float]  # seconds of this process and of its children, and of the latter alone

SLOW, PROCESSES = pytest.StashKey[dict[str, float]](), pytest.StashKey[dict[str, float]]()
GATHERED = pytest.StashKey[list[dict[str, Any]]]()  # what each worker found
SHARED = pytest.StashKey[Times]()  # what the session's fixtures have taken so far


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SLOW], config.stash[PROCESSES], config.stash[GATHERED] = {}, {}, []
    config.stash[SHARED] = (0.0, 0.0)


def _times() -> Times:
    now = os.times()
    children = now.children_user + now.children_system
    return children + now.user + now.system, children


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """A fixture that another one asks for is set up before it, so none is counted twice."""
    before = _times()
    try:
        return (yield)
    finally:
        if fixturedef.scope == "session":
            (taken, in_children), after = request.config.stash[SHARED], _times()
            request.config.stash[SHARED] = (taken + after[0] - before[0], in_children + after[1] - before[1])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    before, shared_before = _times(), item.config.stash[SHARED]
    try:
        return (yield)
    finally:
        shared = (after - earlier for after, earlier in zip(item.config.stash[SHARED], shared_before, strict=True))
        seconds, children = (
            after - earlier - others for after, earlier, others in zip(_times(), before, shared, strict=True)
        )
        if not {mark.name for mark in item.iter_markers()} & {"sweep", needs.ANY}:
            if seconds > MOST_SECONDS:
                item.config.stash[SLOW][item.nodeid] = seconds
            if children > STARTED:
                item.config.stash[PROCESSES][item.nodeid] = children


def _found(config: pytest.Config) -> dict[str, Any]:
    stash = config.stash
    return {
        "files": dict(stash[needs.FILES]),
        "tests": dict(stash[needs.TESTS]),
        "slow": stash[SLOW],
        "processes": stash[PROCESSES],
    }


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker tells the process that began it, which prints the summary."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["costs"] = _found(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    if output := getattr(node, "workeroutput", {}).get("costs"):
        node.config.stash[GATHERED].append(output)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    gathered = config.stash[GATHERED] or [_found(config)]
    for line in summary(gathered):
        terminalreporter.write_line(line)


def summary(gathered: list[dict[str, Any]]) -> list[str]:
    """What the workers found; each has collected, and so left out, the same tests."""
    lines = []
    headings = {
        "slow": f"Unmarked tests of more than {MOST_SECONDS:g} s of processor time (make them quicker, or sweeps):",
        "processes": "Unmarked tests that started processes (mark them processes, or do it in this one):",
    }
    for name, heading in headings.items():
        every = sorted(((seconds, test) for one in gathered for test, seconds in one[name].items()), reverse=True)
        lines += [heading, *(f"  {seconds:5.1f} s  {test}" for seconds, test in every)] if every else []
    return [*lines, *filter(None, [needs.left_out(gathered[0]["files"], gathered[0]["tests"])])]
