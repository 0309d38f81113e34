"""A model's weights on the device: floats in their own dtype, packed kinds packed; one matrix where a step reads several.

A file's bytes are read from the file, not through its mapping, by several threads into pinned memory, from where the device
copies them by itself; meanwhile the next piece is read. A file that is cut short or changed on the way is an error, where a
mapping would end the process. A live model's parameter that a step reads alone is used where it lies; those that are joined
with others are copied once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor

from glassformer.checkpoint.stored_tensors import Bytes, Floats, StoredTensor
from glassformer.engine.gpu.kernels.packed_matmul import pack
from glassformer.engine.gpu.kernels.tensors import FLOAT_KINDS, DeviceMatrix, DeviceNorm, float_matrix
from glassformer.engine.named_weights import NamedWeights, is_packed, row_order
from glassformer.engine.program import ActivationNumbers, DistanceBias, MatrixRef, NormKind, NormRef, Table
from glassformer.ground.ownership import NotCopied
from glassformer.ops.positions import SinusoidTable

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
PACKED_KINDS = ("Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K")
WIDENED_KIND = "Q5_0"  # becomes Q8_0, which can hold the same numbers
NORMS = {NormKind.RMS_NORM: "rms", NormKind.LAYER_NORM: "layer", NormKind.L2_NORM: "l2"}
PIECE = 1 << 25  # bytes that are copied at once
READERS = 4  # threads that read a piece together
LEAST_PART = 1 << 20  # bytes that are worth a thread
PIECES = 2  # in pinned memory: one is copied, another is read


@dataclass(frozen=True)
class ParameterTensor:
    """A parameter or buffer of a module, with what the engine asks of a `StoredTensor`."""

    name: str
    values: Tensor  # detached, in the parameter's own memory
    layout: None = None

    @property
    def kind(self) -> str:
        return FLOAT_KINDS[self.values.dtype]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        return self.values.nbytes

    @property
    def label(self) -> str:
        return f"parameter {self.name!r}"

    def in_memory(self) -> Self:
        """It lies in the memory of a device already."""
        return self

    def to_float32(self) -> Floats:
        values: Floats = self.values.float().cpu().numpy()
        return values


EngineTensor: TypeAlias = StoredTensor | ParameterTensor


@dataclass(frozen=True)
class MatrixPart:
    """A matrix as it comes from the file: rows of floats, or of packed bytes; a stored tensor's as they lie there."""

    kind: str
    rows: Tensor | Bytes | StoredTensor
    shape: tuple[int, int]


def device_bytes(tensors: Iterable[StoredTensor]) -> int:
    """How much memory of a device stored tensors take."""
    kept = (*DTYPES, *PACKED_KINDS)
    sizes = {**dict.fromkeys(kept), WIDENED_KIND: 34 / 32}  # bytes of a number; None: as it is stored
    return sum(
        tensor.size if (size := sizes.get(tensor.kind, 4)) is None else int(size * tensor.elements) for tensor in tensors
    )


