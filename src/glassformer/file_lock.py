"""A file as a lock between processes; the system releases it when its process ends, in whatever way."""

from __future__ import annotations

import errno
import sys
from typing import BinaryIO


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
