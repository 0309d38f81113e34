"""What of the persistent kernel is data: which shapes fit, who multiplies which rows, and the stream of weights.

Each matrix is cut into groups of some rows, and wide groups into parts of some columns; a part is what a slot of the
kernel's ring holds, and what a block's eight warps multiply at a time. The groups of each matrix are dealt to the
blocks in runs, as evenly as they go; who gets one group more changes from matrix to matrix, so that all blocks' streams
are about equally long. A block's stream is its groups in order of use: for each layer QKV, output, gate and up, down;
the head last. How a group holds its weights is in formats.py and stream.py.

This module needs neither torch nor CUDA.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from glassformer.engine.gpu.persistent.formats import BFLOAT16, EMBEDDINGS, WARPS, Format
from glassformer.engine.paged_rows import PAGE

ROUND_ROWS = 64  # rows whose products are summed over the warps at a time
USUAL_PART_BYTES = 16_384
MOST_PART_BYTES = 20_480
BYTES_UNDER_WAY = 16_384  # of a block, in small layers
SMALL_LAYER_BYTES = 1 << 19  # of one block
MOST_MEMBERS = 32  # blocks that share a KV head
MOST_SLOTS = 16
LAYER_MATRICES = ("qkv", "output", "gate_up", "down")
MATRICES = (*LAYER_MATRICES, "head")


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


Formats = Mapping[str, Format]  # of each of MATRICES
ALL_BFLOAT16: Formats = dict.fromkeys(MATRICES, BFLOAT16)


def misfit(shape: DecoderShape, multiprocessors: int, shared_bytes: int, formats: Formats = ALL_BFLOAT16) -> str | None:
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
    schedule = Schedule(shape, multiprocessors, shared_bytes, formats=formats)
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
    form: Format = BFLOAT16
    parts: int = 1  # of a group's columns
    blocks: int = 1
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
        return self.form.unit * self.parts * -(-self.columns // (self.form.unit * self.parts))

    @property
    def half_words(self) -> int:
        """Words of 32 bits of half a part, which is copied at once: whole 16 bytes."""
        words = self.rows_per_group * self.form.row_words(self.padded_columns // self.parts // 2)
        return -(-words // 4) * 4

    @property
    def part_bytes(self) -> int:
        return 8 * self.half_words

    @property
    def group_words(self) -> int:
        return 2 * self.half_words * self.parts

    def share(self, turned_block: int) -> tuple[int, int]:
        """The first group and the number of groups of a block, counted from the one that gets the first run."""
        each, more = self.groups // self.bundle // self.blocks, turned_block < self.rest
        return (turned_block * each + min(turned_block, self.rest)) * self.bundle, (each + more) * self.bundle


def plan_matrix(
    name: str, rows: int, columns: int, multiprocessors: int, paired: bool = False, form: Format = BFLOAT16
) -> MatrixPlan:
    """The most rows to a group of the usual size, but so few that all multiprocessors get a group. Groups of as many rows as
    tensor cores multiply at a time may be larger: they are cut into parts."""
    fewest = 2 if paired else 1
    for rows_per_group in (32, 16, 8, 4, 2, 1):
        bundle = 2 if paired and rows_per_group == 2 else 1  # two gated units make one word
        plan = MatrixPlan(name, rows, columns, rows_per_group, bundle, form, paired=paired)
        usual = plan.part_bytes <= USUAL_PART_BYTES and (rows_per_group <= form.tile_rows or form.is_packed)
        fits = (usual or rows_per_group == form.tile_rows) and plan.groups // bundle >= multiprocessors
        if fits or rows_per_group == fewest:
            break
    fewest_parts = -(-plan.part_bytes // MOST_PART_BYTES)
    cuts = (replace(plan, parts=parts) for parts in range(fewest_parts, 2 * fewest_parts))
    return min(cuts, key=lambda cut: (cut.padded_columns, cut.parts)) if fewest_parts > 1 else plan


class Schedule:
    """A shape's division over the blocks of a card."""

    def __init__(
        self,
        shape: DecoderShape,
        multiprocessors: int,
        shared_bytes: int,
        chunk_pages: int = 1,
        direct_chunks: int = 4,
        formats: Formats = ALL_BFLOAT16,
        embedding: str = "BF16",
        cache: str = "bf16",
    ) -> None:
        self.shape, self.shared_bytes, self.chunk_pages, self.direct_chunks = shape, shared_bytes, chunk_pages, direct_chunks
        self.embedding, self.cache = embedding, cache  # the kind of one, the dtype of the other: bf16 or f16
        sizes = {
            "qkv": (shape.qkv_rows, shape.hidden),
            "output": (shape.hidden, shape.attended),
            "gate_up": (2 * shape.inner, shape.hidden),
            "down": (shape.hidden, shape.inner),
            "head": (shape.vocabulary, shape.hidden),
        }
        plans = [plan_matrix(name, *size, multiprocessors, name == "gate_up", formats[name]) for name, size in sizes.items()]
        # The exchange needs every block to own a part of every matrix: a block that does not can be overtaken.
        self.blocks = min(multiprocessors, *(plan.groups // plan.bundle for plan in plans))
        self.matrices: dict[str, MatrixPlan] = {}
        turn = 0
        for plan in plans:
            self.matrices[plan.name] = replace(plan, blocks=self.blocks, turn=turn)
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
        return max(page, *(plan.part_bytes for plan in self.matrices.values()))

    @property
    def slots(self) -> int:
        """Slots of the ring: what the rest of kernel.cu's Shared leaves, which is counted here, rounded up."""
        shape, plans = self.shape, self.matrices
        queries, size = shape.query_heads_per_kv_head, shape.head_size
        normed = max(plans[name].padded_columns for name in ("qkv", "gate_up", "head"))
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
        """For each matrix the word of each block's stream at which it begins; and each block's words."""
        position, offsets = np.zeros(self.blocks, np.int64), {}
        for name, layer in self.matrices_in_order():
            offsets[name, layer] = position.copy()
            words = self.matrices[name].group_words
            position += [self.share(name, layer, block)[1] * words for block in range(self.blocks)]
        return offsets, position

    @property
    def words(self) -> NDArray[np.int64]:
        """The length of each block's stream, in words of 32 bits."""
        return self._offsets[1]

    @property
    def stream_words(self) -> int:
        """The length of the longest: where the next block's begins."""
        return int(self.words.max())

    @property
    def stream_bytes(self) -> int:
        """Of all blocks' streams."""
        return 4 * self.blocks * self.stream_words

    def offset(self, name: str, layer: int, block: int) -> int:
        """The word of all blocks' stream at which a block's groups of a matrix begin."""
        return block * self.stream_words + int(self._offsets[0][name, layer][block])

    @property
    def flight(self) -> int:
        """Copies under way at a time: few where a layer takes about as long as its exchanges, more for large layers."""
        plans = [self.matrices[name] for name in LAYER_MATRICES]
        copies = sum(plan.groups * plan.parts * 2 for plan in plans)
        layer_bytes = sum(plan.groups * plan.group_words * 4 for plan in plans)
        usual = max(2, round(BYTES_UNDER_WAY * copies / layer_bytes))
        return min(usual if layer_bytes < SMALL_LAYER_BYTES * self.blocks else 4 * usual, 2 * self.slots)

    @property
    def head_flight(self) -> int:
        """Copies of the head under way at a time; beside it nothing is exchanged."""
        return min(2 * self.slots, max(8, 4 * BYTES_UNDER_WAY // (4 * self.matrices["head"].half_words)))

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
            "HEAD_FLIGHT": self.head_flight,
            "PAUSE_SLOTS": 0, "SHARED_BYTES": self.shared_bytes,
            "CACHE_FLOAT16": int(self.cache == "f16"), "GATE_UP_BUNDLE": self.matrices["gate_up"].bundle,
            **dict(zip(("EMBEDDING_BITS", "EMBEDDING_ZERO", "EMBEDDING_SCALES"), EMBEDDINGS[self.embedding], strict=True)),
        }  # fmt: skip
        for name, plan in self.matrices.items():
            sizes = {
                "GROUPS": plan.groups,
                "GROUP_ROWS": plan.rows_per_group,
                "COLUMNS": plan.padded_columns,
                "TURN": plan.turn,
                "PARTS": plan.parts,
                "FORMAT": plan.form.number.value,
            }
            values |= {f"{name.upper()}_{field}": size for field, size in sizes.items()}
        return {name: str(value) for name, value in values.items()}
