"""What the kernels read: matrices, norms, and the numbers of a pass, all on the device.

Shapes: tokens, feeds, keys and pages are counted over a pass; a feed is one row's tokens in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 256  # keys of one online softmax of a step pass; fixed, so that results do not depend on the batch
FLOAT_KINDS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


@dataclass(frozen=True)
class DeviceMatrix:
    """A weight matrix, (rows, columns) = (outputs, inputs). `float_matrix` and `pack` make one."""

    kind: str  # F32, F16, BF16, or a packed kind: Q8_0, Q4_0, Q4_1, Q4_K, Q5_K, Q6_K
    rows: int
    columns: int
    data: Tensor  # floats, (rows, columns); or codes: int8 (rows, columns), or uint8 (rows, columns / 2)
    bias: Tensor | None = None  # (rows) in float32
    scales: Tensor | None = None  # words of packed kinds, (rows, columns / 64); see packed_matmul.py
    outer_scales: Tensor | None = None  # what those are multiplied with, or minimums; for kinds that have them
    high_bits: Tensor | None = None  # uint8: fifth and sixth bits of codes, for Q5_K and Q6_K

    def part(self, first: int, rows: int) -> DeviceMatrix:
        """Some of its rows, as they lie in it."""
        scales, outer_scales, high_bits = (
            None if tensor is None else tensor[first : first + rows]
            for tensor in (self.scales, self.outer_scales, self.high_bits)
        )
        data = self.data[first : first + rows]
        return DeviceMatrix(self.kind, rows, self.columns, data, None, scales, outer_scales, high_bits)


@dataclass(frozen=True)
class DeviceNorm:
    kind: str  # "rms", "layer" or "l2"
    weight: Tensor  # (width) in float32, a model's constant offset already added
    bias: Tensor | None  # the same
    eps: float
    groups: int = 1  # parts of equal width that are normed by themselves


@dataclass(frozen=True)
class CachedHeads:
    """Which keys and values a kernel reads or writes, and by how many heads."""

    layer: int
    heads: int  # of queries
    kv_heads: int
    head_size: int
    cross: bool = False  # whether they are those of the row's source


@dataclass(frozen=True)
class AttentionRule:
    """How queries are scored against keys, and which keys they see."""

    scale: float
    causal: bool
    window: int = 0  # keys that a query sees at most, itself included; 0: all
    distance_bias: Tensor | None = None  # (heads, 2 * max_distance + 1), added by the distance from query to key

    @property
    def max_distance(self) -> int:
        """Beyond it, all distances have the same bias."""
        return 0 if self.distance_bias is None else self.distance_bias.shape[1] // 2


@dataclass
class PassTensors:
    """The numbers of one pass: int32 on the device, at addresses that a captured graph can keep."""

    ids: Tensor  # (tokens)
    positions: Tensor  # (tokens): for embeddings, RoPE, windows and distance biases
    slots: Tensor  # (tokens): where in its row's cache a token's key and value lie; equal to its position but in trees
    feed_of_token: Tensor  # (tokens)
    starts: Tensor  # (feeds): the row's length before the whole feed; a tree's tokens lie from there on
    ends: Tensor  # (feeds): the row's length after the whole feed: what bidirectional attention sees
    first_tokens: Tensor  # (feeds): the index of the feed's first token in this pass
    token_counts: Tensor  # (feeds): how many it has in this pass
    page_table: Tensor  # (feeds, pages): indices of pages in the pool
    states: Tensor  # (feeds): where the row's state lies in the pool of states
    types: Tensor | None = None  # (tokens): token types; None: all zero
    source_lengths: Tensor | None = None  # (feeds): keys of cross-attention
    source_page_table: Tensor | None = None  # (feeds, pages)
    tree_mask: Tensor | None = (
        None  # (tokens, width) uint8: which of its feed's tokens, from `starts` on, a token sees; a feed
    )
    #                                  that is no tree has ones up to and with itself. None: no feed of the pass is a tree
    tree_positions: Tensor | None = None  # (feeds, width): the positions of the feed's tokens, from `starts` on


def float_matrix(weights: Tensor, bias: Tensor | None = None) -> DeviceMatrix:
    """A matrix of floats, as it is; several that read one input are concatenated first."""
    rows, columns = weights.shape
    return DeviceMatrix(FLOAT_KINDS[weights.dtype], rows, columns, weights.contiguous(), bias)