class DeviceWeights(NamedWeights[EngineTensor]):
    """The weights of one model on the device; each is copied there once, when first asked for."""

    def __init__(
        self, tensors: Mapping[str, EngineTensor], expected: Mapping[str, tuple[int, ...]], device: torch.device
    ) -> None:
        super().__init__(tensors, expected)
        self.device = device
        self._upload = Upload(device)
        self._matrices: dict[tuple[Table, ...], list[DeviceMatrix]] = {}
        self._places: dict[MatrixRef, tuple[DeviceMatrix, int]] = {}  # where the rows of each lie
        self._norms: dict[NormRef, DeviceNorm] = {}
        self._distance_biases: dict[DistanceBias, Tensor] = {}

    def read(self, name: str) -> EngineTensor:
        """Read without the file's mapping, for the reason that the file's docstring gives."""
        return self.stored(name).in_memory()

    def matrices(self, tables: tuple[Table, ...], gated: bool = False) -> list[DeviceMatrix]:
        """The matrices of one step; neighbours of one kind are one. `gated`: two halves, which both are or neither."""
        if tables in self._matrices:
            return self._matrices[tables]
        if (part := self._part_of_others(tables)) is not None:
            self._matrices[tables] = [replace(part, bias=self._bias(tables))]
            return self._matrices[tables]
        parts = [self._part(table) for table in tables]
        groups = [list(group) for _, group in groupby(range(len(parts)), lambda index: parts[index].kind)]
        matrices = []
        for group in groups:
            matrix = self._joined([parts[index] for index in group])
            self._note_places(matrix, [tables[index] for index in group])
            matrices.append(replace(matrix, bias=self._bias([tables[index] for index in group])))
        self._matrices[tables] = matrices
        return matrices

    def _note_places(self, matrix: DeviceMatrix, tables: Sequence[Table]) -> None:
        """Remember where the rows of each table lie in a matrix."""
        first = 0
        for table in tables:
            if isinstance(table, MatrixRef):
                self._places[table._replace(biases=())] = matrix, first
            first += table.shape[0]

    def _part_of_others(self, tables: Sequence[Table]) -> DeviceMatrix | None:
        """Some tables that lie behind each other in a matrix which is on the device already."""
        refs = [table._replace(biases=()) for table in tables if isinstance(table, MatrixRef)]
        if len(refs) < len(tables) or not all(ref in self._places for ref in refs):
            return None
        whole, begin = self._places[refs[0]]
        end = begin
        for ref in refs:
            matrix, first = self._places[ref]
            if matrix is not whole or first != end:
                return None
            end += ref.shape[0]
        return whole.part(begin, end - begin)

    def part(self, name: str) -> DeviceMatrix:
        """A tensor that a matrix was made of, as it lies in it."""
        place = next(ref for ref in self._places if ref.names == (name,) and not ref.transposed and ref.part is None)
        matrix, first = self._places[place]
        return matrix.part(first, place.shape[0])

    def table(self, table: Table) -> DeviceMatrix:
        """A table of an embedding."""
        return self.matrices((table,))[0]

    def _joined(self, parts: Sequence[MatrixPart]) -> DeviceMatrix:
        """Matrices of one input and kind as one, on the device."""
        rows, columns = sum(part.shape[0] for part in parts), parts[0].shape[1]
        if parts[0].kind in DTYPES:
            if len(parts) == 1 and isinstance(parts[0].rows, Tensor):
                return float_matrix(parts[0].rows.to(self.device))
            weights = torch.empty(rows, columns, dtype=DTYPES[parts[0].kind], device=self.device)
            first = 0
            for part in parts:
                target = weights[first : first + part.shape[0]]
                first += part.shape[0]
                if isinstance(part.rows, StoredTensor):
                    self._upload.copy(part.rows, target)
                else:
                    target.copy_(torch.as_tensor(part.rows))
            return float_matrix(weights)
        packed = np.concatenate([np.asarray(part.rows) for part in parts])
        return pack(parts[0].kind, packed.reshape(-1), rows, columns, self.device)

    def _part(self, table: Table) -> MatrixPart:
        if isinstance(table, SinusoidTable):
            positions = self.stored_or(table.stored, table.shape, table.values)
            return MatrixPart("F32", torch.from_numpy(positions), table.shape)
        tensors = self.checked(table)
        stored = tensors[0]
        if isinstance(stored, StoredTensor) and is_packed(tensors, table, (*PACKED_KINDS, WIDENED_KIND)):
            packed = stored.in_memory().bytes.reshape(stored.shape[1 if table.transposed else 0], -1)
            packed = packed if (order := row_order(stored, table.part)) is None else packed[order]
            if stored.kind == WIDENED_KIND:
                return MatrixPart("Q8_0", _as_q8_0(packed), table.shape)
            return MatrixPart(stored.kind, packed, table.shape)
        kinds = {tensor.kind for tensor in tensors}
        kind = stored.kind if len(kinds) == 1 and stored.kind in DTYPES else "F32"
        if (
            isinstance(stored, StoredTensor)
            and len(tensors) == 1
            and stored.kind == kind
            and stored.layout is None
            and not table.transposed
            and table.part is None
        ):
            return MatrixPart(kind, stored, table.shape)
        values = [_float_rows(self.read(name), DTYPES[kind]) for name in table.names]
        values = [value.T if table.transposed else value for value in values]
        values = values if table.part is None else [value[table.part.rows] for value in values]
        return MatrixPart(kind, values[0] if len(values) == 1 else torch.cat(values), table.shape)

    def _bias(self, tables: Sequence[Table]) -> Tensor | None:
        """The biases of some matrices side by side; zeros where one of them has none."""
        if not any(isinstance(table, MatrixRef) and table.biases for table in tables):
            return None
        return self._to_device(np.concatenate([self._bias_of(table) for table in tables]))

    def _bias_of(self, table: Table) -> Floats:
        if not isinstance(table, MatrixRef) or not table.biases:
            return np.zeros(table.shape[0], np.float32)
        values = self.floats(*table.biases)
        return values if table.part is None else table.part.bias(values)

    def norm(self, norm: NormRef | None) -> DeviceNorm | None:
        if norm is None:
            return None
        if norm not in self._norms:
            weight = np.ones(norm.width, np.float32)
            if norm.weight is not None:
                weight = np.tile(self.floats(norm.weight, *norm.more, plus=norm.offset), norm.repeats)
            bias = self.vector(norm.bias) if norm.bias else None
            self._norms[norm] = DeviceNorm(NORMS[norm.kind], self._to_device(weight), bias, norm.eps, norm.groups)
        return self._norms[norm]

    def vector(self, name: str) -> Tensor:
        """A small tensor in float32."""
        return self._to_device(self.floats(name))

    def numbers(self, learned: ActivationNumbers) -> Tensor:
        """Numbers that an activation has learned."""
        return self._to_device(learned.values(self.floats))

    def conv_kernel(self, name: str, width: int) -> Tensor:
        """The weights of a convolution over each column's last values: (size, width), those of the oldest first."""
        return self._to_device(self.floats(name).reshape(width, -1).T)

    def distance_bias(self, bias: DistanceBias | None) -> Tensor | None:
        if bias is None:
            return None
        if bias not in self._distance_biases:
            table = self.read(bias.table).to_float32()
            self._distance_biases[bias] = self._to_device(bias.values(table))
        return self._distance_biases[bias]

    def _to_device(self, values: Floats) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device)


