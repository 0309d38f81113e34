"""Stored tensors: where the bytes lie in a mapped file, of which kind and shape.

Nothing is read until it is needed, and then the operating system pages in just that part. Mappings are private
(copy on write), so a tensor may be changed in memory and the file never is.
"""

from __future__ import annotations

import math
import mmap
import os
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.checkpoint.gguf_kinds import dequantize
from glassformer.ground.errors import CheckpointError
from glassformer.ground.files import FETCH_AGAIN, open_regular
from glassformer.ground.ownership import Shared

Floats: TypeAlias = npt.NDArray[np.float32]
Bytes: TypeAlias = npt.NDArray[np.uint8]
MAX_READ = 1 << 30  # bytes of one call: systems read at most 2 GB


class MappedFile(Shared):
    """A file mapped into memory, once; the mapping lives as long as any tensor that looks into it.

    What is mapped follows the file: a byte that is changed there changes here, and reading what was cut off ends the
    process. So the file stays open, and `check` compares its size and time with what they were; that takes about a
    microsecond.
    """

    def __init__(self, path: Path, advice: str = FETCH_AGAIN) -> None:
        self.path = path
        self._descriptor = open_regular(path, advice)
        weakref.finalize(self, os.close, self._descriptor)
        self.status = os.fstat(self._descriptor)
        try:
            self.buffer = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_COPY)
        except ValueError as error:  # mmap refuses an empty file
            raise CheckpointError(f"{path}: the file is empty. {advice}") from error
        except OSError as error:
            raise CheckpointError(
                f"{path}: cannot be read: {error.strerror}. Check the path and its permissions."
            ) from error

    def __len__(self) -> int:
        return len(self.buffer)

    @property
    def mapped(self) -> MappedFile:
        """The file on the disk that the bytes come from."""
        return self

    def read(self, offset: int, size: int) -> bytes:
        """Some bytes, read from the file and not through the mapping: at its end there may be fewer."""
        return os.pread(self._descriptor, size, offset) if hasattr(os, "pread") else self.buffer[offset : offset + size]

    def read_into(self, target: Bytes, offset: int) -> None:
        """Fill an array with bytes of the file, read without the mapping: an error if the file has changed or lost some."""
        self.check()
        view, done = target.data, 0
        while done < len(view):
            part = view[done : done + MAX_READ]
            try:
                if hasattr(os, "preadv"):
                    count = os.preadv(self._descriptor, [part], offset + done)
                else:
                    content = self.read(offset + done, len(part))
                    part[: len(content)] = content
                    count = len(content)
            except OSError as error:
                raise CheckpointError(
                    f"{self.path}: some of it could not be read: {error.strerror}. Check the file and its disk."
                ) from error
            if not count:
                raise CheckpointError(
                    f"{self.path}: was cut short while it was in use: it ends at byte {offset + done}. Fetch it again, and "
                    "load the model again."
                )
            done += count
        self.check()

    def check(self) -> None:
        """Refuse to go on with a file that has changed since it was mapped."""
        status = os.fstat(self._descriptor)
        if status.st_size < len(self.buffer):
            raise CheckpointError(
                f"{self.path}: was cut short while it was in use: {status.st_size} of {len(self.buffer)} bytes are left. "
                "Fetch it again, and load the model again."
            )
        if status.st_mtime_ns != self.status.st_mtime_ns or status.st_size > len(self.buffer):
            raise CheckpointError(
                f"{self.path}: was changed while it was in use, so this is no longer the model that was loaded. Load it "
                "again; to replace a file in use, write the new one beside it and rename it."
            )

    def release(self, offset: int, size: int) -> None:
        """Let the system reclaim the pages of a part; reading it again reads the file again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            first = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
            last = (offset + size) // mmap.PAGESIZE * mmap.PAGESIZE
            if first < last:
                self.buffer.madvise(mmap.MADV_DONTNEED, first, last - first)


@dataclass(frozen=True)
class BufferedFile:
    """Bytes of a file that another library has mapped or copied into memory; read as a `MappedFile` is."""

    path: Path
    buffer: npt.NDArray[np.uint8]
    mapped: MappedFile | None = None  # the file, where the other library has mapped it
    live: bool = False  # a live model's memory, which may change: nothing that is made of it is kept on the disk

    def read_into(self, target: Bytes, offset: int) -> None:
        self.check()
        target[...] = self.buffer[offset : offset + target.size]
        self.check()

    def check(self) -> None:
        if self.mapped is not None:
            self.mapped.check()

    def __len__(self) -> int:
        return len(self.buffer)

    def release(self, offset: int, size: int) -> None:
        """Nothing: the memory is the other library's, and freed with the last tensor."""


