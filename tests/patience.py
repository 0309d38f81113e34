"""How long a test waits for an event before it gives up: longer, the slower the machine is now.

A limit says how long the event may take on a quiet machine. No test waits for a limit: it ends what would never end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

QUIET_START = 0.2  # seconds in which a quiet machine starts a small Python process
MARGIN = 3  # a machine that is quiet when a test begins may be busy before it ends


@cache
def _start_slowness() -> float:
    """How many times longer than on a quiet machine a process took to start, when this was first asked."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-I", "-S", "-c", "import asyncio"], check=True)
    return (time.monotonic() - began) / QUIET_START


def _load() -> float:
    """How many threads want each core: over the last minute, or at this moment where the system says it."""
    wanting = 0.0
    with suppress(AttributeError, OSError):  # Windows counts no such thing
        wanting = os.getloadavg()[0]
    with suppress(OSError):
        wanting = max(wanting, int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]))
    return wanting / (os.cpu_count() or 1)


def slowness() -> float:
    """How many times longer than on a quiet machine things take now; at least 1."""
    return max(1.0, _start_slowness(), _load())


def patience(seconds: float) -> float:
    """The limit for what takes a quiet machine so many seconds at most."""
    return seconds * MARGIN * slowness()


def wait_until(condition: Callable[[], object], seconds: float = 30, pause: float = 0.01) -> None:
    """Wait for a condition that nothing announces."""
    end = time.monotonic() + patience(seconds)
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(pause)


RAY_LIMITS = {  # Ray's own, as it reads them from the environment
    "RAY_gcs_server_port_wait_time_s": str(round(patience(30))),
    "RAY_gcs_server_request_timeout_seconds": str(round(patience(60))),
    "RAY_worker_register_timeout_seconds": str(round(patience(60))),
    "RAY_agent_register_timeout_ms": str(round(1000 * patience(100))),
    "RAY_health_check_timeout_ms": str(round(1000 * patience(10))),
}
