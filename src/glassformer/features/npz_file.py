"""Arrays out of an .npz file, as Gemma Scope is published: no pickle is read, and every size is checked before its array.

https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import io
import math
import os
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from glassformer.errors import CheckpointError
from glassformer.regular_files import open_regular

MAX_RATIO = 50  # of bytes unpacked to bytes of the file: numbers hardly shrink
LEAST_ROOM = 1 << 24  # bytes that a small file may unpack to whatever its size
MAX_ARRAYS = 64


def read_npz(path: Path) -> dict[str, npt.NDArray[np.float32]]:
    """The arrays of real numbers, as float32, by name."""
    descriptor = open_regular(path)
    try:
        with os.fdopen(descriptor, "rb") as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            room = max(LEAST_ROOM, MAX_RATIO * path.stat().st_size)
            if len(members) > MAX_ARRAYS or sum(member.file_size for member in members) > room:
                raise CheckpointError(f"{path}: would unpack to more than such a file can hold. It is not opened.")
            return {member.filename.removesuffix(".npy"): _array(archive, member, path) for member in members}
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: damaged, or no .npz file ({error}). Fetch it again.") from error


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> npt.NDArray[np.float32]:
    data = archive.read(member)
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of {member.filename}")
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read_header(stream)
    if dtype.kind not in "fiu" or any(size < 0 for size in shape):
        raise CheckpointError(f"{path}: {member.filename!r} holds {dtype}, and no numbers. It is not opened.")
    if math.prod(shape) * dtype.itemsize != len(data) - stream.tell():
        raise CheckpointError(f"{path}: {member.filename!r} is cut short or damaged. Fetch it again.")
    values = np.frombuffer(data, dtype, offset=stream.tell()).astype(np.float32)
    return values.reshape(shape, order="F" if fortran else "C")
