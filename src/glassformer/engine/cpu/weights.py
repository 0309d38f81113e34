"""Stored tensors as the kernels read them: floats as they are in the mapped file, packed kinds in tiles of 16 rows.

Tiles are written once to a file of the cache, which is mapped instead of the checkpoint from then on, so that nothing is in
memory twice. Its name is a hash of what the checkpoint holds, and it ends in a checksum, compared whenever it is opened. No
number changes, only its place. What the kernels cannot read (rare kinds, rows in another order, transposed matrices) is
converted to floats in the same file.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import math
import mmap
import os
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.checkpoint.content_digest import FOOTER, checksum, content_digest, is_intact
from glassformer.checkpoint.stored_tensors import (
    PLAIN_KINDS,
    Bytes,
    Floats,
    MappedFile,
    StoredTensor,
    TensorFile,
    Transposed,
)  # fmt: skip
from glassformer.engine.cpu.library import (
    ActivationRounding,
    Engine,
    FileKind,
    MatrixKind,
    NativeMatrix,
    dequantize_row,
    packed_kind,
    packed_size,
)  # fmt: skip
from glassformer.engine.cpu.weight_files import WeightFiles
from glassformer.engine.named_weights import NamedWeights, is_packed, row_order
from glassformer.engine.program import MatrixRef, RowRuns
from glassformer.ground.errors import CheckpointError
from glassformer.ground.files import atomic_file, home, remove_abandoned
from glassformer.ground.ownership import ForkSafeLock, Shared

note = logging.getLogger("glassformer").warning
VERSION = 3  # of the tiles' layout
ALIGNMENT = 64  # bytes
DAY = 86_400  # seconds
MatrixKey: TypeAlias = tuple[tuple[str, ...], RowRuns | None]  # the names of its tensors, and which part of them it is


@dataclass(frozen=True)
class ConvertedMatrix:
    """A matrix that cannot be used as it is stored: its size when converted, and how to convert it."""

    kind: MatrixKind
    size: int
    make: Callable[[Bytes], None]
    key: str  # what it is converted from, for the cache's hash


class NativeWeights(NamedWeights[StoredTensor]):
    """The weights in memory: first all matrices are declared (`require`), then each is used (`matrix`, `vector`)."""

    def __init__(self, tensors: Mapping[str, StoredTensor], expected: Mapping[str, tuple[int, ...]], engine: Engine) -> None:
        super().__init__(tensors, expected)
        self._engine = engine
        self._converted: dict[MatrixKey, ConvertedMatrix] = {}
        self._required: set[MatrixKey] = set()
        self._bytes: dict[MatrixKey, Bytes] = {}
        self._cached: list[MappedFile] = []  # files of the cache
        self._arrays: list[npt.NDArray[Any]] = []  # arrays whose addresses native code has
        self._vectors: dict[tuple[str, float, RowRuns | None], int] = {}
        self._derived: dict[Hashable, int] = {}
        self._arrays_of_matrices: dict[tuple[MatrixRef, ...], ctypes.Array[NativeMatrix]] = {}

    # Matrices ---------------------------------------------------------------------------------------------------

    def require(self, matrix: MatrixRef) -> None:
        """Declare that a matrix will be used: one tensor, several stacked, or a part of one."""
        key = matrix.names, matrix.part
        self._required.add(key)
        if key not in self._converted and (converted := self._plan(matrix)) is not None:
            self._converted[key] = converted

    def _plan(self, matrix: MatrixRef) -> ConvertedMatrix | None:
        """How a matrix is converted; None: it can be used as it is stored."""
        parts = self.checked(matrix)
        tensor, part = parts[0], matrix.part
        if is_packed(parts, matrix, FileKind.__members__):
            return self._as_tiles(tensor, matrix)
        floats = tensor.kind in MatrixKind.__members__ and tensor.kind in PLAIN_KINDS
        untransposed = not matrix.transposed or isinstance(tensor.layout, Transposed)
        in_place = (tensor.layout is None or (matrix.transposed and untransposed)) and (
            part is None or (tensor.layout is None and part.contiguous)
        )
        if len(parts) == 1 and floats and untransposed and in_place and tensor.offset % PLAIN_KINDS[tensor.kind] == 0:
            return None
        return self._as_floats(parts, matrix)

    def _as_tiles(self, tensor: StoredTensor, matrix: MatrixRef) -> ConvertedMatrix:
        source, (rows, width) = FileKind[tensor.kind], matrix.shape

        def make(out: Bytes) -> None:
            order = row_order(tensor, matrix.part)
            stored_rows = None if order is None else order.astype(np.int32)
            self._engine.pack(source, np.ascontiguousarray(tensor.bytes), rows, width, stored_rows, out)
            tensor.release()

        key = f"{tensor.name} {tensor.kind} {rows} {width}{_part_key(matrix.part)}"
        return ConvertedMatrix(packed_kind(source), packed_size(source, rows, width), make, key)

    def _as_floats(self, parts: Sequence[StoredTensor], matrix: MatrixRef) -> ConvertedMatrix:
        """Any tensors as rows of floats; sixteen bits stay sixteen bits."""
        part, transposed, shape = matrix.part, matrix.transposed, matrix.shape
        kinds = {tensor.kind for tensor in parts}
        kind = MatrixKind[kinds.pop()] if len(kinds) == 1 and kinds <= {"F16", "BF16"} else MatrixKind.F32
        as_stored = kind is not MatrixKind.F32 and all(tensor.layout is None for tensor in parts)

        def make(out: Bytes) -> None:
            end = 0
            for tensor in parts:
                if as_stored:
                    values = tensor.bytes.view("<u2").reshape(tensor.shape)
                else:
                    values = tensor.to_float32() if kind is MatrixKind.F32 else _rounded(tensor.to_float32(), kind)
                values = values.T if transposed else values
                values = np.ascontiguousarray(values if part is None else values[part.rows])
                out[end : end + values.nbytes] = values.reshape(-1).view(np.uint8)
                end += values.nbytes
                tensor.release()

        size = math.prod(shape) * (4 if kind is MatrixKind.F32 else 2)
        key = f"{parts[0].name} {kind.name} {shape} {transposed} {len(parts)}{_part_key(part)}"
        return ConvertedMatrix(kind, size, make, key)

    def prepare(self) -> list[TensorFile]:
        """Convert what cannot be used as it is stored, or find it in the cache; the files that native code will read."""
        self._convert()
        names = {name for key in self._required for name in key[0] if key not in self._converted}
        return [*(self._tensors[name].file for name in names), *self._cached]

    def _convert(self) -> None:
        pending = {key: converted for key, converted in self._converted.items() if key not in self._bytes}
        for live in (False, True):
            self._convert_part({key: matrix for key, matrix in pending.items() if self._is_live(key) == live}, live)

    def _is_live(self, key: MatrixKey) -> bool:
        return any(getattr(self._tensors[name].file, "live", False) for name in key[0])

    def _convert_part(self, pending: Mapping[MatrixKey, ConvertedMatrix], live: bool) -> None:
        if not pending:
            return
        offsets = np.cumsum([0, *(-(-converted.size // ALIGNMENT) * ALIGNMENT for converted in pending.values())]).tolist()
        if live:
            file_bytes, file = np.empty(offsets[-1], np.uint8), None
            _fill(file_bytes, pending.values(), offsets)
        else:
            file_bytes, file = _cached_file(
                self._key(pending), offsets[-1], lambda into: _fill(into, pending.values(), offsets)
            )
        self._cached += [] if file is None else [file]
        for (key, converted), offset in zip(pending.items(), offsets, strict=False):
            self._bytes[key] = file_bytes[offset : offset + converted.size]

    def _key(self, pending: Mapping[MatrixKey, ConvertedMatrix]) -> str:
        """A hash of what the cached file depends on: what the tensors' files hold, and what they are converted to."""
        digest = hashlib.sha256(f"{VERSION}".encode())
        sources = [self._tensors[name].file for names, _ in pending for name in names]
        for source in {id(file.mapped or file): file for file in sources}.values():
            digest.update(content_digest(source).encode())
        for converted in pending.values():
            digest.update(f"{converted.key} {converted.kind} {converted.size};".encode())
        return digest.hexdigest()[:32]

    def matrices(self, references: Sequence[MatrixRef]) -> int:
        """The address of several matrices after one another: those of a layer's experts, the same for all programs."""
        key = tuple(references)
        if key not in self._arrays_of_matrices:
            matrices = [self.matrix(reference) for reference in references]
            self._arrays_of_matrices[key] = (NativeMatrix * len(matrices))(*matrices)
        return ctypes.addressof(self._arrays_of_matrices[key])

    def matrix(self, matrix: MatrixRef) -> NativeMatrix:
        names, part = key = matrix.names, matrix.part
        place = self._bytes.get(key)
        if place is None:
            stored = self._tensors[names[0]]
            if part is not None:
                stored = stored.rows(range(part.first, part.first + part.runs * part.size))
            place, kind = stored.bytes, MatrixKind[stored.kind]
            self._arrays.append(place)
        else:
            kind = self._converted[key].kind
        bias = self.vector(*matrix.biases, part=part) if matrix.biases else None
        return NativeMatrix(place.ctypes.data, bias, kind, *matrix.shape)

    def is_packed(self, matrix: MatrixRef) -> bool:
        """Whether a matrix lies in tiles."""
        converted = self._converted.get((matrix.names, matrix.part))
        return converted is not None and converted.kind not in (MatrixKind.F32, MatrixKind.F16, MatrixKind.BF16)

    # Vectors ----------------------------------------------------------------------------------------------------

    def vector(self, *names: str, plus: float = 0.0, part: RowRuns | None = None) -> int:
        """The address of a small tensor in float32, or of several after one another; `plus`: an offset."""
        key = (" ".join(names), plus, part)
        if key not in self._vectors:
            values = self.floats(*names, plus=plus)
            self._vectors[key] = self.keep(values if part is None else part.bias(values))
        return self._vectors[key]

    def derived(self, key: Hashable, make: Callable[[], npt.NDArray[np.float32] | npt.NDArray[np.int32]]) -> int:
        """The address of numbers that are made of the weights or the config: once for all layers and programs."""
        if key not in self._derived:
            self._derived[key] = self.keep(make())
        return self._derived[key]

    def keep(self, values: npt.NDArray[np.float32] | npt.NDArray[np.int32]) -> int:
        """The address of an array, which lives as long as the weights."""
        self._arrays.append(np.ascontiguousarray(values))
        return int(self._arrays[-1].ctypes.data)


