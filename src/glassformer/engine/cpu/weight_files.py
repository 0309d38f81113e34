"""The files that a model's weights are mapped from, watched while it runs.

Before and after each pass, size and time of each file are compared with what they were when it was mapped. So a model whose
file was truncated or rewritten raises an error, before the next pass reads anything of it or, if that happened during
a pass, in place of its results. Pages that a file loses while they are being read are replaced by zeros
(`native/mapping_guard.h`), so that the process lives to raise that error.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from glassformer.checkpoint.stored_tensors import MappedFile, TensorFile
from glassformer.engine.cpu.library import library
from glassformer.ground.errors import CheckpointError, ExecutorError

WeightFile: TypeAlias = TensorFile


@dataclass(frozen=True)
class Mapping:
    """Some bytes of a file in memory."""

    file: MappedFile
    begin: int  # addresses
    end: int
    guard: int  # native code's index of what it guards; -1: it does not guard these


class WeightFiles:
    """All files that a model reads while it runs."""

    def __init__(self, files: Iterable[WeightFile] = (), build: bool = True) -> None:
        """`build`: whether the native library may be built for this, if it is not there."""
        buffers = {id(file.buffer): file for file in files if file.mapped is not None}
        self._native = library() if buffers and (build or _is_built()) else None
        self.mappings = [self._guarded(file) for file in buffers.values()]
        self.files = list(dict.fromkeys(mapping.file for mapping in self.mappings))

    def _guarded(self, file: WeightFile) -> Mapping:
        assert file.mapped is not None
        buffer = np.frombuffer(file.buffer, np.uint8)
        begin, guard = int(buffer.ctypes.data), -1
        if self._native is not None:
            guard = self._native.glass_guard_mapping(begin, buffer.size)
        if self._native is not None and guard >= 0:
            weakref.finalize(file.buffer, self._native.glass_unguard_mapping, guard)
        return Mapping(file.mapped, begin, begin + buffer.size, guard)

    def check(self) -> None:
        """Refuse to go on with a file that has changed."""
        for file in self.files:
            file.check()

    def check_reads(self) -> None:
        """As `check`, after something was read."""
        self.check()
        if self._native is None or not self._native.glass_mapping_faults(-1):
            return
        for mapping in self.mappings:
            if mapping.guard >= 0 and self._native.glass_mapping_faults(mapping.guard):
                raise CheckpointError(
                    f"{mapping.file.path}: some of it could not be read: it was cut short while it was in use, or its disk "
                    "has failed. Check the file, and load the model again."
                )

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Around a pass: nothing is read from a file that has changed, and no result made from one is returned."""
        self.check()
        yield
        self.check_reads()


def _is_built() -> bool:
    """Whether the library is loaded, or can be without building it."""
    from glassformer.engine.cpu import build

    if library.cache_info().currsize:
        return True
    try:
        if not os.environ.get("GLASS_LIBRARY") and build.find_library() is None:
            return False
        library()
    except (ExecutorError, OSError):
        return False
    return True
