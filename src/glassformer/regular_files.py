"""Files of a checkpoint, opened for reading. A folder, a pipe or a device in the place of one is refused, not waited for."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from glassformer.errors import CheckpointError

FETCH_AGAIN = "Fetch or copy the checkpoint again."


def open_regular(path: Path, advice: str = FETCH_AGAIN) -> int:
    """The descriptor of a file that is open for reading; `advice`: what to do when it is missing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError as error:
        target = f"it is a link to {path.readlink()}, which is not there" if path.is_symlink() else "the file is missing"
        raise CheckpointError(f"{path}: {target}. {advice}") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}. Check the path and its permissions.") from error
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    kind = "folder" if stat.S_ISDIR(mode) else "pipe or a device"
    raise CheckpointError(f"{path}: is a {kind}, and a file is needed. Give the path of one.")


def read_regular(path: Path) -> bytes:
    """All bytes of a file."""
    with os.fdopen(open_regular(path), "rb") as file:
        try:
            return file.read()
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}. Fetch or copy it again.") from error
