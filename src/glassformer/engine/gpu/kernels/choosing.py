"""The next token of each row, chosen on the device: the best one, or one drawn after temperature, top_k, top_p and min_p.

A draw chooses the token that `Policy.feed` would choose: what a rule keeps is compared in float32, as there, and what is
summed is summed in float64. Whatever these rules keep is a beginning of the candidates by score and then by id. So the best
of them are found and sorted once; each rule is then a count, and its sums are those of as many candidates.

    block_maxima    the best score of each block of the vocabulary, and of many small groups in it
    bound           a score that as many groups reach as candidates are wanted
    candidates      whatever reaches it goes to a list
    choose          one program a row sorts its list, applies the rules, draws, and says what it has seen

Rows that are drawn from without top_k or top_p have no short list. Their token is found by the sums of blocks.

Shapes: scores (rows, vocabulary); rules (rows, RULES + steps) in float64; records (steps, rows, record size) in float64.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl
from torch import Tensor

from glassformer.engine.gpu.kernels.candidates import NEVER, NO_ID
from glassformer.engine.protocol import ChoiceRecords

BLOCK = 1024  # scores of one program
RUN = tl.constexpr(32)  # neighbours that stay together where a vocabulary is dealt out to blocks, like cards
BEST_BLOCK = 4096  # scores of one program that finds the best alone
MOST_GROUPS = 1024
SHORT, LONG = 256, 1024  # lengths of the list
FEW, MANY = 64, 256  # candidates that are wanted for them
MOST_SHOWN = FEW

# Columns of `rules`; the draws of the next steps follow them
TEMPERATURE, TOP_K, TOP_P, MIN_DEPTH, SAMPLED = (tl.constexpr(column) for column in range(5))
RULES = 5

# Columns of a record: three numbers, three for each stage, then the ids and the scores of the best few
SHARE, BEST, CHOSEN, STAGE_SUMS = (tl.constexpr(column) for column in range(4))
STAGES = 5  # the model's scores, then after each rule
FIRST_SHOWN = tl.constexpr(3 + 3 * STAGES)

# Columns of a block's sums
IN_PLAY, TOTAL, WEIGHTED, SCALED_TOTAL, SCALED_WEIGHTED, KEPT, KEPT_TOTAL, KEPT_WEIGHTED = (
    tl.constexpr(column) for column in range(8)
)
SUMS = 8


class ChoiceMode(NamedTuple):
    """What kernels are compiled for: what any of the rows needs."""

    shown: int = 0  # candidates that are recorded
    long: bool = False  # whether some row's list is long
    sums: bool = False  # whether sums over the whole vocabulary are needed
    whole: bool = False  # whether some row is drawn from the whole vocabulary, or from what min_p leaves of it


def record_size(shown: int) -> int:
    return 3 + 3 * STAGES + 2 * shown


def read_records(records: npt.NDArray[np.float64]) -> ChoiceRecords:
    """One row's records, (steps, record size)."""
    numbers, stages, shown = np.split(records, (3, 3 + 3 * STAGES), axis=1)
    shares, best, chosen = numbers.T
    in_play, totals, weighted = stages.reshape(-1, STAGES, 3).transpose(2, 0, 1)
    ids, scores = np.split(shown, 2, axis=1)
    return ChoiceRecords(
        shares, best, chosen, in_play, totals, weighted, ids.astype(np.int64), scores.astype(np.float32)
    )  # fmt: skip


def choose_best(scores: Tensor, tokens: Tensor) -> None:
    """The best token of each row, the first of equals, int32; -1 where scores are not all numbers."""
    rows, vocabulary = scores.shape
    blocks = triton.cdiv(vocabulary, BEST_BLOCK)
    values = torch.empty(rows, blocks, device=scores.device)
    ids = torch.empty(rows, blocks, dtype=torch.int32, device=scores.device)
    block_best_kernel[blocks, rows](scores, values, ids, vocabulary, scores.stride(0), BLOCK=BEST_BLOCK, num_warps=8)
    merge_best_kernel[rows,](values, ids, tokens, blocks, BLOCKS=triton.next_power_of_2(blocks), num_warps=1)


