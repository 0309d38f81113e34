"""A lock that a forked process never inherits held.

Only the thread that forks lives on in the child. A lock that another thread held at that moment would be held there for
ever, over data that were half changed. So a fork waits until nobody holds one of these locks: it happens between two passes,
and the child has whole executors, free to use. (`subprocess` starts programs without any of this.)
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from _thread import RLock
from typing import Any, BinaryIO, Self
from weakref import WeakSet

from glassformer.ground.ownership import NotCopied

_locks: WeakSet[ForkSafeLock] = WeakSet()
_registry = threading.Lock()
_held_for_fork: list[ForkSafeLock] = []


class ForkSafeLock(NotCopied, RLock):  # type: ignore[misc]  # its `with` is native code: no signal comes between its end and the release
    """A mutual exclusion of threads. `outer`: it is held while others of these are taken, so a fork takes it before them."""

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        return super().__new__(cls)

    def __init__(self, outer: bool = False) -> None:
        self.outer = outer
        with _registry:
            _locks.add(self)


def _acquire_all() -> None:
    _registry.acquire()  # no lock is made meanwhile
    for lock in sorted(_locks, key=lambda lock: not lock.outer):
        lock.acquire()  # a thread that forks inside its own pass holds it in both processes, and takes it once more
        _held_for_fork.append(lock)


def _release_all() -> None:
    while _held_for_fork:
        _held_for_fork.pop().release()
    _registry.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_acquire_all, after_in_parent=_release_all, after_in_child=_release_all)


def try_lock(file: BinaryIO) -> bool:
    """Whether the file could be locked. On a file system without locks it always can."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
    return True