class Upload(NotCopied):
    """The way to one device; its pinned memory and its threads are given back when it is dropped."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pieces: list[
            tuple[Tensor, Any]
        ] = []  # pinned memory, and the event after which it is free; the next one first
        self._readers: ThreadPoolExecutor | None = None

    def copy(self, tensor: StoredTensor, target: Tensor) -> None:
        """Copy a tensor's bytes to a contiguous tensor on the device."""
        assert target.is_contiguous()
        flat = target.view(-1).view(torch.uint8)
        assert flat.numel() == tensor.size
        for begin in range(0, tensor.size, PIECE):
            count = min(PIECE, tensor.size - begin)
            piece, copied = self._free_piece(count)
            self._read(tensor, begin, piece[:count])
            flat[begin : begin + count].copy_(piece[:count], non_blocking=True)
            if copied is not None:
                copied.record()

    def _free_piece(self, size: int) -> tuple[Tensor, Any]:
        """Memory of at least `size` bytes, from which no copy is under way."""
        on_gpu = self.device.type == "cuda"
        piece = self._pieces.pop(0) if len(self._pieces) == PIECES else None
        if piece is not None and piece[1] is not None:
            piece[1].synchronize()
        if piece is None or piece[0].numel() < size:
            memory = torch.empty(size, dtype=torch.uint8, pin_memory=on_gpu)
            piece = memory, torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        self._pieces.append(piece)
        return piece

    def _read(self, tensor: StoredTensor, begin: int, piece: Tensor) -> None:
        target, step = piece.numpy(), max(LEAST_PART, -(-piece.numel() // READERS))
        starts = range(0, target.size, step)
        if len(starts) == 1:
            tensor.file.read_into(target, tensor.offset + begin)
            return
        if self._readers is None:
            self._readers = ThreadPoolExecutor(READERS, "glassformer-read")
        parts = [
            self._readers.submit(tensor.file.read_into, target[start : start + step], tensor.offset + begin + start)
            for start in starts
        ]
        for part in parts:
            part.result()


def _as_q8_0(rows: Bytes) -> Bytes:
    """Rows of Q5_0 as Q8_0: the same scale for 32 numbers, and eight bits of each instead of five."""
    blocks = rows.reshape(-1, 22)  # a half float, the fifth bits, and 16 bytes of which each has two codes
    fifth = blocks[:, 2:6].copy().view("<u4") >> np.arange(32, dtype=np.uint32) & 1
    codes = np.concatenate((blocks[:, 6:] & 15, blocks[:, 6:] >> 4), axis=1) | fifth.astype(np.uint8) << 4
    return np.concatenate((blocks[:, :2], codes - np.uint8(16)), axis=1).reshape(len(rows), -1)


def _float_rows(tensor: EngineTensor, dtype: torch.dtype) -> Tensor:
    """A tensor's values as the family has them, without a copy where they lie so in the file or the parameter."""
    if isinstance(tensor, ParameterTensor):
        return tensor.values.to(dtype)
    if tensor.layout is None and DTYPES.get(tensor.kind) == dtype and tensor.bytes.flags.writeable:
        return torch.from_numpy(tensor.bytes).view(dtype).reshape(tensor.shape)
    return torch.from_numpy(tensor.to_float32()).to(dtype)
