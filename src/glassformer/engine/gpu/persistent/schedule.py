"""What of the persistent kernel is data: which shapes fit, who multiplies which rows, and the stream of weights.

Each matrix is cut into groups, which a block multiplies at once: a group is eight segments, one per warp, of `width`
columns each, and a row is `segments` of them. The groups of each matrix are dealt to the blocks in runs, as evenly as they
go; who gets one group more changes from matrix to matrix, so that all blocks' streams are about equally long. A block's
stream is its groups in order of use: for each layer QKV, output, gate and up, down; the head last.

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
UNIT = 256  # columns that a warp reads at once, eight per lane; a group is a multiple of WARPS * UNIT values
PAGE = 64  # tokens in a page of the KV cache
WIDEST = 1792  # columns of a segment: a lane keeps 1/32 of them in registers
USUAL_WIDTH = 1024
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
    for name, columns in (("hidden", shape.hidden), ("inner", shape.inner), ("attention", shape.attended)):
        if columns > WARPS * WIDEST:
            return (
                f"the {name} size of {columns} is more than the {WARPS * WIDEST} values that eight warps hold in registers."
            )
    if shape.hidden > WARPS // 2 * WIDEST:
        return f"the hidden size of {shape.hidden} is more than {WARPS // 2 * WIDEST}: a gate and its up row need one group."
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
    segments: int
    width: int
    bundle: int  # groups that stay together
    blocks: int
    turn: int = 0  # which block gets the first run, in the first layer
    paired: bool = False  # the rows are two matrices of rows / 2, side by side in each group

    @property
    def rows_per_group(self) -> int:
        return WARPS // self.segments

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
        return self.segments * self.width

    @property
    def group_bytes(self) -> int:
        return WARPS * self.width * 2

    def share(self, turned_block: int) -> tuple[int, int]:
        """The first group and the number of groups of a block, counted from the one that gets the first run."""
        each, more = self.groups // self.bundle // self.blocks, turned_block < self.rest
        return (turned_block * each + min(turned_block, self.rest)) * self.bundle, (each + more) * self.bundle


def plan_matrix(name: str, rows: int, columns: int, multiprocessors: int, paired: bool = False) -> MatrixPlan:
    """Segments that waste the fewest columns, then such that all multiprocessors get a group, then the usual width."""
    candidates = []
    for segments in (1, 2, 4) if paired else (1, 2, 4, 8):
        width = -(-columns // (segments * UNIT)) * UNIT
        if width <= WIDEST:
            bundle = 2 if paired and segments == 4 else 1  # two gated units make one word
            plan = MatrixPlan(name, rows, columns, segments, width, bundle, 1, paired=paired)
            idle = max(0, multiprocessors - plan.groups // bundle)
            candidates.append(((plan.padded_columns, idle, width > USUAL_WIDTH, -width), plan))
    return min(candidates, key=lambda candidate: candidate[0])[1]


class Schedule:
    """A shape's division over the blocks of a card."""

    def __init__(self, shape: DecoderShape, multiprocessors: int, shared_bytes: int, chunk_pages: int = 1) -> None:
        self.shape, self.shared_bytes, self.chunk_pages = shape, shared_bytes, chunk_pages
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
        normed = max(plans[name].padded_columns for name in ("qkv", "gate_up", "head"))
        scratch = max(WARPS * queries * size, *(plan.most * WARPS for plan in plans.values()))
        merged = self.members * (queries * size // self.mergers + 2)
        floats = shape.hidden + normed + scratch + queries * size + 2 * size + 2 * WARPS * queries + merged + 4 * WARPS + 8
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
            units = self.matrices[name].width // UNIT
            position += [self.share(name, layer, block)[1] * units for block in range(self.blocks)]
        return offsets, position

    @property
    def units(self) -> NDArray[np.int64]:
        """The length of each block's stream, in units of WARPS * UNIT values."""
        return self._offsets[1]

    @property
    def stream_units(self) -> int:
        """The length of the longest: where the next block's begins."""
        return int(self.units.max())

    @property
    def stream_shape(self) -> tuple[int, int]:
        return self.blocks * self.stream_units, WARPS * UNIT

    def places(self, name: str, layer: int) -> NDArray[np.int64]:
        """Where each unit of a matrix, in the order of its groups, lies in the stream of all blocks."""
        plan, units = self.matrices[name], self.matrices[name].width // UNIT
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
        groups = stream[places].reshape(plan.groups, plan.rows_per_group, plan.padded_columns)
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
        stream[places] = groups.reshape(-1, WARPS * UNIT)

    def unpack(self, name: str, lengths: list[int], stream: Any, places: Any) -> list[Any]:
        """The inverse of `pack`: the parts, which have these numbers of rows."""
        plan = self.matrices[name]
        groups = stream[places].reshape(plan.groups, plan.rows_per_group, plan.padded_columns)
        if plan.paired:
            half = plan.rows_per_group // 2
            parts = [groups[:, :half], groups[:, half:]]
            return [
                part.reshape(-1, plan.padded_columns)[:length, : plan.columns]
                for part, length in zip(parts, lengths, strict=True)
            ]
        rows, ends = groups.reshape(-1, plan.padded_columns), list(itertools.accumulate(lengths))
        return [rows[end - length : end, : plan.columns] for end, length in zip(ends, lengths, strict=True)]

    def definitions(self, flight: int = 2) -> dict[str, str]:
        """The constants that kernel.cu is compiled with."""
        shape = self.shape
        values: dict[str, object] = {
            "HIDDEN": shape.hidden, "LAYERS": shape.layers, "HEADS": shape.heads, "KV_HEADS": shape.kv_heads,
            "HEAD_SIZE": shape.head_size, "INNER": shape.inner, "VOCABULARY": shape.vocabulary,
            "EPSILON": f"{shape.epsilon!r}f", "HEAD_NORMS": int(shape.head_norms), "QKV_BIAS": int(shape.qkv_bias),
            "QUERY_SCALE": f"{shape.head_size**-0.5 / np.log(2):.9e}f", "BLOCKS": self.blocks, "LAYER_TURN": self.layer_turn,
            "MEMBERS": self.members, "MERGERS": self.mergers, "CHUNK_PAGES": self.chunk_pages, "SLOTS": self.slots,
            "FLIGHT": flight, "SHARED_BYTES": self.shared_bytes, "GATE_UP_BUNDLE": self.matrices["gate_up"].bundle,
        }  # fmt: skip
        for name, plan in self.matrices.items():
            for field in ("groups", "segments", "width", "turn"):
                values[f"{name}_{field}".upper()] = getattr(plan, field)
        return {name: str(value) for name, value in values.items()}
