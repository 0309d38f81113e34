"""What tests cost: unmarked ones that take long or start processes are named at the end, beside what was left out.

Time is the processor's, of this process and of those it has started and awaited, so that a busy machine changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

from tests import needs

MOST_SECONDS = 5.0
STARTED = 0.25  # seconds in processes that count; a compiler asked for its version takes less

SLOW, PROCESSES = pytest.StashKey[dict[str, float]](), pytest.StashKey[dict[str, float]]()
GATHERED = pytest.StashKey[list[dict[str, Any]]]()  # what each worker found


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SLOW], config.stash[PROCESSES], config.stash[GATHERED] = {}, {}, []


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    before = os.times()
    try:
        return (yield)
    finally:
        after = os.times()
        children = after.children_user + after.children_system - before.children_user - before.children_system
        seconds = children + after.user + after.system - before.user - before.system
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
