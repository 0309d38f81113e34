"""Decoding of up to eight rows at once with decode.cu: tensor maps of the weights where they lie, and the launches.

Not run by the executor yet: the proofs and tests do (`tests/engine/gpu/proofs.py rows`). It is to take the place of
`decoder.py` for weights of floats, once the other kernels add up in the same order.

Shapes: pool (pages, layers, 2, kv_heads, PAGE, head_size); ids (steps, rows); scores (steps, rows, vocabulary).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_char, c_int, c_longlong, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.engine.gpu.order import KEY_CHUNK
from glassformer.engine.gpu.persistent.decoder import CLOCKS_PER_SECOND, STATUS
from glassformer.engine.gpu.persistent.kernel import (
    Card,
    CooperativeKernel,
    Kernel,
    KernelError,
    compiled,
    load_driver,
    timed_out,
)
from glassformer.engine.gpu.persistent.row_schedule import COLUMN_BLOCK, TILE_ROWS, RowSchedule
from glassformer.engine.paged_rows import PAGE
from glassformer.ground.errors import ExecutorError

SOURCE = Path(__file__).with_name("decode.cu")
THREADS = 384
MAP_BYTES, MAP_ALIGNMENT = 128, 64
DATA_TYPES = {torch.float16: 6, torch.bfloat16: 9}  # of CUtensorMapDataType
SWIZZLE_128_BYTES, PROMOTE_256_BYTES = 3, 3


class TensorMap(NamedTuple):
    """Boxes of a tensor, as the copy engine takes them; counted from the dimension whose numbers lie side by side."""

    tensor: Tensor
    sizes: tuple[int, int, int, int]
    strides: tuple[int, int, int]  # bytes, of all but the first
    box: tuple[int, int, int, int]

    def encoded(self) -> bytes:
        memory = (c_char * (MAP_BYTES + MAP_ALIGNMENT))()
        place = -ctypes.addressof(memory) % MAP_ALIGNMENT
        result = load_driver().cuTensorMapEncodeTiled(
            c_void_p(ctypes.addressof(memory) + place), DATA_TYPES[self.tensor.dtype], 4, c_void_p(self.tensor.data_ptr()),
            (c_uint64 * 4)(*self.sizes), (c_uint64 * 3)(*self.strides), (c_uint32 * 4)(*self.box),
            (c_uint32 * 4)(1, 1, 1, 1), 0, SWIZZLE_128_BYTES, PROMOTE_256_BYTES, 0,
        )  # fmt: skip
        if result:
            raise ExecutorError(f"the GPU's driver cannot describe a tensor to the copy engine (error {result}).")
        return memory.raw[place : place + MAP_BYTES]


def matrix_map(matrix: Tensor, pairs: bool = False) -> TensorMap:
    """Tiles of eight rows of half a slot's columns; of `pairs` four rows of each half of the matrix."""
    rows, columns = matrix.shape
    halves = 2 if pairs else 1
    bytes_ = columns * matrix.itemsize
    return TensorMap(
        matrix, (COLUMN_BLOCK, rows // halves, halves, columns // COLUMN_BLOCK),
        (bytes_, rows // halves * bytes_, COLUMN_BLOCK * matrix.itemsize), (COLUMN_BLOCK, TILE_ROWS // halves, halves, 8),
    )  # fmt: skip


def cache_map(pool: Tensor) -> TensorMap:
    """Half a page of the keys or values of a head."""
    head_size = pool.shape[-1]
    bytes_, blocks = head_size * pool.itemsize, head_size // COLUMN_BLOCK
    return TensorMap(
        pool, (COLUMN_BLOCK, pool.numel() // head_size, 1, blocks), (bytes_, bytes_, COLUMN_BLOCK * pool.itemsize),
        (COLUMN_BLOCK, PAGE // 2, 1, blocks),
    )  # fmt: skip


class RowLaunch(ctypes.Structure):
    """What one launch is given; see the comments at decode.cu's Launch. It lies at a multiple of `MAP_ALIGNMENT`."""

    _fields_ = [
        ("cache", c_char * MAP_BYTES),
        *((name, c_void_p) for name in ("matrices", "embedding", "norms", "head_norms", "qkv_bias", "rotation")),
        *((name, c_void_p) for name in ("pool", "page_table", "starts", "exchange", "given_ids", "chosen_ids")),
        *((name, c_void_p) for name in ("scores", "residuals", "status")),
        ("patience", c_longlong),
        *((name, c_int) for name in ("rows", "row_pages", "steps", "given", "scores_from", "most_chunks")),
        ("tag", c_uint32),
        ("absent_block", c_int),
    ]

    @classmethod
    def new(cls) -> RowLaunch:
        size = ctypes.sizeof(cls)
        memory = (c_char * (size + 2 * MAP_ALIGNMENT))()
        return cls.from_buffer(memory, -ctypes.addressof(memory) % MAP_ALIGNMENT)


@dataclass(frozen=True)
class RowWeights:
    """A model's tensors on the device. Norms, biases and the rotation in float32, the others in bfloat16 or float16."""

    layers: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]]  # QKV, output, gate and up, down
    head: Tensor
    embedding: Tensor
    norms: Tensor  # (2 * layers + 1, hidden): before attention and before the MLP of each layer, and the last
    rotation: Tensor  # (positions, 2, head_size / 2): cosines and sines
    head_norms: Tensor | None = None  # (layers, 2, head_size): of queries and keys
    qkv_bias: Tensor | None = None  # (layers, qkv rows)

    def maps(self) -> list[TensorMap]:
        """In the order in which the kernel has them."""
        return [
            *(matrix_map(matrix, index == 2) for layer in self.layers for index, matrix in enumerate(layer)),
            matrix_map(self.head),
        ]


class Decoded(NamedTuple):
    """ids[i] are the best ids after step i, or NO_ID where logits are not numbers."""

    ids: list[list[int]]
    scores: Tensor | None


Encode = Callable[[TensorMap], bytes]


class RowDecoder:
    """One model's weights as tensor maps, and the kernel that was compiled for its shape. For one thread at a time."""

    def __init__(
        self, schedule: RowSchedule, weights: RowWeights, kernel: Kernel, *, timeout: float = 2.0,
        encode: Encode = TensorMap.encoded,
    ) -> None:  # fmt: skip
        if reason := schedule.misfit():
            raise ExecutorError(f"the persistent kernel does not fit: {reason}")
        self.schedule, self.timeout, self._weights, self._kernel, self._encode = schedule, timeout, weights, kernel, encode
        self._device = weights.embedding.device
        maps = b"".join(encode(tensor_map) for tensor_map in weights.maps())
        memory = torch.zeros(len(maps) + MAP_ALIGNMENT, dtype=torch.uint8, device=self._device)
        self._maps = memory[-memory.data_ptr() % MAP_ALIGNMENT :][: len(maps)]
        self._maps.copy_(torch.frombuffer(bytearray(maps), dtype=torch.uint8))
        self._status = torch.zeros(STATUS, dtype=torch.int32, device=self._device)
        self._exchange, self._chunks, self._tag = torch.empty(0), 0, 0

    def decode(
        self, ids: Sequence[Sequence[int]], starts: Sequence[int], steps: int, pool: Tensor, pages: Sequence[Sequence[int]],
        *, scores_from: int | None = None, absent_block: int = -1,
    ) -> Decoded:  # fmt: skip
        """`steps` tokens of each row, which has as many in the cache as `starts` says: first the ids (steps, rows), then the
        best of each step; waits for them. An `absent_block` makes it time out."""
        rows, shape = len(starts), self.schedule.shape
        if not 0 < rows <= self.schedule.rows:
            raise ExecutorError(f"{rows} rows do not fit a kernel that was compiled for {self.schedule.rows}.")
        self._reserve(max(starts) + steps)
        given, table, begins = (torch.tensor(numbers, dtype=torch.int32).to(pool.device) for numbers in (ids, pages, starts))
        chosen = torch.empty(steps, rows, dtype=torch.int32, device=pool.device)
        scores = None
        if scores_from is not None:
            scores = torch.empty(steps - scores_from, rows, shape.vocabulary, device=pool.device)
        weights, launch = self._weights, RowLaunch.new()
        tensors = {
            "matrices": self._maps, "embedding": weights.embedding, "norms": weights.norms, "head_norms": weights.head_norms,
            "qkv_bias": weights.qkv_bias, "rotation": weights.rotation, "pool": pool, "page_table": table, "starts": begins,
            "exchange": self._exchange, "given_ids": given, "chosen_ids": chosen, "scores": scores, "status": self._status,
        }  # fmt: skip
        numbers = {
            "patience": int(self.timeout * CLOCKS_PER_SECOND), "rows": rows, "row_pages": table.shape[1], "steps": steps,
            "given": len(ids), "scores_from": scores_from or 0, "most_chunks": self._chunks, "tag": self._tag,
            "absent_block": absent_block,
        }  # fmt: skip
        for name, tensor in tensors.items():
            setattr(launch, name, None if tensor is None else tensor.data_ptr())
        for name, number in numbers.items():
            setattr(launch, name, number)
        encoded = self._encode(cache_map(pool))
        ctypes.memmove(ctypes.addressof(launch), encoded, len(encoded))
        self._tag += steps * (shape.layers + 1)
        self._status.zero_()
        on_device = self._device.type == "cuda"
        self._kernel.launch(self.schedule.blocks, launch, torch.cuda.current_stream().cuda_stream if on_device else 0)
        error, step, block, _ = self._status.tolist()
        if error != KernelError.NONE:
            self._chunks = 0  # no word of this launch may look like one of the next
            raise timed_out(self.timeout, block, step)
        return Decoded(chosen.tolist(), scores)

    def _reserve(self, tokens: int) -> None:
        """Words for rows of so many tokens, none of which looks written."""
        chunks = -(-tokens // KEY_CHUNK)
        if chunks <= self._chunks and self._tag + (1 << 20) < 1 << 32:
            return
        self._chunks, self._tag = max(chunks, self._chunks), 1
        memory = torch.zeros(4 * self.schedule.exchange_words(self._chunks) + 4, dtype=torch.int32, device=self._device)
        self._exchange = memory[-memory.data_ptr() % 16 // 4 :]


def load_rows_kernel(schedule: RowSchedule, card: Card) -> Kernel:
    """decode.cu, compiled for a schedule."""
    major, minor = card.capability
    cubin = compiled(schedule.definitions(), f"sm_{major}{minor}a", SOURCE, "--fmad=false")
    return CooperativeKernel(cubin, "decode", THREADS, card.shared_bytes)
