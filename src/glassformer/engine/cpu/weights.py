"""Stored tensors as the kernels like them: floats as they lie in the mapped file, packed kinds in tiles of 16 rows.

Tiles are made once and kept in a file of the cache, which is mapped instead of the checkpoint from then on: nothing is held
twice. No number changes, only its place. What the kernels do not know (rare kinds, rows in another order, columns) is
turned into what they do know, in the same file.
"""

from __future__ import annotations

import hashlib
import logging
import math
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from glassformer.checkpoint.dequantization import block_size
from glassformer.checkpoint.locate import home
from glassformer.checkpoint.stored_tensors import PLAIN_KINDS, InterleavedPairs, StoredTensor, Transposed
from glassformer.checkpoint.tensor_names import resolve_names
from glassformer.engine.cpu.library import Engine, FileKind, MatrixKind, NativeMatrix, packed_kind, packed_size
from glassformer.errors import CheckpointError

note = logging.getLogger("glassformer").warning
VERSION = 2  # of the tiles' layout
ALIGNED = 64  # bytes
DAY = 86_400  # seconds
SILENT = ("final_logits_bias",)  # zeros where a file lacks them
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ConvertedMatrix:
    """A matrix that cannot be used as it lies in its file: its size when made, and how to make it."""

    kind: MatrixKind
    size: int
    make: Callable[[Bytes], None]
    key: str  # what it is made of, in words


