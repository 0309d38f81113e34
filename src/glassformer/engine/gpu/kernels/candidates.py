"""The best few of each row of scores, and what a softmax over all of them is made of, so that scores can stay on the device.

Blocks of the vocabulary find their own best few first; these are then merged.

Shapes: scores (rows, vocabulary); candidates (rows, count), best first.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096  # scores of one program
NEVER = tl.constexpr(float("-inf"))
NO_ID = tl.constexpr(2147483647)


def top_scores(scores: Tensor, values: Tensor, ids: Tensor, sums: Tensor) -> None:
    """The best few scores of each row and their ids, int32; of equal scores, the lowest ids.

    `sums`: (rows, 3) in float32: of exp(depth), of exp(depth) · depth, where depth is a score minus the best one, and how
    many scores are above minus infinity.
    """
    rows, vocabulary = scores.shape
    count, blocks = values.shape[1], triton.cdiv(vocabulary, BLOCK)
    assert count <= vocabulary
    block_values = torch.empty(rows, blocks, count, device=scores.device)
    block_ids = torch.empty(rows, blocks, count, dtype=torch.int32, device=scores.device)
    block_sums = torch.empty(rows, blocks, 4, device=scores.device)
    options = {
        "enable_fp_fusion": False,
    }
    block_top_kernel[blocks, rows](
        scores, block_values, block_ids, block_sums, vocabulary, scores.stride(0), count, BLOCK=BLOCK, num_warps=8, **options
    )  # fmt: skip
    merge_top_kernel[rows,](
        block_values, block_ids, block_sums, values, ids, sums, blocks, count,
        CANDIDATES=triton.next_power_of_2(blocks * count), BLOCKS=triton.next_power_of_2(blocks), **options,
    )  # fmt: skip


@triton.jit
def store_best(scores, ids, count, values_ptr, ids_ptr):
    """The best `count` of some candidates, one after another; those with the id NO_ID are none."""
    left = ids != NO_ID
    for index in range(count):
        best = tl.max(tl.where(left, scores, NEVER), axis=0)
        chosen = tl.min(tl.where(left & (scores == best), ids, NO_ID), axis=0)
        tl.store(values_ptr + index, best)
        tl.store(ids_ptr + index, chosen)
        left = left & (ids != chosen)


@triton.jit(do_not_specialize=["count"])
def block_top_kernel(
    scores_ptr, values_ptr, ids_ptr, sums_ptr, vocabulary, stride, count, BLOCK: tl.constexpr
):  # fmt: skip
    block, row = tl.program_id(0), tl.program_id(1)
    place = block * BLOCK + tl.arange(0, BLOCK)
    scores = tl.load(scores_ptr + row.to(tl.int64) * stride + place, mask=place < vocabulary, other=NEVER)
    slot = row * tl.num_programs(0) + block
    highest = tl.max(scores, axis=0)
    depth = tl.where(scores == NEVER, 0.0, scores - highest)
    weight = tl.where(scores == NEVER, 0.0, tl.exp(depth))
    tl.store(sums_ptr + slot * 4, tl.sum(weight, axis=0))
    tl.store(sums_ptr + slot * 4 + 1, tl.sum(weight * depth, axis=0))
    tl.store(sums_ptr + slot * 4 + 2, tl.sum((scores > NEVER).to(tl.float32), axis=0))
    tl.store(sums_ptr + slot * 4 + 3, highest)
    store_best(scores, tl.where(place < vocabulary, place, NO_ID), count, values_ptr + slot * count, ids_ptr + slot * count)


@triton.jit(do_not_specialize=["count", "blocks"])
def merge_top_kernel(
    block_values, block_ids, block_sums, values_ptr, ids_ptr, sums_ptr, blocks, count, CANDIDATES: tl.constexpr,
    BLOCKS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    block = tl.arange(0, BLOCKS)
    slot, inside = (row * blocks + block) * 4, block < blocks
    highest = tl.load(block_sums + slot + 3, mask=inside, other=NEVER)
    best = tl.max(highest, axis=0)
    empty = highest == NEVER
    lower = tl.where(empty, 0.0, highest - best)
    factor = tl.where(empty, 0.0, tl.exp(lower))
    total = tl.load(block_sums + slot, mask=inside, other=0.0)
    weighted = tl.load(block_sums + slot + 1, mask=inside, other=0.0) + total * lower
    tl.store(sums_ptr + row * 3, tl.sum(total * factor, axis=0))
    tl.store(sums_ptr + row * 3 + 1, tl.sum(weighted * factor, axis=0))
    tl.store(sums_ptr + row * 3 + 2, tl.sum(tl.load(block_sums + slot + 2, mask=inside, other=0.0), axis=0))
    place = tl.arange(0, CANDIDATES)
    candidate = row * blocks * count + place
    scores = tl.load(block_values + candidate, mask=place < blocks * count, other=NEVER)
    ids = tl.load(block_ids + candidate, mask=place < blocks * count, other=NO_ID)
    store_best(scores, ids, count, values_ptr + row * count, ids_ptr + row * count)