@dataclass(frozen=True)
class PackedMatrix(Shared):
    """A packed matrix of a model by itself: products with it outside of a program, and their gradients.

    Shapes: inputs (tokens, columns); outputs (tokens, rows).
    """

    native: NativeMatrix
    rounding: ActivationRounding  # of inputs
    engine: Engine
    lock: ForkSafeLock  # of the engine's passes
    files: WeightFiles
    weights: NativeWeights  # in whose memory it lies

    @property
    def shape(self) -> tuple[int, int]:
        return self.native.rows, self.native.columns

    def outputs(self, inputs: Floats) -> Floats:
        """The product with each token's inputs, in the bits of a pass."""
        with self.lock:
            outputs = self.engine.matmul(self.native, self.rounding, np.ascontiguousarray(inputs, np.float32))
        self.files.check_reads()
        return outputs

    def input_gradients(self, gradients: Floats) -> Floats:
        """From the gradients of outputs."""
        with self.lock:
            inputs = self.engine.input_gradients(self.native, np.ascontiguousarray(gradients, np.float32))
        self.files.check_reads()
        return inputs

    def rows(self, indices: Iterable[int]) -> Floats:
        """Some rows as floats, as of a table of embeddings."""
        rows = [dequantize_row(self.native, index) for index in indices]
        self.files.check_reads()
        return np.stack(rows) if rows else np.empty((0, self.native.columns), np.float32)


