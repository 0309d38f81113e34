"""Arrays out of an .npz file, as Gemma Scope is published: no pickle is read, and every size is checked before its array.

https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import ast
import io
import math
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.ground.errors import CheckpointError, reason_of, shortened
from glassformer.ground.files import open_regular
from glassformer.ground.typecheck import brief

MAX_RATIO = 50  # of bytes unpacked to bytes of the file: numbers hardly shrink
LEAST_ROOM = 1 << 24  # bytes that a small file may unpack to whatever its size
MAX_ARRAYS = 64
MAX_HEADER = 10_000  # bytes


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
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: damaged, or no .npz file ({reason_of(error)}). Fetch it again.") from error


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> npt.NDArray[np.float32]:
    data = archive.read(member)
    stream = io.BytesIO(data)
    shape, fortran, dtype = _header(stream)
    if dtype.kind not in "fiu" or any(size < 0 for size in shape):
        kind = shortened(str(dtype), 60)
        raise CheckpointError(f"{path}: {brief(member.filename)} holds {kind}, and no numbers. It is not opened.")
    if math.prod(shape) * dtype.itemsize != len(data) - stream.tell():
        raise CheckpointError(f"{path}: {brief(member.filename)} is cut short or damaged. Fetch it again.")
    values = np.frombuffer(data, dtype, offset=stream.tell()).astype(np.float32)
    return values.reshape(shape, order="F" if fortran else "C")


def _header(stream: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """An array's shape, whether its columns lie together, and its type; numpy would read headers of Python 2, and warn."""
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of its format")
    length = int.from_bytes(stream.read(2 if version == (1, 0) else 4), "little")
    try:
        fields = ast.literal_eval(stream.read(min(length, MAX_HEADER)).decode("latin-1").strip())
        shape, fortran, dtype = fields["shape"], fields["fortran_order"], np.dtype(fields["descr"])
        if not isinstance(fortran, bool) or not isinstance(shape, tuple) or not all(type(size) is int for size in shape):
            raise TypeError("its shape or its order")
    except (SyntaxError, KeyError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError("a header that is none") from error
    return shape, fortran, dtype