@dataclass(eq=False)
class ComputedFile:
    """Bytes that no file holds: numbers computed from other tensors when they are first read, and kept until they are
    released. Weights that another library has packed, or that an adapter changes, are read as any others by this."""

    path: Path  # of the file that makes them what they are
    size: int  # bytes
    compute: Callable[[], Floats | Bytes]
    sources: tuple[TensorFile, ...]  # the files that they are computed from
    recipe: str  # how, for digests
    mapped: None = None
    _values: Bytes | None = field(default=None, repr=False)

    @property
    def buffer(self) -> Bytes:
        values = self._values
        if values is None:
            self.check()
            computed = np.ascontiguousarray(self.compute())
            self.check()
            assert computed.nbytes == self.size, (self.recipe, computed.shape)
            self._values = values = computed.reshape(-1).view(np.uint8)
        return values

    def read_into(self, target: Bytes, offset: int) -> None:
        target[...] = self.buffer[offset : offset + target.size]

    def check(self) -> None:
        for source in self.sources:
            source.check()

    def __len__(self) -> int:
        return self.size

    def release(self, offset: int, size: int) -> None:
        """Forget the numbers; whoever looks into them keeps them, and reading them again computes them again."""
        self._values = None


TensorFile: TypeAlias = MappedFile | BufferedFile | ComputedFile


class Layout(Protocol):
    """How a file's numbers lie, where that is not how the family has them."""

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The file's shape of a tensor that the family has in this shape."""

    def from_stored(self, values: Floats) -> Floats:
        """The file's values as the family has them."""

    def to_stored(self, values: Floats) -> Floats:
        """The family's values as the file has them: the inverse."""


@dataclass(frozen=True)
class RowPermutation:
    """Whole rows in another order: packed blocks run along a row, so it applies to packed bytes too."""

    heads: int

    def rows(self, count: int) -> npt.NDArray[np.intp]:
        """For each row in the family's order, the stored row that holds it."""
        raise NotImplementedError

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape

    def from_stored(self, values: Floats) -> Floats:
        return values[self.rows(len(values))]

    def to_stored(self, values: Floats) -> Floats:
        return values[np.argsort(self.rows(len(values)))]


class InterleavedPairs(RowPermutation):
    """Rows whose rotary pairs stand side by side (GGUF's llama) where the family has them half a head apart."""

    def rows(self, count: int) -> npt.NDArray[np.intp]:
        return np.arange(count).reshape(self.heads, -1, 2).swapaxes(1, 2).reshape(count)


class PartAfterPart(RowPermutation):
    """All heads' queries, then all keys, then all values (GGUF's gptneox), where the family has them head by head."""

    def rows(self, count: int) -> npt.NDArray[np.intp]:
        return np.arange(count).reshape(3, self.heads, -1).swapaxes(0, 1).reshape(count)


@dataclass(frozen=True)
class PartAfterGroup(RowPermutation):
    """All queries, then all keys, then all values (GGUF's falcon), where the family has a group's queries, key and value
    together.

    `heads`: of queries.
    """

    groups: int

    def rows(self, count: int) -> npt.NDArray[np.intp]:
        size = count // (self.heads + 2 * self.groups)
        query, key, value = np.split(np.arange(count), [self.heads * size, (self.heads + self.groups) * size])
        return np.concatenate([part.reshape(self.groups, -1) for part in (query, key, value)], 1).reshape(-1)


@dataclass(frozen=True)
class TiledHeads(RowPermutation):
    """Heads of values in turns, one for each head of keys (GGUF's qwen35), where the family has those of a key together.

    `heads`: of keys.
    """

    shared: int  # heads of values for each
    size: int  # rows of a head
    skipped: int = 0  # rows before them, which are in order

    def rows(self, count: int) -> npt.NDArray[np.intp]:
        turns = np.arange(self.heads * self.shared * self.size).reshape(self.shared, self.heads, self.size)
        return np.concatenate((np.arange(self.skipped), self.skipped + turns.swapaxes(0, 1).reshape(-1)))