def _part_key(part: RowRuns | None) -> str:
    return "" if part is None else f" {tuple(part)}"


def _rounded(values: npt.NDArray[np.float32], kind: MatrixKind) -> npt.NDArray[np.uint16]:
    """Values that came from sixteen bits, back in them."""
    if kind is MatrixKind.F16:
        return values.astype("<f2").view("<u2")
    return (np.ascontiguousarray(values).view(np.uint32) >> 16).astype("<u2")


def _fill(into: Bytes, converted: Iterable[ConvertedMatrix], offsets: Sequence[int]) -> None:
    for matrix, offset in zip(converted, offsets, strict=False):
        matrix.make(into[offset : offset + matrix.size])


def _cached_file(key: str, size: int, fill: Callable[[Bytes], None]) -> tuple[Bytes, MappedFile | None]:
    """A file of the cache, mapped; written first if it is not there. Where nothing can be written, memory."""
    path = home() / "tiles" / f"{key}.tiles"
    if (cached := _map_file(path, size)) is not None:
        return cached
    try:
        _write_file(path, size, fill)
        _remove_unused(path.parent)
    except OSError as error:
        reason = getattr(error.__cause__, "strerror", None) or error.strerror or error
        note(f"the packed weights cannot be kept in {path.parent} ({reason}): each start makes them in memory.")
    else:
        if (converted := _map_file(path, size)) is not None:
            return converted
    array = np.empty(size, np.uint8)
    fill(array)
    return array, None


def _write_file(path: Path, size: int, fill: Callable[[Bytes], None]) -> None:
    """Write a file, and its checksum at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path, mode=0o600) as part, part.open("r+b") as file:
        total = size + FOOTER
        os.posix_fallocate(file.fileno(), 0, total) if hasattr(os, "posix_fallocate") else file.truncate(total)
        buffer = mmap.mmap(file.fileno(), total)
        fill(np.frombuffer(buffer, np.uint8, size))
        buffer[size:] = checksum(np.frombuffer(buffer, np.uint8, size))
        buffer.close()


def _map_file(path: Path, size: int) -> tuple[Bytes, MappedFile] | None:
    """A file of the cache, unless it is not there, cut short or damaged."""
    try:
        file = MappedFile(path)
    except CheckpointError:
        return None
    if len(file) != size + FOOTER or not is_intact(file):
        note(f"{path}: damaged; the packed weights are made anew.")
        return None
    if file.status.st_atime < time.time() - DAY:
        with suppress(OSError):
            os.utime(path, ns=(time.time_ns(), file.status.st_mtime_ns))  # in use: not to be removed
    return np.frombuffer(file.buffer, np.uint8, size), file


def _remove_unused(folder: Path) -> None:
    """Remove files unused for a month, and what killed processes have left."""
    remove_abandoned(folder, ".*")
    for path in folder.glob("*.tiles"):
        with suppress(OSError):
            status = path.stat()
            if max(status.st_atime, status.st_mtime) < time.time() - 30 * DAY:
                path.unlink()
