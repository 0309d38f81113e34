"""What of the persistent kernel is data: which shapes fit, who multiplies which rows, and the stream of weights.

Each matrix is cut into groups of some rows, of which each of a block's eight warps multiplies an eighth of the columns. The
groups of each matrix are dealt to the blocks in runs, as evenly as they go; who gets one group more changes from matrix to
matrix, so that all blocks' streams are about equally long. A block's stream is its groups in order of use: for each layer
QKV, output, gate and up, down; the head last. A group is stored as (column blocks, rows, COLUMN_BLOCK), so that a warp reads
consecutive bytes.

This module needs neither torch nor CUDA. The arrays that are packed may be numpy's or torch's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

WARPS = 8
COLUMN_BLOCK = 32  # columns that four lanes read at once
ROUND_ROWS = 64  # rows whose products are summed over the warps at a time
UNIT = WARPS * COLUMN_BLOCK  # columns are padded to a multiple, which is also the unit in which streams are counted
PAGE = 64  # tokens in a page of the KV cache
USUAL_GROUP_BYTES = 16_384
SMALL_LAYER_BYTES = 1 << 20  # of one block
MOST_MEMBERS = 32  # blocks that share a KV head
MOST_SLOTS = 16
LAYER_MATRICES = ("qkv", "output", "gate_up", "down")


@dataclass(frozen=True)
class DecoderShape:
    """A decoder of Llama's kind: RMS norms, grouped-query attention with RoPE, a gated SiLU MLP."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    inner: int
    vocabulary: int
    epsilon: float
    head_norms: bool = False
    qkv_bias: bool = False

    @property
    def query_heads_per_kv_head(self) -> int:
        return self.heads // self.kv_heads

    @property
    def attended(self) -> int:
        return self.heads * self.head_size

    @property
    def qkv_rows(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_size


def misfit(shape: DecoderShape, multiprocessors: int, shared_bytes: int) -> str | None:
    """Why the kernel cannot run a shape, in one sentence, or None if it can."""
    if shape.head_size not in (64, 128):
        return f"heads of {shape.head_size} values do not fit: the persistent kernel knows heads of 64 and 128."
    if shape.heads % shape.kv_heads:
        return f"{shape.heads} heads cannot be divided among {shape.kv_heads} KV heads."
    if shape.query_heads_per_kv_head > 8:
        return f"{shape.query_heads_per_kv_head} query heads for each KV head are more than the 8 that fit into registers."
    for name, size in (("hidden", shape.hidden), ("inner", shape.inner)):
        if size % 8:
            return f"the {name} size of {size} is no multiple of 8, and activations are exchanged in pairs of pairs."
    schedule = Schedule(shape, multiprocessors, shared_bytes)
    if schedule.blocks < shape.kv_heads:
        return f"{shape.kv_heads} KV heads are more than the {schedule.blocks} blocks that the matrices' rows occupy."
    if schedule.members < shape.query_heads_per_kv_head:
        return f"{schedule.members} blocks for each KV head are fewer than its {shape.query_heads_per_kv_head} query heads."
    if schedule.slots < 3:
        return f"{shared_bytes} bytes of shared memory are too few for the activations of this shape and a ring of weights."
    return None


@dataclass(frozen=True)
class MatrixPlan:
    """How one matrix is cut into groups and dealt to blocks."""

    name: str
    rows: int
    columns: int
    rows_per_group: int
    bundle: int  # groups that stay together
    blocks: int
    turn: int = 0  # which block gets the first run, in the first layer
    paired: bool = False  # the rows are two matrices of rows / 2, side by side in each group

    @property
    def groups(self) -> int:
        groups = -(-self.rows // self.rows_per_group)
        return -(-groups // self.bundle) * self.bundle

    @property
    def rest(self) -> int:
        """How many blocks get one bundle more than the others."""
        return self.groups // self.bundle % self.blocks

    @property
    def most(self) -> int:
        """The most groups that a block has."""
        return -(-self.groups // self.bundle // self.blocks) * self.bundle

    @property
    def padded_columns(self) -> int:
        return -(-self.columns // UNIT) * UNIT

    @property
    def group_bytes(self) -> int:
        return self.rows_per_group * self.padded_columns * 2

    @property
    def units_per_group(self) -> int:
        return self.rows_per_group * self.padded_columns // UNIT

    def share(self, turned_block: int) -> tuple[int, int]:
        """The first group and the number of groups of a block, counted from the one that gets the first run."""
        each, more = self.groups // self.bundle // self.blocks, turned_block < self.rest
        return (turned_block * each + min(turned_block, self.rest)) * self.bundle, (each + more) * self.bundle


def plan_matrix(name: str, rows: int, columns: int, multiprocessors: int, paired: bool = False) -> MatrixPlan:
    """The most rows to a group of the usual size, but so few that all multiprocessors get a group."""
    fewest = 2 if paired else 1
    for rows_per_group in (8, 4, 2, 1):
        bundle = 2 if paired and rows_per_group == 2 else 1  # two gated units make one word
        plan = MatrixPlan(name, rows, columns, rows_per_group, bundle, 1, paired=paired)
        fits = plan.group_bytes <= USUAL_GROUP_BYTES and plan.groups // bundle >= multiprocessors
        if fits or rows_per_group == fewest:
            break
    return plan


class Schedule:
    """A shape's division over the blocks of a card."""

    def __init__(
        self, shape: DecoderShape, multiprocessors: int, shared_bytes: int, chunk_pages: int = 1, direct_chunks: int = 4
    ) -> None:
        self.shape, self.shared_bytes, self.chunk_pages, self.direct_chunks = shape, shared_bytes, chunk_pages, direct_chunks
        sizes = {
            "qkv": (shape.qkv_rows, shape.hidden),
            "output": (shape.hidden, shape.attended),
            "gate_up": (2 * shape.inner, shape.hidden),
            "down": (shape.hidden, shape.inner),
            "head": (shape.vocabulary, shape.hidden),
        }
        plans = [plan_matrix(name, *size, multiprocessors, name == "gate_up") for name, size in sizes.items()]
        # The exchange needs every block to own a part of every matrix: a block that does not can be overtaken.
        self.blocks = min(multiprocessors, *(plan.groups // plan.bundle for plan in plans))
        self.matrices: dict[str, MatrixPlan] = {}
        turn = 0
        for plan in plans:
            fields = {**vars(plan), "blocks": self.blocks, "turn": turn}
            self.matrices[plan.name] = MatrixPlan(**fields)
            turn = (turn - self.matrices[plan.name].rest) % self.blocks
            if plan.name == LAYER_MATRICES[-1]:
                self.layer_turn, turn = turn, 0

    def share(self, name: str, layer: int, block: int) -> tuple[int, int]:
        """The first group and the number of groups of a matrix that a block multiplies; the head's layer is `layers`."""
        plan = self.matrices[name]
        return plan.share((block + layer * self.layer_turn + plan.turn) % self.blocks)

    # Attention and shared memory ---------------------------------------------------------------------------------------

    @property
    def members(self) -> int:
        """Blocks that share the keys of a KV head."""
        return min(MOST_MEMBERS, self.blocks // self.shape.kv_heads)

    @property
    def mergers(self) -> int:
        """Members that merge the chunks' results, each an equal slice that lies within one query head."""
        values = self.shape.query_heads_per_kv_head * self.shape.head_size
        slices = (size for size in (8, 16, 32, 64, 128) if self.shape.head_size % size == 0)
        return next((values // size for size in slices if values // size <= self.members), 1)

    @property
    def exchange_words(self) -> int:
        """Words of all exchanges: see the constants ..._AT of kernel.cu."""
        shape = self.shape
        residuals, attended, gated, best = 2 * shape.hidden, shape.attended // 2, shape.inner // 2, 2 * self.blocks
        partial = shape.kv_heads * self.members * shape.query_heads_per_kv_head * (shape.head_size + 2)
        return residuals + shape.qkv_rows + attended + gated + best + partial

    @property
    def slot_bytes(self) -> int:
        page = PAGE * self.shape.head_size * 2
        return max(page, *(plan.group_bytes for plan in self.matrices.values()))

    @property
    def slots(self) -> int:
        """Slots of the ring: what the rest of kernel.cu's Shared leaves, which is counted here, rounded up."""
        shape, plans = self.shape, self.matrices
        queries, size = shape.query_heads_per_kv_head, shape.head_size
        normed = plans["qkv"].padded_columns
        scratch = max(2 * ROUND_ROWS * WARPS, WARPS * queries * size)
        merged = self.members * (queries * size // self.mergers + 2)
        floats = shape.hidden + normed + scratch + queries * size + 2 * WARPS * queries + merged + 5 * WARPS + 8
        halves = plans["output"].padded_columns + plans["down"].padded_columns + 2 * size
        rest = 4 * floats + 2 * halves + 24 * MOST_SLOTS + 256
        return min(MOST_SLOTS, (self.shared_bytes - rest) // self.slot_bytes)

    # The stream ------------------------------------------------------------------------------------------------------

    def matrices_in_order(self) -> Iterator[tuple[str, int]]:
        """Every matrix of the model and its layer, in the order of use."""
        for layer in range(self.shape.layers):
            for name in LAYER_MATRICES:
                yield name, layer
        yield "head", self.shape.layers

    @cached_property
    def _offsets(self) -> tuple[dict[tuple[str, int], NDArray[np.int64]], NDArray[np.int64]]:
        """For each matrix the unit of each block's stream at which it begins; and each block's units."""
        position, offsets = np.zeros(self.blocks, np.int64), {}
        for name, layer in self.matrices_in_order():
            offsets[name, layer] = position.copy()
            units = self.matrices[name].units_per_group
            position += [self.share(name, layer, block)[1] * units for block in range(self.blocks)]
        return offsets, position

    @property
    def units(self) -> NDArray[np.int64]:
        """The length of each block's stream, in units of UNIT values."""
        return self._offsets[1]

    @property
    def stream_units(self) -> int:
        """The length of the longest: where the next block's begins."""
        return int(self.units.max())

    @property
    def stream_shape(self) -> tuple[int, int]:
        return self.blocks * self.stream_units, UNIT

    def places(self, name: str, layer: int) -> NDArray[np.int64]:
        """Where each unit of a matrix, in the order of its groups, lies in the stream of all blocks."""
        plan, units = self.matrices[name], self.matrices[name].units_per_group
        places = np.empty((plan.groups, units), np.int64)
        for block in range(self.blocks):
            first, count = self.share(name, layer, block)
            start = block * self.stream_units + self._offsets[0][name, layer][block]
            places[first : first + count] = start + np.arange(count * units).reshape(count, units)
        return places.reshape(-1)

    def pack(self, name: str, matrices: list[Any], stream: Any, places: Any) -> None:
        """Copy the matrix, or the parts that make it, into a stream of zeros. The parts of gate_up are the gate and the up
        projection; the others are put below each other."""
        plan = self.matrices[name]
        groups = self._groups(plan, stream, places)
        if plan.paired:
            half = plan.rows_per_group // 2
            for part, matrix in enumerate(matrices):
                target = groups[: len(matrix) // half, part * half : (part + 1) * half, : plan.columns]
                target[:] = matrix.reshape(-1, half, plan.columns)
        else:
            rows, start = groups.reshape(-1, plan.padded_columns), 0
            for matrix in matrices:
                rows[start : start + len(matrix), : plan.columns] = matrix
                start += len(matrix)
        blocks = groups.reshape(plan.groups, plan.rows_per_group, -1, COLUMN_BLOCK)
        stream[places] = blocks.swapaxes(1, 2).reshape(-1, UNIT)

    def unpack(self, name: str, lengths: list[int], stream: Any, places: Any) -> list[Any]:
        """The inverse of `pack`: the parts, which have these numbers of rows."""
        plan = self.matrices[name]
        groups = self._groups(plan, stream, places)
        if plan.paired:
            half = plan.rows_per_group // 2
            parts = [groups[:, :half], groups[:, half:]]
            return [
                part.reshape(-1, plan.padded_columns)[:length, : plan.columns]
                for part, length in zip(parts, lengths, strict=True)
            ]
        rows, ends = groups.reshape(-1, plan.padded_columns), list(itertools.accumulate(lengths))
        return [rows[end - length : end, : plan.columns] for end, length in zip(ends, lengths, strict=True)]

    @staticmethod
    def _groups(plan: MatrixPlan, stream: Any, places: Any) -> Any:
        """A copy of a matrix's groups, as (groups, rows of a group, columns)."""
        blocks = stream[places].reshape(plan.groups, -1, plan.rows_per_group, COLUMN_BLOCK)
        return blocks.swapaxes(1, 2).reshape(plan.groups, plan.rows_per_group, plan.padded_columns)

    @property
    def flight(self) -> int:
        """Copies under way at a time: few where a layer takes about as long as its exchanges, more for large layers."""
        layer_bytes = sum(plan.groups * plan.group_bytes for plan in self.matrices.values() if plan.name != "head")
        return 2 if layer_bytes < SMALL_LAYER_BYTES * self.blocks else min(8, 2 * self.slots)

    def definitions(self, flight: int | None = None) -> dict[str, str]:
        """The constants that kernel.cu is compiled with."""
        shape = self.shape
        values: dict[str, object] = {
            "HIDDEN": shape.hidden, "LAYERS": shape.layers, "HEADS": shape.heads, "KV_HEADS": shape.kv_heads,
            "HEAD_SIZE": shape.head_size, "INNER": shape.inner, "VOCABULARY": shape.vocabulary,
            "EPSILON": f"{shape.epsilon!r}f", "HEAD_NORMS": int(shape.head_norms), "QKV_BIAS": int(shape.qkv_bias),
            "QUERY_SCALE": f"{shape.head_size**-0.5 / np.log(2):.9e}f", "BLOCKS": self.blocks, "LAYER_TURN": self.layer_turn,
            "MEMBERS": self.members, "MERGERS": self.mergers, "CHUNK_PAGES": self.chunk_pages,
            "DIRECT_CHUNKS": self.direct_chunks, "SLOTS": self.slots, "FLIGHT": flight or self.flight,
            "HEAD_FLIGHT": min(8, 2 * self.slots),
            "PAUSE_SLOTS": 0, "SHARED_BYTES": self.shared_bytes,
            "GATE_UP_BUNDLE": self.matrices["gate_up"].bundle,
        }  # fmt: skip
        for name, plan in self.matrices.items():
            sizes = {
                "GROUPS": plan.groups,
                "GROUP_ROWS": plan.rows_per_group,
                "COLUMNS": plan.padded_columns,
                "TURN": plan.turn,
            }
            values |= {f"{name.upper()}_{field}": size for field, size in sizes.items()}
        return {name: str(value) for name, value in values.items()}
