"""Objects that own something outside of Python: native memory, a descriptor, processes, or the lock around them.

What they own is released once. A copy would release it again, or use it afterwards, and in another process it means nothing.
So `copy`, `deepcopy` and `pickle`, which all ask for `__reduce_ex__`, get an error, or the object itself where sharing it is
safe. Nor does anything here release by reading attributes, which half-made objects lack and copied ones have twice: that is
left to a `weakref.finalize` of the one object that acquired it.

`ForkSafeLock`: a forked process never inherits one held. Only the thread that forks lives on in the child. A lock that
another thread held at that moment would be held there for ever, over data that were half changed. So a fork waits until
nobody holds one of these locks: it happens between two passes, and the child has whole executors, free to use. (`subprocess`
starts programs without any of this.)
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from _thread import RLock
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Never, Self, SupportsIndex
from weakref import WeakSet

from glassformer.ground.errors import CopyError


class NotCopied:
    """A mixin for what owns something, and changes: it cannot be copied or pickled."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> Never:
        raise CopyError(
            f"a {type(self).__name__} belongs to this process and cannot be copied or pickled: use the same one, or load "
            "the model again where it is needed."
        )


class Shared(NotCopied):
    """A mixin for what owns something, and can be used by many: its copy is the object itself. It cannot be pickled."""

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


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


_stack_size = ForkSafeLock()


@contextmanager
def stack_size(size: int) -> Iterator[None]:
    """Threads that start inside have a stack of `size` bytes. The size is the process's, so one block at a time sets it."""
    with _stack_size:
        usual = threading.stack_size(size)
        try:
            yield
        finally:
            threading.stack_size(usual)
