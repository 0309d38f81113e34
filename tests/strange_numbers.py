"""Numbers that no honest file has, and a process with little memory and time to try them in."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from glassformer.ground.errors import GlassError

STRANGE: tuple[Any, ...] = (
    0, -1, 2**31, 2**32 + 1, 2**63, 10**30, 10**400, math.nan, math.inf, -math.inf, -1.0, 1e300, True, "8", [], {},
    [2**63],
)  # fmt: skip
STATM = Path("/proc/self/statm")
MEMORY = 512 << 20  # bytes, beside what the process has at its start
SECONDS = 60


def limited(work: Callable[[], list[str]]) -> list[str]:
    """What `work` returns, in a process that has little memory and time, where processes fork."""
    if not hasattr(os, "fork"):
        return work()
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def child() -> None:
        import resource

        if STATM.exists():
            limit = int(STATM.read_text().split()[0]) * resource.getpagesize() + MEMORY
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        signal.alarm(SECONDS)
        sender.send(work())

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    sender.close()
    try:
        result: list[str] = receiver.recv()
    except EOFError:
        pytest.fail("the process ran out of memory or time")
    finally:
        process.join()
    return result


def failures(cases: Iterator[tuple[str, Callable[[], object]]]) -> list[str]:
    """The cases that end with another error than one of ours."""
    failed = []
    for case, work in cases:
        try:
            work()
        except GlassError:
            pass
        except Exception as error:
            failed.append(f"{case}: {type(error).__name__}: {error}"[:200])
    return failed