class NativeWeights:
    """The weights of one model: asked for by name, first all of them (`expect`), then each (`matrix`, `vector`).

    `expected` is what the config makes of each: native code reads so many numbers and looks no further, so what a file has
    in another shape is refused here, before anything of it is used.
    """

    def __init__(self, tensors: Mapping[str, StoredTensor], expected: Mapping[str, tuple[int, ...]], engine: Engine) -> None:
        self._tensors = resolve_names(tensors, tuple(expected))
        self._shapes = expected
        self._engine = engine
        self._made: dict[tuple[str, ...], ConvertedMatrix] = {}
        self._places: dict[tuple[str, ...], Bytes] = {}
        self._kept: list[npt.NDArray[np.float32]] = []  # vectors, alive as long as this is
        self._vectors: dict[tuple[str, float], int] = {}
        for name in expected:
            if name in self._tensors or name not in SILENT:
                self.stored(name)

    def stored(self, name: str) -> StoredTensor:
        found, shape = self._tensors.get(name), self._shapes[name]
        if found is None:
            raise CheckpointError(f"the weights lack {name}. Is this the config of these weights?")
        if found.shape != shape:
            raise CheckpointError(
                f"{found.file.path}: tensor {found.name!r} has shape {found.shape}, but the config makes {name!r} "
                f"{shape}. Is this the config of these weights?"
            )
        return found

    @property
    def kinds(self) -> set[str]:
        return {one.kind for one in self._tensors.values()}

    # Matrices ---------------------------------------------------------------------------------------------------

    def expect(self, names: tuple[str, ...], shape: tuple[int, int], columns: bool = False) -> None:
        """Say that a matrix will be asked for: one tensor, or several on top of each other."""
        parts = [self.stored(name) for name in names]
        if names not in self._made and (made := self._plan(parts, shape, columns)) is not None:
            self._made[names] = made

    def _plan(self, parts: Sequence[StoredTensor], shape: tuple[int, int], columns: bool) -> ConvertedMatrix | None:
        for one in parts:
            _check_size(one)
        one, (rows, width) = parts[0], shape
        order = one.layout.rows(rows).astype(np.int32) if isinstance(one.layout, InterleavedPairs) else None
        turned = columns and not isinstance(one.layout, Transposed)  # it lies across, in the file too
        if len(parts) == 1 and one.kind in FileKind.__members__ and not turned and width % block_size(one.kind)[0] == 0:
            return self._tiles(one, rows, width, order)
        floats = one.kind in MatrixKind.__members__ and one.kind in PLAIN_KINDS
        if len(parts) == 1 and floats and not turned and order is None and one.offset % PLAIN_KINDS[one.kind] == 0:
            return None  # as it lies
        return self._floats(parts, shape, columns)

    def _tiles(self, one: StoredTensor, rows: int, width: int, order: npt.NDArray[np.int32] | None) -> ConvertedMatrix:
        source = FileKind[one.kind]

        def make(out: Bytes) -> None:
            self._engine.pack(source, np.ascontiguousarray(one.bytes), rows, width, order, out)
            one.release()

        return ConvertedMatrix(
            packed_kind(source), packed_size(source, rows, width), make, f"{one.name} {one.kind} {rows} {width}"
        )

    def _floats(self, parts: Sequence[StoredTensor], shape: tuple[int, int], columns: bool) -> ConvertedMatrix:
        """Whatever it is, as rows of floats; sixteen bits stay sixteen bits."""
        kinds = {one.kind for one in parts}
        kind = MatrixKind[kinds.pop()] if len(kinds) == 1 and kinds <= {"F16", "BF16"} else MatrixKind.F32
        as_stored = kind is not MatrixKind.F32 and all(one.layout is None for one in parts)

        def make(out: Bytes) -> None:
            made = 0
            for one in parts:
                if as_stored:
                    values = one.bytes.view("<u2").reshape(one.shape)
                else:
                    values = one.to_float32() if kind is MatrixKind.F32 else _rounded(one.to_float32(), kind)
                values = np.ascontiguousarray(values.T if columns else values)
                out[made : made + values.nbytes] = values.reshape(-1).view(np.uint8)
                made += values.nbytes
                one.release()

        size = math.prod(shape) * (4 if kind is MatrixKind.F32 else 2)
        return ConvertedMatrix(kind, size, make, f"{parts[0].name} {kind.name} {shape} {columns} {len(parts)}")

    def prepare(self) -> None:
        """Make, or find in the cache, what cannot be used as it lies."""
        wanted = {names: made for names, made in self._made.items() if names not in self._places}
        offsets = np.cumsum([0, *(-(-made.size // ALIGNED) * ALIGNED for made in wanted.values())]).tolist()
        if not wanted:
            return
        held = _cached(self._key(wanted), offsets[-1], lambda into: _fill(into, wanted.values(), offsets))
        for (names, made), offset in zip(wanted.items(), offsets, strict=False):
            self._places[names] = held[offset : offset + made.size]

    def _key(self, wanted: Mapping[tuple[str, ...], ConvertedMatrix]) -> str:
        """What the cached file depends on: the files that the tensors come from, and what becomes of them."""
        digest = hashlib.sha256(f"{VERSION}".encode())
        for path in sorted({self._tensors[name].file.path for names in wanted for name in names}):
            about = path.stat()
            digest.update(f"{path.resolve()} {about.st_size} {about.st_mtime_ns}".encode())
        for made in wanted.values():
            digest.update(f"{made.key} {made.kind} {made.size};".encode())
        return digest.hexdigest()[:32]

    def matrix(self, names: tuple[str, ...], shape: tuple[int, int], bias: str | None = None) -> NativeMatrix:
        place = self._places.get(names)
        if place is None:
            stored = self._tensors[names[0]]
            place, kind = stored.bytes, MatrixKind[stored.kind]
        else:
            kind = self._made[names].kind
        return NativeMatrix(place.ctypes.data, None if bias is None else self.vector(bias), kind, *shape)

    # Vectors ----------------------------------------------------------------------------------------------------

    def vector(self, *names: str, plus: float = 0.0) -> int:
        """The address of a small tensor in float32, or of several after one another; some norms count from one."""
        key = (" ".join(names), plus)
        if key not in self._vectors:
            self._vectors[key] = self.keep(np.concatenate([self._floating(name) for name in names]) + np.float32(plus))
        return self._vectors[key]

    def _floating(self, name: str) -> npt.NDArray[np.float32]:
        if name in SILENT and name not in self._tensors:
            return np.zeros(math.prod(self._shapes[name]), np.float32)
        return self.stored(name).to_float32().reshape(-1)

    def keep(self, values: npt.NDArray[np.float32]) -> int:
        """Hold an array for as long as the weights live; its address."""
        self._kept.append(np.ascontiguousarray(values, np.float32))
        return int(self._kept[-1].ctypes.data)


def _check_size(one: StoredTensor) -> None:
    """Refuse a tensor of fewer or more bytes than its kind and shape make: native code counts on it."""
    elements, size = (1, PLAIN_KINDS[one.kind]) if one.kind in PLAIN_KINDS else block_size(one.kind)
    if one.elements % elements or one.size != one.elements // elements * size:
        raise CheckpointError(
            f"{one.file.path}: tensor {one.name!r} has {one.size} bytes, which do not make {one.kind} of shape {one.shape}. "
            "Fetch the file again."
        )


def _rounded(values: npt.NDArray[np.float32], kind: MatrixKind) -> npt.NDArray[np.uint16]:
    """Values that came from sixteen bits, back in them."""
    if kind is MatrixKind.F16:
        return values.astype("<f2").view("<u2")
    return (np.ascontiguousarray(values).view(np.uint32) >> 16).astype("<u2")


def _fill(into: Bytes, made: Iterable[ConvertedMatrix], offsets: Sequence[int]) -> None:
    for one, offset in zip(made, offsets, strict=False):
        one.make(into[offset : offset + one.size])


def _cached(key: str, size: int, fill: Callable[[Bytes], None]) -> Bytes:
    """A file of the cache, mapped; made first if it is not there. Where nothing can be written, memory."""
    path = home() / "tiles" / f"{key}.tiles"
    if (found := _mapped(path, size)) is not None:
        return found
    try:
        _make(path, size, fill)
        _sweep(path.parent)
    except OSError as error:
        note(f"the packed weights cannot be kept in {path.parent} ({error.strerror}): each start makes them in memory.")
    else:
        if (made := _mapped(path, size)) is not None:
            return made
    array = np.empty(size, np.uint8)
    fill(array)
    return array


def _make(path: Path, size: int, fill: Callable[[Bytes], None]) -> None:
    """Write a file that appears under its name whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".making-")
    try:
        with os.fdopen(descriptor, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, size) if hasattr(os, "posix_fallocate") else file.truncate(size)
            buffer = mmap.mmap(file.fileno(), size)
            fill(np.frombuffer(buffer, np.uint8))
            buffer.close()
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


def _mapped(path: Path, size: int) -> Bytes | None:
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            if about.st_size != size:
                return None
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError:
        return None
    if about.st_mtime < time.time() - DAY:
        with suppress(OSError):
            os.utime(path)  # it is used: keep it for another while
    return np.frombuffer(buffer, np.uint8)


def _sweep(folder: Path) -> None:
    """Remove what nobody has used for a month, and what makers that were killed have left."""
    for pattern, days in (("*.tiles", 30), (".making-*", 1)):
        for path in folder.glob(pattern):
            with suppress(OSError):
                if path.stat().st_mtime < time.time() - days * DAY:
                    path.unlink()
