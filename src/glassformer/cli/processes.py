"""Which `glass` processes hold which models now: each notes its own in a file that it keeps locked while it lives."""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, where only the process's number tells
    fcntl = None  # type: ignore[assignment]


@dataclass(frozen=True)
class ModelProcess:
    """A process with a model; one with several is listed for each."""

    pid: int
    command: str  # as `glass run`
    model: str
    started: float  # when it was loaded, in seconds since 1970


class _Note:
    """This process's file, kept open: what closes it, or takes another lock on it, would give up the lock."""

    def __init__(self) -> None:
        self.models: dict[str, float] = {}  # by name, when each was loaded
        self._descriptor: int | None = None
        self._pid = 0  # of the process that opened it; a fork has its own
        self._lock = threading.Lock()

    def set(self, names: Iterable[str]) -> None:
        with self._lock:
            self.models = {name: self.models.get(name, time.time()) for name in names}
            with suppress(OSError):
                self._write()

    def _write(self) -> None:
        if self._descriptor is None or self._pid != os.getpid():
            path = _folder() / f"{os.getpid()}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)  # closed, and unlocked, with the process
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._descriptor, self._pid = descriptor, os.getpid()
            atexit.register(path.unlink, missing_ok=True)
        command = " ".join(["glass", *sys.argv[1:2]])
        held = [asdict(ModelProcess(self._pid, command, name, started)) for name, started in self.models.items()]
        data = json.dumps(held).encode()
        os.pwrite(self._descriptor, data, 0) if hasattr(os, "pwrite") else _write_at_start(self._descriptor, data)
        os.ftruncate(self._descriptor, len(data))


def _write_at_start(descriptor: int, data: bytes) -> None:
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, data)


_NOTE = _Note()


def note_model(name: str) -> None:
    """Note that this process holds a further model; without a place to note it, it goes unnoted."""
    _NOTE.set([*_NOTE.models, name])


def note_models(names: Iterable[str]) -> None:
    """Note which models this process holds, and no others."""
    _NOTE.set(names)


def model_processes() -> list[ModelProcess]:
    """Those that live, the oldest first; what others left behind is removed."""
    return sorted(_living(), key=lambda process: process.started)


def _living() -> Iterator[ModelProcess]:
    for path in _folder().glob("*.json"):
        with suppress(OSError, ValueError, TypeError):
            if _is_held(path):
                yield from [ModelProcess(**held) for held in json.loads(path.read_text("utf-8"))]
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
    from glassformer.ground.files import home

    return home() / "running"