@dataclass(frozen=True)
class TiledColumns:
    """The same of what reads such heads: its columns."""

    heads: TiledHeads

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape

    def from_stored(self, values: Floats) -> Floats:
        return np.ascontiguousarray(values[:, self.heads.rows(values.shape[1])])

    def to_stored(self, values: Floats) -> Floats:
        return np.ascontiguousarray(values[:, np.argsort(self.heads.rows(values.shape[1]))])


@dataclass(frozen=True)
class KernelRows:
    """A convolution of each column by itself: a row of weights in the file, where the family has a matrix of one row.

    `heads`: in which order the file has the columns, if not in that of the family.
    """

    heads: TiledHeads | None = None

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[0], shape[2]) if len(shape) == 3 else (shape[0], 1, shape[1])

    def from_stored(self, values: Floats) -> Floats:
        return (values if self.heads is None else self.heads.from_stored(values))[:, None]

    def to_stored(self, values: Floats) -> Floats:
        return values[:, 0] if self.heads is None else self.heads.to_stored(values[:, 0])


class KernelPlanes:
    """The same as a plane of rows: they are the family's matrices, behind a size of 1, which other files leave out."""

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape[1:] if len(shape) == 4 else shape

    def from_stored(self, values: Floats) -> Floats:
        return values

    to_stored = from_stored


