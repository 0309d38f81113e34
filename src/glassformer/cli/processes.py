"""Which `glass` processes hold a model now: each notes its own in a file that it keeps locked for as long as it lives."""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, where only the process's number tells
    fcntl = None  # type: ignore[assignment]


@dataclass(frozen=True)
class ModelProcess:
    """A process with a model."""

    pid: int
    command: str  # as `glass run`
    model: str
    started: float  # seconds since 1970


def note_model(name: str) -> None:
    """Note that this process holds a model; without a place to note it, it goes unnoted."""
    path = _folder() / f"{os.getpid()}.json"
    about = ModelProcess(os.getpid(), " ".join(["glass", *sys.argv[1:2]]), name, time.time())
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)  # closed, and unlocked, with the process
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, json.dumps(asdict(about)).encode())
        atexit.register(path.unlink, missing_ok=True)


def model_processes() -> list[ModelProcess]:
    """Those that live, the oldest first; what others left behind is removed."""
    return sorted(_living(), key=lambda process: process.started)


def _living() -> Iterator[ModelProcess]:
    for path in _folder().glob("*.json"):
        with suppress(OSError, ValueError, TypeError):
            if _is_held(path):
                yield ModelProcess(**json.loads(path.read_text("utf-8")))
            else:
                path.unlink(missing_ok=True)


def _is_held(path: Path) -> bool:
    """Whether the process that wrote the file lives."""
    if path.stem == str(os.getpid()):
        return True
    if fcntl is None:
        return True
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _folder() -> Path:
    from glassformer.checkpoint.locate import home

    return home() / "running"
