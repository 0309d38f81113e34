"""What of decode.cu is data: which shapes fit, the constants that it is compiled with, and how much memory it needs.

This module needs neither torch nor CUDA.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glassformer.engine.gpu.order import KEY_BLOCK, KEY_CHUNK, SEGMENT
from glassformer.engine.gpu.persistent.schedule import DecoderShape
from glassformer.engine.paged_rows import PAGE

MOST_ROWS = 8  # the rows of one instruction
TILE_ROWS = 8  # of a matrix
WARPS = 8
COLUMN_BLOCK = 64  # columns that lie side by side in shared memory
SLOT_BYTES = 2 * TILE_ROWS * SEGMENT * WARPS
MOST_SLOTS, FEWEST_SLOTS = 16, 5
SCRATCH_BYTES = 2 * 4 * 4096
FLIGHT, HEAD_FLIGHT = 4, 8  # halves of slots under way: few while words are exchanged
HEAD_SIZES = (64, 128)


@dataclass(frozen=True)
class RowSchedule:
    """A shape's division over the blocks of a card, for up to `rows` rows at once."""

    shape: DecoderShape
    rows: int
    multiprocessors: int
    shared_bytes: int
    weights: str = "BF16"  # or F16
    cache: str = "bf16"  # or f16

    def misfit(self) -> str | None:
        """Why the kernel cannot run this, in one sentence, or None if it can."""
        shape = self.shape
        if shape.head_size not in HEAD_SIZES:
            return f"heads of {shape.head_size} values do not fit: it knows heads of 64 and 128."
        if shape.heads % shape.kv_heads or shape.query_heads_per_kv_head > MOST_ROWS:
            return f"{shape.heads} heads do not fit {shape.kv_heads} KV heads: at most {MOST_ROWS} can share one."
        for name, size in (("hidden", shape.hidden), ("inner", shape.inner)):
            if size % COLUMN_BLOCK:
                return f"the {name} size of {size} is no multiple of {COLUMN_BLOCK}."
        if self.slots < FEWEST_SLOTS:
            return f"{self.shared_bytes} bytes of shared memory are too few for this shape and a ring of weights."
        return None

    @property
    def blocks(self) -> int:
        """One per multiprocessor, but so few that each has tiles of the matrices that everybody must have some of."""
        shape = self.shape
        rows = (shape.qkv_rows, 2 * shape.inner, shape.vocabulary)
        return min(self.multiprocessors, *(-(-count // TILE_ROWS) for count in rows))

    @property
    def slots(self) -> int:
        """Slots of the ring: what the rest of the kernel's Shared leaves, which is counted here, rounded up."""
        shape, queries = self.shape, self.shape.query_heads_per_kv_head
        residual = -(-shape.hidden // TILE_ROWS // self.blocks) * self.rows * TILE_ROWS * 4
        squares = self.rows * -(-shape.hidden // SEGMENT) * 4
        heads = queries * (shape.head_size * 2 + 16 + 4 * (PAGE * 2 + 16)) + shape.head_size * 4 + 4 * WARPS * queries
        rest = SCRATCH_BYTES + residual + squares + heads + 8 * 32 * WARPS + 8 * self.rows + 24 * MOST_SLOTS + 1024
        return min(MOST_SLOTS, (self.shared_bytes - rest) // SLOT_BYTES)

    def exchange_words(self, chunks: int) -> int:
        """Words of sixteen bytes, where rows have up to `chunks` chunks of keys: see the constants ..._AT of decode.cu."""
        shape = self.shape
        inputs = 2 * shape.hidden + shape.inner + shape.attended
        partial = shape.heads * chunks * (shape.head_size + 2) // 2
        return self.rows * (inputs // 4 + shape.qkv_rows // 2 + self.blocks + partial)

    def definitions(self) -> dict[str, str]:
        """The constants that decode.cu is compiled with."""
        shape, blocks = self.shape, self.blocks
        assert (KEY_BLOCK, KEY_CHUNK % PAGE) == (PAGE, 0)
        values: dict[str, object] = {
            "HIDDEN": shape.hidden, "LAYERS": shape.layers, "HEADS": shape.heads, "KV_HEADS": shape.kv_heads,
            "HEAD_SIZE": shape.head_size, "INNER": shape.inner, "VOCABULARY": shape.vocabulary,
            "EPSILON": f"{shape.epsilon!r}f", "HEAD_NORMS": int(shape.head_norms), "QKV_BIAS": int(shape.qkv_bias),
            "QUERY_SCALE": f"{shape.head_size**-0.5 / np.log(2):.9e}f", "ROWS": self.rows, "BLOCKS": blocks,
            "SLOTS": self.slots, "FLIGHT": FLIGHT, "HEAD_FLIGHT": HEAD_FLIGHT, "SHARED_BYTES": self.shared_bytes,
            "SEGMENT": SEGMENT, "CHUNK_PAGES": KEY_CHUNK // PAGE, "WEIGHTS_FLOAT16": int(self.weights == "F16"),
            "CACHE_FLOAT16": int(self.cache == "f16"), "QKV_TURN": self._turn(shape.qkv_rows // TILE_ROWS),
            "GATE_UP_TURN": self._turn(2 * shape.inner // TILE_ROWS), "ATTENTION_TURN": max(1, 37 % blocks),
        }  # fmt: skip
        return {name: str(value) for name, value in values.items()}

    def _turn(self, tiles: int) -> int:
        """How far the blocks that have one tile more move on from layer to layer."""
        return -tiles % self.blocks