@dataclass(frozen=True)
class FoldedVector:
    """A vector in rows: a column, or groups side by side (GGUF's Mamba-2).

    `rows`: how many; 0: one for each number. `rates`: of decays, as `NegativeExponential` has them.
    """

    rows: int = 0
    rates: bool = False

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(shape) > 1:
            return (math.prod(shape),)
        rows = self.rows or shape[0]
        return (rows, shape[0] // rows)

    def from_stored(self, values: Floats) -> Floats:
        flat = values.reshape(-1)
        return np.log(-flat) if self.rates else flat

    def to_stored(self, values: Floats) -> Floats:
        return (-np.exp(values) if self.rates else values).reshape(self.stored_shape(values.shape))


@dataclass(frozen=True)
class NegativeExponential:
    """Decay's rates: in the file with their sign, where the family has logarithms. Sizes of 1 in front, which some files
    leave out, are the family's.

    `heads`: in which order the file has them, if not in that of the family.
    """

    heads: TiledHeads | None = None

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (1, 1, *shape) if len(shape) == 2 else shape

    def from_stored(self, values: Floats) -> Floats:
        return np.log(-values if self.heads is None else self.heads.from_stored(-values))

    def to_stored(self, values: Floats) -> Floats:
        return -np.exp(values if self.heads is None else self.heads.to_stored(values))


@dataclass(frozen=True)
class Transposed:
    """Rows in the file where the family has columns: GPT-2's products, which GGUF transposes."""

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape[::-1]

    def from_stored(self, values: Floats) -> Floats:
        return np.ascontiguousarray(values.T)

    to_stored = from_stored  # its own inverse


@dataclass(frozen=True)
class SingleRow:
    """A vector in the file where the family has a matrix of one row, or the other way."""

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape[1:] if len(shape) == 2 else (1, *shape)

    def from_stored(self, values: Floats) -> Floats:
        return values.reshape(self.stored_shape(values.shape))

    to_stored = from_stored  # its own inverse


@dataclass(frozen=True)
class OffsetByOne:
    """Numbers that are larger by one in the file: Gemma's norms, which the family stores less one."""

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape

    def from_stored(self, values: Floats) -> Floats:
        return values - np.float32(1)

    def to_stored(self, values: Floats) -> Floats:
        return values + np.float32(1)


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file, under the name that the family gives it."""

    name: str
    kind: str  # F32, F16, BF16, I64, … or a packed kind: Q4_1, Q8_0, Q4_K, …
    shape: tuple[int, ...]  # logical, row-major
    file: TensorFile
    offset: int
    size: int  # bytes
    layout: Layout | None = None

    @property
    def packed(self) -> bool:
        return self.kind not in PLAIN_KINDS

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def own_size(self) -> int:
        """How many of its bytes are its own: two tensors that alternate in a file lie in the same ones."""
        if self.layout is None or not self.elements:
            return self.size
        return self.size * self.elements // math.prod(self.layout.stored_shape(self.shape))

    @property
    def label(self) -> str:
        """What errors call it."""
        return f"{self.file.path}: tensor {self.name!r}"

    @property
    def bytes(self) -> npt.NDArray[np.uint8]:
        """The raw bytes, as a view into the mapping of a file that has not changed."""
        self.file.check()
        return np.frombuffer(self.file.buffer, np.uint8, self.size, self.offset)

    def in_memory(self) -> StoredTensor:
        """The tensor with a copy of its bytes, which nothing that happens to the file can change or end."""
        copied = np.empty(self.size, np.uint8)
        self.file.read_into(copied, self.offset)
        return replace(self, file=BufferedFile(self.file.path, copied), offset=0)

    def same_bytes(self, other: StoredTensor) -> bool:
        """Whether two tensors are one tensor stored twice, as some tied checkpoints have it."""
        if self is other:
            return True
        if (self.kind, self.shape, self.layout) != (other.kind, other.shape, other.layout):
            return False
        step = 1 << 24
        return all(
            np.array_equal(self.bytes[begin : begin + step], other.bytes[begin : begin + step])
            for begin in range(0, self.size, step)
        )

    def release(self) -> None:
        """Let the system reclaim the stored bytes' pages: their values have been copied out."""
        self.file.release(self.offset, self.size)

    def to_float32(self) -> Floats:
        """The values in float32, as the family has them; for packed and for plain float kinds."""
        shape = self.shape if self.layout is None else self.layout.stored_shape(self.shape)
        values = dequantize(self.bytes, self.kind, shape, self.label)
        return values if self.layout is None else self.layout.from_stored(values)

    def row(self, index: int) -> Floats:
        """One row of a matrix in float32, without reading the others."""
        row: Floats = self.rows_to_float32([index])[0]
        return row

    def rows_to_float32(self, indices: slice | Sequence[int]) -> Floats:
        """Some rows of a matrix in float32, without reading the others where it has no layout."""
        if self.layout is not None:
            values: Floats = self.to_float32()[indices]
            return values
        raw = self.bytes.reshape(self.shape[0], -1)[indices]
        return dequantize(raw.reshape(-1), self.kind, (len(raw), *self.shape[1:]), self.label)

    def rows(self, indices: range) -> StoredTensor:
        """Some rows of a matrix, one after another, as a tensor of their own; one with a layout has none."""
        assert self.layout is None
        size = self.size // self.shape[0]
        shape = (len(indices), *self.shape[1:])
        return replace(self, shape=shape, offset=self.offset + indices.start * size, size=len(indices) * size)


def computed_tensor(
    name: str, shape: tuple[int, ...], compute: Callable[[], Floats | Bytes], sources: Sequence[StoredTensor], recipe: str,
    path: Path | None = None, kind: str = "F32", size: int | None = None,
) -> StoredTensor:  # fmt: skip
    """A tensor whose numbers are computed from others when they are read.

    `recipe`: what of the computation the sources do not say, so that two tensors of one digest have the same numbers.
    `path`: the file that it is known by; that of the first source, unless another is named. `kind`, `size`: where the
    numbers are not float32.
    """
    size = 4 * math.prod(shape) if size is None else size
    files = tuple({id(source.file): source.file for source in sources}.values())
    parts = [f"{source.name} {source.kind} {source.shape} {source.offset}" for source in sources]
    file = ComputedFile(path or sources[0].file.path, size, compute, files, f"{name} {kind} {shape}: {recipe} of {parts}")
    return StoredTensor(name, kind, shape, file, 0, size)


PLAIN_KINDS: dict[str, int] = {  # kind: bytes per element
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip


class HasKind(Protocol):
    @property
    def kind(self) -> str: ...

    @property
    def elements(self) -> int: ...


def main_kind(tensors: Iterable[HasKind]) -> str:
    """The kind that most of a checkpoint's numbers are stored in."""
    counts: Counter[str] = Counter()
    for tensor in tensors:
        counts[tensor.kind] += tensor.elements
    return counts.most_common(1)[0][0] if counts else "F32"


def check_region(file: MappedFile, name: str, offset: int, size: int) -> None:
    """Refuse a tensor whose bytes would lie outside its file, before anything is read."""
    if offset < 0 or size < 0 or offset + size > len(file):
        raise CheckpointError(
            f"{file.path}: tensor {name!r} should lie at bytes {offset}–{offset + size}, but the file ends at "
            f"{len(file)}: it is cut short or damaged. Fetch it again."
        )