def choose(scores: Tensor, rules: Tensor, step: Tensor, records: Tensor, tokens: Tensor, mode: ChoiceMode) -> None:
    """A token for each row, int32, and a record of its choice at the row's step; -1 where none was chosen.

    That is where scores are not all numbers, or where more candidates are needed than a list has room for.
    """
    rows, vocabulary = scores.shape
    blocks = triton.cdiv(vocabulary, BLOCK)
    group = triton.next_power_of_2(triton.cdiv(vocabulary, MOST_GROUPS))
    groups, length = blocks * (BLOCK // group), LONG if mode.long else SHORT
    device = scores.device
    bests = torch.empty(rows, blocks, device=device)
    maxima = torch.empty(rows, groups, device=device)
    bounds = torch.empty(rows, 2, device=device)
    listed = torch.empty(rows, dtype=torch.int32, device=device)
    keys = torch.empty(rows, length, dtype=torch.int64, device=device)
    sums = torch.empty(rows, blocks, SUMS, dtype=torch.float64, device=device)
    strides = (scores.stride(0), rules.stride(0))
    block_maxima_kernel[blocks, rows](
        scores, bests, maxima, vocabulary, scores.stride(0), BLOCK=BLOCK, GROUP=group, num_warps=4
    )
    bound_kernel[rows,](
        rules, bests, maxima, bounds, listed, blocks, groups, rules.stride(0), BLOCKS=triton.next_power_of_2(blocks),
        GROUPS=triton.next_power_of_2(groups), FEW=FEW, MANY=MANY if vocabulary > LONG else LONG, num_warps=4,
    )  # fmt: skip
    candidates_kernel[blocks, rows](
        scores, rules, bounds, listed, keys, sums, vocabulary, *strides, BLOCK=BLOCK, LENGTH=length, WITH_SUMS=mode.sums,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    choose_kernel[rows,](
        scores, rules, step, bounds, listed, keys, sums, records, tokens, vocabulary, blocks, *strides, records.stride(0),
        BLOCK=BLOCK, BLOCKS=triton.next_power_of_2(blocks), LENGTH=length, WITH_SUMS=mode.sums, SHOWN=mode.shown,
        WHOLE=mode.whole, num_warps=8 if mode.long else 4, enable_fp_fusion=False,
    )  # fmt: skip


def advance(
    tokens: Tensor, chosen: Tensor, step: Tensor, ids: Tensor, positions: Tensor, slots: Tensor, starts: Tensor, ends: Tensor
) -> None:
    """Make each row's token its next one: it is kept in `chosen` (steps, rows), and all numbers of the pass go on by one."""
    rows = len(tokens)
    advance_kernel[1,](
        tokens, chosen, step, ids, positions, slots, starts, ends, rows, chosen.stride(0),
        ROWS=triton.next_power_of_2(rows), num_warps=4,
    )  # fmt: skip


# The best alone ----------------------------------------------------------------------------------------------------------


@triton.jit
def block_best_kernel(scores_ptr, values_ptr, ids_ptr, vocabulary, stride, BLOCK: tl.constexpr):
    block, row = tl.program_id(0), tl.program_id(1)
    place = block * BLOCK + tl.arange(0, BLOCK)
    scores = tl.load(scores_ptr + row.to(tl.int64) * stride + place, mask=place < vocabulary, other=NEVER)
    best = best_or_infinite(scores)
    slot = row * tl.num_programs(0) + block
    tl.store(values_ptr + slot, best)
    tl.store(ids_ptr + slot, tl.min(tl.where(scores == best, place, NO_ID), axis=0))


@triton.jit(do_not_specialize=["blocks"])
def merge_best_kernel(values_ptr, ids_ptr, tokens_ptr, blocks, BLOCKS: tl.constexpr):
    row, block = tl.program_id(0), tl.arange(0, BLOCKS)
    values = tl.load(values_ptr + row * blocks + block, mask=block < blocks, other=NEVER)
    ids = tl.load(ids_ptr + row * blocks + block, mask=block < blocks, other=NO_ID)
    best = tl.max(values, axis=0)
    token = tl.min(tl.where(values == best, ids, NO_ID), axis=0)
    tl.store(tokens_ptr + row, tl.where((best == float("inf")) | (best == NEVER), -1, token))


@triton.jit
def best_or_infinite(scores):
    """The best score; plus infinity where some of them are not numbers."""
    not_numbers = tl.max(((scores != scores) | (scores == float("inf"))).to(tl.int32), axis=0)
    return tl.where(not_numbers > 0, float("inf"), tl.max(scores, axis=0))


# By rules ----------------------------------------------------------------------------------------------------------------


@triton.jit
def ordered(scores):
    """Scores as int32 in the same order; both zeros as one."""
    bits = tl.where(scores == 0.0, 0.0, scores).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def score_of(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def weights_of(scores, best, counted):
    """exp(score − best) in float64 for those that are counted, and that times score − best."""
    depths = tl.where(counted, scores - best, 0.0).to(tl.float64)
    weights = tl.where(counted, tl.exp(depths), 0.0)
    return weights, weights * depths


@triton.jit
def min_p_cut(rules_ptr, best):
    """The score that min_p keeps from; minus infinity without it."""
    cut = (best.to(tl.float64) + tl.load(rules_ptr + MIN_DEPTH)).to(tl.float32)
    return tl.minimum(cut, best)


@triton.jit
def block_maxima_kernel(
    scores_ptr, bests_ptr, maxima_ptr, vocabulary, stride, BLOCK: tl.constexpr, GROUP: tl.constexpr
):  # fmt: skip
    block, row, blocks = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    GROUPS: tl.constexpr = BLOCK // GROUP
    lane = tl.arange(0, BLOCK)
    place = lane // RUN * (RUN * blocks) + block * RUN + lane % RUN
    scores = tl.load(scores_ptr + row.to(tl.int64) * stride + place, mask=place < vocabulary, other=NEVER)
    tl.store(bests_ptr + row * blocks + block, best_or_infinite(scores))
    maxima = tl.max(tl.reshape(scores, (GROUP, GROUPS)), axis=0)
    tl.store(maxima_ptr + (row * blocks + block) * GROUPS + tl.arange(0, GROUPS), maxima)


@triton.jit(do_not_specialize=["blocks", "groups"])
def bound_kernel(
    rules_ptr, bests_ptr, maxima_ptr, bounds_ptr, listed_ptr, blocks, groups, rules_stride, BLOCKS: tl.constexpr,
    GROUPS: tl.constexpr, FEW: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """The row's best score, and one that as many groups reach as candidates are wanted, or half as many again."""
    row, block, group = tl.program_id(0), tl.arange(0, BLOCKS), tl.arange(0, GROUPS)
    best = tl.max(tl.load(bests_ptr + row * blocks + block, mask=block < blocks, other=NEVER), axis=0)
    top_k = tl.load(rules_ptr + row * rules_stride + TOP_K).to(tl.int32)
    sampled = tl.load(rules_ptr + row * rules_stride + SAMPLED) != 0.0
    wanted = tl.where(sampled & (top_k == 0), MANY, tl.maximum(top_k, FEW))
    inside = group < groups
    maxima = ordered(tl.load(maxima_ptr + row * groups + group, mask=inside, other=NEVER))
    highest = tl.max(maxima, axis=0)
    low = tl.min(tl.where(inside, maxima, highest), axis=0).to(tl.int64)  # reached by all
    high = highest.to(tl.int64) + 1  # by none
    reached = groups
    while (reached > wanted + wanted // 2) & (high - low > 1):
        middle = (low + high) >> 1
        count = tl.sum((inside & (maxima >= middle)).to(tl.int32), axis=0)
        enough = count >= wanted
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
        reached = tl.where(enough, count, reached)
    tl.store(bounds_ptr + row * 2, best)
    tl.store(bounds_ptr + row * 2 + 1, score_of(low.to(tl.int32)))
    tl.store(listed_ptr + row, 0)


@triton.jit
def candidates_kernel(
    scores_ptr, rules_ptr, bounds_ptr, listed_ptr, keys_ptr, sums_ptr, vocabulary, stride, rules_stride,
    BLOCK: tl.constexpr, LENGTH: tl.constexpr, WITH_SUMS: tl.constexpr,
):  # fmt: skip
    block, row, blocks = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    rules_ptr += row * rules_stride
    best = tl.load(bounds_ptr + row * 2)
    temperature = tl.load(rules_ptr + TEMPERATURE).to(tl.float32)
    bound = tl.div_rn(tl.load(bounds_ptr + row * 2 + 1), temperature)
    place = block * BLOCK + tl.arange(0, BLOCK)
    scores = tl.load(scores_ptr + row.to(tl.int64) * stride + place, mask=place < vocabulary, other=NEVER)
    scaled = tl.div_rn(scores, temperature)
    in_play = scores > NEVER
    within = in_play & (scaled >= bound)
    count = tl.sum(within.to(tl.int32), axis=0)
    slot = tl.atomic_add(listed_ptr + row, count) + tl.cumsum(within.to(tl.int32), axis=0) - 1
    keys = (ordered(scaled).to(tl.int64) << 32) | (NO_ID - place)
    tl.store(keys_ptr + row.to(tl.int64) * LENGTH + slot, keys, mask=within & (slot < LENGTH))

    if WITH_SUMS:
        sums_ptr += (row * blocks + block) * 8
        scaled_best = tl.div_rn(best, temperature)
        depths = tl.where(in_play, scores - best, 0.0)
        weights = tl.where(in_play, tl.exp(depths), 0.0)
        tl.store(sums_ptr + IN_PLAY, tl.sum(in_play.to(tl.int32), axis=0).to(tl.float64))
        tl.store(sums_ptr + TOTAL, tl.sum(weights.to(tl.float64), axis=0))
        tl.store(sums_ptr + WEIGHTED, tl.sum((weights * depths).to(tl.float64), axis=0))
        weights, weighted = weights_of(scaled, scaled_best, in_play)
        tl.store(sums_ptr + SCALED_TOTAL, tl.sum(weights, axis=0))
        tl.store(sums_ptr + SCALED_WEIGHTED, tl.sum(weighted, axis=0))
        kept = in_play & (scaled >= min_p_cut(rules_ptr, scaled_best))
        tl.store(sums_ptr + KEPT, tl.sum(kept.to(tl.int32), axis=0).to(tl.float64))
        tl.store(sums_ptr + KEPT_TOTAL, tl.sum(tl.where(kept, weights, 0.0), axis=0))
        tl.store(sums_ptr + KEPT_WEIGHTED, tl.sum(tl.where(kept, weighted, 0.0), axis=0))


@triton.jit
def sum_of_blocks(sums_ptr, column, blocks, BLOCKS: tl.constexpr):
    block = tl.arange(0, BLOCKS)
    return tl.sum(tl.load(sums_ptr + block * 8 + column, mask=block < blocks, other=0.0), axis=0)


@triton.jit
def store_stage(record_ptr, stage: tl.constexpr, count, total, weighted):
    tl.store(record_ptr + STAGE_SUMS + 3 * stage, count.to(tl.float64))
    tl.store(record_ptr + STAGE_SUMS + 3 * stage + 1, total)
    tl.store(record_ptr + STAGE_SUMS + 3 * stage + 2, weighted)


@triton.jit
def drawn_from_blocks(
    scores_ptr, sums_ptr, draw, best, temperature, cut, vocabulary, blocks, BLOCK: tl.constexpr, BLOCKS: tl.constexpr
):  # fmt: skip
    """The token under the draw's share of all that score from the cut on."""
    block = tl.arange(0, BLOCKS)
    masses = tl.load(sums_ptr + block * 8 + KEPT_TOTAL, mask=block < blocks, other=0.0)
    target = draw * tl.sum(masses, axis=0)
    last = tl.max(tl.where(masses > 0.0, block, 0), axis=0)
    chosen = tl.minimum(tl.sum((tl.cumsum(masses, axis=0) <= target).to(tl.int32), axis=0), last)
    before = tl.sum(tl.where(block < chosen, masses, 0.0), axis=0)
    lane = tl.arange(0, BLOCK)
    place = chosen * BLOCK + lane
    scaled = tl.div_rn(tl.load(scores_ptr + place, mask=place < vocabulary, other=NEVER), temperature)
    kept = (scaled > NEVER) & (scaled >= cut)
    weights, _ = weights_of(scaled, best, kept)
    index = tl.sum((before + tl.cumsum(weights, axis=0) <= target).to(tl.int32), axis=0)
    return chosen * BLOCK + tl.minimum(index, tl.max(tl.where(kept, lane, 0), axis=0))


@triton.jit(do_not_specialize=["blocks"])
def choose_kernel(
    scores_ptr, rules_ptr, step_ptr, bounds_ptr, listed_ptr, keys_ptr, sums_ptr, records_ptr, tokens_ptr, vocabulary, blocks,
    stride, rules_stride, records_stride, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, LENGTH: tl.constexpr,
    WITH_SUMS: tl.constexpr, SHOWN: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    scores_ptr += row.to(tl.int64) * stride
    rules_ptr += row * rules_stride
    sums_ptr += row * blocks * 8
    step = tl.load(step_ptr + row)
    record_ptr = records_ptr + step.to(tl.int64) * records_stride + row * (FIRST_SHOWN + 2 * SHOWN)
    temperature = tl.load(rules_ptr + TEMPERATURE).to(tl.float32)
    top_k = tl.load(rules_ptr + TOP_K).to(tl.int32)
    top_p = tl.load(rules_ptr + TOP_P)
    sampled = tl.load(rules_ptr + SAMPLED) != 0.0
    best = tl.load(bounds_ptr + row * 2)
    scaled_best = tl.div_rn(best, temperature)

    # The list, by score and then by id
    candidates = tl.load(listed_ptr + row)
    listed = tl.minimum(candidates, LENGTH)
    position = tl.arange(0, LENGTH)
    keys = tl.load(keys_ptr + row.to(tl.int64) * LENGTH + position, mask=position < listed, other=-9223372036854775808)
    keys = tl.sort(keys, descending=True)
    ids = NO_ID - (keys & 0x7FFFFFFF).to(tl.int32)
    score_keys = (keys >> 32).to(tl.int32)
    scaled = score_of(score_keys)
    weights, weighted = weights_of(scaled, scaled_best, position < listed)

    in_play, total, sum_weighted = listed, 0.0, 0.0
    if WITH_SUMS:
        in_play = sum_of_blocks(sums_ptr, IN_PLAY, blocks, BLOCKS).to(tl.int32)
        total = sum_of_blocks(sums_ptr, SCALED_TOTAL, blocks, BLOCKS)
        sum_weighted = sum_of_blocks(sums_ptr, SCALED_WEIGHTED, blocks, BLOCKS)

    # top_k: those that reach the k-th best
    has_top_k = (top_k > 0) & (top_k < vocabulary)
    kth = tl.sum(tl.where(position == top_k - 1, score_keys, 0), axis=0)
    reaching = tl.sum(((position < listed) & (score_keys >= kth)).to(tl.int32), axis=0)
    reaching = tl.where(top_k <= listed, reaching, listed)
    counted_k = tl.where(has_top_k, reaching, in_play)
    inside = position < tl.minimum(counted_k, listed)
    total_k = tl.where(has_top_k, tl.sum(tl.where(inside, weights, 0.0), axis=0), total)
    weighted_k = tl.where(has_top_k, tl.sum(tl.where(inside, weighted, 0.0), axis=0), sum_weighted)

    # top_p: the first that together have this share
    has_top_p = top_p < 1.0
    below = inside & (tl.cumsum(tl.where(inside, weights, 0.0), axis=0) < top_p * total_k)
    needed = tl.sum(below.to(tl.int32), axis=0) + 1
    too_many = has_top_p & (needed > listed) & (listed < counted_k)
    counted_p = tl.where(has_top_p, tl.minimum(needed, counted_k), counted_k)
    inside = position < tl.minimum(counted_p, listed)
    total_p = tl.where(has_top_p, tl.sum(tl.where(inside, weights, 0.0), axis=0), total_k)
    weighted_p = tl.where(has_top_p, tl.sum(tl.where(inside, weighted, 0.0), axis=0), weighted_k)

    # min_p: those that reach its cut
    from_list = has_top_k | has_top_p
    cut = min_p_cut(rules_ptr, scaled_best)
    inside = inside & (scaled >= cut)
    kept = tl.sum(inside.to(tl.int32), axis=0)
    kept_total = tl.sum(tl.where(inside, weights, 0.0), axis=0)
    kept_weighted = tl.sum(tl.where(inside, weighted, 0.0), axis=0)

    # The draw: the kept ones stand in the order of their ids
    draw = tl.load(rules_ptr + 5 + step, mask=sampled, other=0.0)
    by_id = tl.sort(tl.where(inside, ids, NO_ID))
    standing = position < kept
    by_id_scores = tl.div_rn(tl.load(scores_ptr + by_id, mask=standing, other=NEVER), temperature)
    by_id_weights, _ = weights_of(by_id_scores, scaled_best, standing)
    passed = standing & (tl.cumsum(by_id_weights, axis=0) <= draw * kept_total)
    index = tl.minimum(tl.sum(passed.to(tl.int32), axis=0), kept - 1)
    token = tl.sum(tl.where(position == index, by_id, 0), axis=0)
    if WHOLE:
        whole = drawn_from_blocks(
            scores_ptr, sums_ptr, draw, scaled_best, temperature, cut, vocabulary, blocks, BLOCK, BLOCKS
        )
        token = tl.where(from_list, token, whole)
        kept = tl.where(from_list, kept, sum_of_blocks(sums_ptr, KEPT, blocks, BLOCKS).to(tl.int32))
        kept_total = tl.where(from_list, kept_total, sum_of_blocks(sums_ptr, KEPT_TOTAL, blocks, BLOCKS))
        kept_weighted = tl.where(from_list, kept_weighted, sum_of_blocks(sums_ptr, KEPT_WEIGHTED, blocks, BLOCKS))
    token = tl.where(sampled, token, tl.sum(tl.where(position == 0, ids, 0), axis=0))

    by_list = from_list | (sampled == 0) | (SHOWN > 0)
    undecided = (by_list & (candidates > LENGTH)) | too_many | (best == float("inf")) | (best == NEVER)
    token = tl.where(undecided, -1, token)
    tl.store(tokens_ptr + row, token)

    chosen = tl.load(scores_ptr + tl.maximum(token, 0))
    share = tl.exp((tl.div_rn(chosen, temperature) - scaled_best).to(tl.float64)) / kept_total
    tl.store(record_ptr + SHARE, share)
    tl.store(record_ptr + BEST, best.to(tl.float64))
    tl.store(record_ptr + CHOSEN, chosen.to(tl.float64))
    if SHOWN > 0:
        raw_total = sum_of_blocks(sums_ptr, TOTAL, blocks, BLOCKS)
        store_stage(record_ptr, 0, in_play, raw_total, sum_of_blocks(sums_ptr, WEIGHTED, blocks, BLOCKS))
        store_stage(record_ptr, 1, in_play, total, sum_weighted)
        store_stage(record_ptr, 2, counted_k, total_k, weighted_k)
        store_stage(record_ptr, 3, counted_p, total_p, weighted_p)
        store_stage(record_ptr, 4, kept, kept_total, kept_weighted)
        shown = (position < SHOWN) & (position < listed)
        raw = tl.load(scores_ptr + ids, mask=shown, other=NEVER)
        tl.store(record_ptr + FIRST_SHOWN + position, tl.where(shown, ids, -1).to(tl.float64), mask=position < SHOWN)
        tl.store(record_ptr + FIRST_SHOWN + SHOWN + position, raw.to(tl.float64), mask=position < SHOWN)


@triton.jit(do_not_specialize=["rows"])
def advance_kernel(
    tokens_ptr, chosen_ptr, step_ptr, ids_ptr, positions_ptr, slots_ptr, starts_ptr, ends_ptr, rows, chosen_stride,
    ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, ROWS)
    inside = row < rows
    tokens, step = tl.load(tokens_ptr + row, mask=inside), tl.load(step_ptr + row, mask=inside)
    tl.store(chosen_ptr + step * chosen_stride + row, tokens, mask=inside)
    tl.store(ids_ptr + row, tl.maximum(tokens, 0), mask=inside)
    tl.store(step_ptr + row, step + 1, mask=inside)
    tl.store(positions_ptr + row, tl.load(positions_ptr + row, mask=inside) + 1, mask=inside)
    tl.store(slots_ptr + row, tl.load(slots_ptr + row, mask=inside) + 1, mask=inside)
    tl.store(starts_ptr + row, tl.load(starts_ptr + row, mask=inside) + 1, mask=inside)
    tl.store(ends_ptr + row, tl.load(ends_ptr + row, mask=inside) + 1, mask=inside)
