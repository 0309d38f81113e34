"""How many threads a model runs on: as many as are asked for, or else as many as are fastest on this machine.

More threads are not always faster: decoding waits for memory, which a part of the cores can use up; hyper-threads and small
cores may help or hinder. So the first model that runs on a machine measures it, which takes about a second, and the result
is kept in the cache for this processor, these cores, this quota and this library. While other programs use the processors it
would say more about them than about the machine: then it is one thread per core, and measured again on another day. Nothing
is measured where there is one core, or where the result could not be kept.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from glassformer.engine.cpu.cores import Processors, available
from glassformer.engine.cpu.library import Engine, chosen_level, library, pinning_requested, requested_threads
from glassformer.engine.cpu.thread_bench import DecodeSpeeds, decode_speeds
from glassformer.ground.errors import WriteError
from glassformer.ground.files import home, write_text
from glassformer.ground.ownership import try_lock

VERSION = 1  # of the measurement
TOLERANCE = 0.03  # of the best speed: what fewer threads may lose
MAX_WAIT = 10.0  # seconds for another process that measures
DAY = 86_400  # seconds
note = logging.getLogger("glassformer").warning


@dataclass(frozen=True)
class ThreadCount:
    threads: int
    reason: str  # for this count


def fastest_engine() -> Engine:
    """An engine with the number of threads that models run on."""
    return Engine(threads=chosen_threads().threads)


def chosen_threads() -> ThreadCount:
    """How many threads models run on; measured now, if nobody asks for a number and none is kept."""
    if (requested := requested_threads()) is not None:
        return ThreadCount(requested[0], f"{requested[1]} is set")
    processors = available()
    if processors.max_threads == 1:
        return ThreadCount(1, "no more may be used")
    path = kept_path(processors)
    if (kept := _read(path, processors)) is not None:
        return kept
    if len(processors.cores) == 1:
        return ThreadCount(processors.default_threads, "there is one core")
    return _measure_once(path, processors) or ThreadCount(processors.default_threads, "one per core, not measured")


def measure_anew(processors: Processors) -> tuple[DecodeSpeeds, Path | None]:
    """Measure in any case; the speeds, and where they are kept."""
    with _measuring_lock(home()):
        speeds = decode_speeds(processors.thread_counts())
        return speeds, keep(speeds, processors)


def fewest_of_fastest(speeds: Mapping[int, float]) -> int:
    """The smallest number of threads whose speed is almost the best."""
    best = max(speeds.values())
    return min(count for count, speed in speeds.items() if speed >= (1 - TOLERANCE) * best)


def choose(speeds: DecodeSpeeds, processors: Processors) -> ThreadCount:
    """The number of threads that follows from a measurement."""
    if speeds.disturbed:
        return ThreadCount(processors.default_threads, "one per core, because other programs disturbed the measurement")
    fastest = fewest_of_fastest(speeds.tokens_per_second)
    return ThreadCount(fastest, f"measured: the fewest within {TOLERANCE:.0%} of the fastest")


def keep(speeds: DecodeSpeeds, processors: Processors) -> Path | None:
    """Keep a measurement for later starts; where, or None if it cannot be written."""
    path, choice = kept_path(processors), choose(speeds, processors)
    tokens_per_second = {str(count): round(speed, 2) for count, speed in speeds.tokens_per_second.items()}
    result = {"threads": choice.threads, "reason": choice.reason, "tokens_per_second": tokens_per_second}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps({**result, "expires": time.time() + DAY if speeds.disturbed else None}))
    except (OSError, WriteError):
        return None
    _remove_old(path.parent)
    return path


def kept_path(processors: Processors) -> Path:
    """Where the measurement is kept; its name is a hash of what it depends on."""
    native = Path(library()._name)  # a library that is built here has a hash of its sources in its name
    parts = (
        VERSION, processors.name, processors.allowed, processors.quota, native.name, native.stat().st_size,
        chosen_level(), pinning_requested(),
    )  # fmt: skip
    return home() / f"threads-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}.json"


def _read(path: Path, processors: Processors) -> ThreadCount | None:
    """The number of threads that is kept; None if there is none, it has expired, or the file is damaged."""
    with suppress(OSError, ValueError, RecursionError, TypeError, KeyError):
        kept = json.loads(path.read_text("utf-8"))
        threads, reason, expires = kept["threads"], kept["reason"], kept["expires"]
        expired = expires is not None and not time.time() < expires <= time.time() + DAY
        if type(threads) is int and isinstance(reason, str) and 1 <= threads <= processors.max_threads and not expired:
            return ThreadCount(threads, reason)
    return None


def _measure_once(path: Path, processors: Processors) -> ThreadCount | None:
    """Measure and keep, unless another process has done so meanwhile; None where nothing could be kept or measured."""
    with _measuring_lock(path.parent) as locked:
        if not locked:
            return None
        if (kept := _read(path, processors)) is not None:
            return kept
        note("measuring how many threads are fastest here, once: about 1 s")
        with suppress(MemoryError):
            speeds = decode_speeds(processors.thread_counts())
            keep(speeds, processors)
            return choose(speeds, processors)
    return None


@contextmanager
def _measuring_lock(folder: Path) -> Iterator[bool]:
    """One process measures at a time, since two would spoil each other's result; yields whether it is this one's turn."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "threads.lock").open("wb")
    except OSError:
        yield False
        return
    with lock:
        yield _wait_for(lock)


def _wait_for(lock: BinaryIO) -> bool:
    """Whether the lock could be taken in time."""
    deadline = time.monotonic() + MAX_WAIT
    while not try_lock(lock):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _remove_old(folder: Path) -> None:
    """Remove measurements of a month ago: of libraries, quotas or processors that are gone, or else made again."""
    for path in folder.glob("threads-*.json"):
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - 30 * DAY:
                path.unlink()
