"""Attention of queries over paged keys and values: for steps, for prompts, and its weights for a watcher.

Step passes: one program for each token, key/value head and chunk of 256 keys, so that few queries keep the whole device
busy; the queries that share a key/value head share its keys. Who finishes a token's last chunk merges them all, in order.
Prompt passes: one program for each head and block of a feed's tokens, over all of its keys (flash attention: Dao et al.,
https://arxiv.org/abs/2205.14135).

Shapes: queries (tokens, width), heads side by side from a column on; the pool of pages is (pages, layers, 2, kv_heads, PAGE,
head_size): keys, then values. A tile is (queries, keys).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from glassformer.engine.gpu.kernels.functions import can_be_tiled, shared_bytes
from glassformer.engine.gpu.kernels.tensors import CHUNK, AttentionRule, CachedHeads, PassTensors
from glassformer.engine.paged_rows import PAGE

QUERIES = 16  # heads of one token in a program: the least that tl.dot takes
NEVER = tl.constexpr(float("-inf"))
LOG2_E = tl.constexpr(math.log2(math.e))  # scores are multiplied with it, so that their weights are powers of two
UNSPECIALIZED = ("layer", "key_count", "tree_width", "window", "max_distance")  # one kernel for all values of these


def attention(
    p: PassTensors, queries: Tensor, pool: Tensor, out: Tensor, heads: CachedHeads, rule: AttentionRule, *, max_keys: int,
    rows: Tensor | None = None, prompt: bool = False, max_tokens: int = 0,
) -> None:  # fmt: skip
    """The heads' weighted values, (tokens, heads · head_size).

    `max_keys`: no feed has more keys; only what is launched depends on it. `rows`: of these tokens only. `prompt`: blocks of
    tokens, at most `max_tokens` a feed; without trees and `rows`.
    """
    arguments, constants = _arguments(p, queries, pool, out, rows, heads, rule)
    head_size, count = heads.head_size, heads.heads
    if prompt:
        assert rows is None
        assert p.tree_mask is None
        tile, rows_of_heads = prompt_tile(head_size, pool.dtype, shared_bytes(pool.device)), pool.view(-1, head_size)
        tiled = can_be_tiled(rows_of_heads)
        source = TensorDescriptor.from_tensor(rows_of_heads, [PAGE, constants["BLOCK"]]) if tiled else pool
        prompt_attention_kernel[count, p.starts.shape[0], triton.cdiv(max_tokens, tile.tokens)](
            arguments[0], source, *arguments[2:], p.first_tokens, p.token_counts,
            **constants, TOKENS=tile.tokens, TILED=tiled, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        return
    tokens = queries.shape[0] if rows is None else rows.shape[0]
    chunks, blocks = triton.cdiv(max_keys, CHUNK), triton.cdiv(count // heads.kv_heads, QUERIES)
    if tokens == 0:
        return
    partial_values = torch.empty(tokens * count * chunks, head_size, device=queries.device)
    partial_sums = torch.empty(tokens * count * chunks, 2, device=queries.device)
    tile = step_tile(head_size, pool.dtype, shared_bytes(pool.device))
    step_attention_kernel[tokens, heads.kv_heads * blocks, chunks](
        *arguments, partial_values, partial_sums, **constants, QUERIES=QUERIES, KEYS=tile.keys, CHUNK=CHUNK,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if chunks > 1:
        merge_chunks_kernel[tokens, count](*arguments, partial_values, partial_sums, chunks, **constants, CHUNK=CHUNK)


class AttentionTile(NamedTuple):
    """How much of a multiprocessor a program takes."""

    tokens: int  # of a block of a prompt pass; heads of one token of a step pass
    keys: int  # of one iteration
    warps: int
    stages: int  # iterations whose keys are loaded ahead


def step_tile(head_size: int, dtype: torch.dtype, shared: int) -> AttentionTile:
    """Decides the order in which a chunk's weights are summed: by the model's shape and the card alone."""
    keys = 64 if head_size > 128 or dtype == torch.float32 else 128
    tiles = [AttentionTile(QUERIES, keys, 4, 2), *(AttentionTile(QUERIES, few, 4, 1) for few in (32, 16))]
    return _first_within(tiles, 1, head_size, dtype, shared)


def prompt_tile(head_size: int, dtype: torch.dtype, shared: int) -> AttentionTile:
    """By what was fastest on an H200, if there is room for it."""
    tiles = [AttentionTile(64, PAGE, 4, stages) for stages in (3, 2, 1)]
    tiles += [AttentionTile(tokens, PAGE, 4, 1) for tokens in (32, 16)]
    return _first_within(tiles if head_size * dtype.itemsize <= 256 else tiles[1:], 0, head_size, dtype, shared)


def _first_within(
    tiles: Sequence[AttentionTile], unbuffered: int, head_size: int, dtype: torch.dtype, shared: int
) -> AttentionTile:
    """The first tile whose queries and weights, and keys and values of all stages, fit the shared memory; else the last.

    `unbuffered`: stages that need no memory of their own.
    """
    row = int(triton.next_power_of_2(head_size)) * dtype.itemsize
    for tile in tiles:
        loaded = (tile.tokens + 2 * tile.keys * max(1, tile.stages - unbuffered)) * row
        if loaded + tile.tokens * tile.keys * dtype.itemsize <= shared:
            return tile
    return tiles[-1]


def attention_pattern(
    p: PassTensors, queries: Tensor, pool: Tensor, out: Tensor, heads: CachedHeads, rule: AttentionRule, *, keys: int
) -> None:
    """The attention weights of each token, (tokens, heads · keys); zero for keys that it does not see."""
    arguments, constants = _arguments(p, queries, pool, out, None, heads, rule)
    if tokens := queries.shape[0]:
        grid = (tokens, heads.kv_heads * triton.cdiv(heads.heads // heads.kv_heads, QUERIES))
        attention_pattern_kernel[grid](*arguments, keys, **constants, QUERIES=QUERIES, KEYS=PAGE)


def weighted_values(p: PassTensors, pattern: Tensor, pool: Tensor, out: Tensor, heads: CachedHeads, *, keys: int) -> None:
    """Heads from attention weights, (tokens, heads · keys), that somebody changed."""
    table, lengths = _page_table(p, heads)
    if tokens := pattern.shape[0]:
        weighted_values_kernel[tokens, heads.heads](
            pattern, pool, out, None, p.feed_of_token, lengths, table, pattern.stride(0), out.stride(0), table.stride(0),
            pool.stride(0), heads.layer, heads.heads, heads.kv_heads, keys, HAS_ROWS=False, HEAD_SIZE=heads.head_size,
            BLOCK=triton.next_power_of_2(heads.head_size), KEYS=PAGE, PAGE=PAGE,
        )  # fmt: skip


def _page_table(p: PassTensors, heads: CachedHeads) -> tuple[Tensor, Tensor | None]:
    """Where the keys and values of each feed's row or source lie, and how many there are."""
    table, lengths = (p.source_page_table, p.source_lengths) if heads.cross else (p.page_table, p.ends)
    assert table is not None
    return table, lengths


def _arguments(
    p: PassTensors, queries: Tensor, pool: Tensor, out: Tensor, rows: Tensor | None, heads: CachedHeads, rule: AttentionRule
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What all kernels that score keys are launched with."""
    table, ends = _page_table(p, heads)
    width = p.tree_mask.shape[1] if p.tree_mask is not None else 0
    arguments = (
        queries, pool, out, rows, p.positions, p.slots, p.feed_of_token, p.starts, ends, table, p.tree_mask,
        p.tree_positions, rule.distance_bias, queries.stride(0), out.stride(0), table.stride(0), pool.stride(0), width,
        heads.layer, rule.scale * LOG2_E.value, rule.window, rule.max_distance, heads.heads, heads.kv_heads,
    )  # fmt: skip
    constants = {
        "HAS_ROWS": rows is not None, "CAUSAL": rule.causal and not heads.cross,
        "WINDOW": rule.window > 0 and not heads.cross, "TREE": p.tree_mask is not None and not heads.cross,
        "BIAS": rule.distance_bias is not None, "HEAD_SIZE": heads.head_size,
        "BLOCK": max(16, triton.next_power_of_2(heads.head_size)), "PAGE": PAGE, "enable_fp_fusion": False,
    }  # fmt: skip
    return arguments, constants


@triton.jit
def key_range(
    token, feed, positions, slots, starts, ends, window, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, TREE: tl.constexpr
):  # fmt: skip
    """The position of a token, and the keys [first, end) of its row that it may see."""
    position = tl.load(positions + token)
    end = tl.load(slots + token) + 1 if CAUSAL else tl.load(ends + feed)
    first = position * 0
    if WINDOW:
        first = tl.maximum(position + 1 - window, 0)
        if TREE:
            first = tl.minimum(first, tl.load(starts + feed))
    return position, first, end


@triton.jit
def load_plane_rows(
    pool_ptr, page_table, feed, key, in_range, plane, table_stride, page_stride, HEAD_SIZE: tl.constexpr,
    BLOCK: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Keys or values of some slots of a feed's row, (keys, head_size); zero outside."""
    page = tl.load(page_table + feed.to(tl.int64) * table_stride + key // PAGE, mask=in_range, other=0)
    rows = pool_ptr + page.to(tl.int64) * page_stride + (plane.to(tl.int64) * PAGE + key % PAGE) * HEAD_SIZE
    place = tl.arange(0, BLOCK)
    mask = in_range[:, None] & (place < HEAD_SIZE)[None, :]
    return tl.load(rows[:, None] + place[None, :], mask=mask, other=0.0)


@triton.jit
def load_page(pool, row, HEAD_SIZE: tl.constexpr, BLOCK: tl.constexpr, PAGE: tl.constexpr, TILED: tl.constexpr):
    """All keys or values of a page that one head has, (PAGE, head_size), from a row of the pool's heads on.

    `TILED`: the pool is a descriptor, whose tiles the copy engine loads; otherwise an address.
    """
    if TILED:
        tile = pool.load([row.to(tl.int32), 0])
    else:
        place = tl.arange(0, BLOCK)
        addresses = pool + (row + tl.arange(0, PAGE).to(tl.int64))[:, None] * HEAD_SIZE + place[None, :]
        tile = tl.load(addresses, mask=(place < HEAD_SIZE)[None, :], other=0.0)
    return tile


@triton.jit
def masked_scores(
    query, keys, key, head, token, feed, position, first, end, scale, starts, tree_mask, tree_positions, distance_bias,
    tree_width, window, max_distance, in_query, WINDOW: tl.constexpr, TREE: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Scores of (queries, keys): scaled, biased, and minus infinity where a key is not seen.

    `token`, `position`, `first` and `end` are one token's, or each query's: (queries, 1).
    """
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
    if BIAS:
        away = tl.minimum(tl.maximum(key[None, :] - position, -max_distance), max_distance) + max_distance
        biases = distance_bias + head * (2 * max_distance + 1)
        scores += tl.load(biases + away, mask=in_query & (away >= 0), other=0.0) * LOG2_E
    seen = (key[None, :] >= first) & (key[None, :] < end)
    if TREE:
        node = key[None, :] - tl.load(starts + feed)
        in_tree = (node >= 0) & (node < tree_width)
        visible = tl.load(tree_mask + token.to(tl.int64) * tree_width + node, mask=in_tree, other=1) != 0
        if WINDOW:
            node_position = tl.load(tree_positions + feed.to(tl.int64) * tree_width + node, mask=in_tree, other=0)
            visible = visible & ((node < 0) | (position - node_position < window))
        seen = seen & visible
    return tl.where(seen, scores, NEVER)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def step_attention_kernel(
    query_ptr, pool_ptr, out_ptr, rows, positions, slots, feed_of_token, starts, ends, page_table, tree_mask, tree_positions,
    distance_bias, query_stride, out_stride, table_stride, page_stride, tree_width, layer, scale, window, max_distance,
    heads, kv_heads, partial_values, partial_sums, HAS_ROWS: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    TREE: tl.constexpr, BIAS: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK: tl.constexpr, PAGE: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    index, group, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    token = tl.load(rows + index) if HAS_ROWS else index
    feed = tl.load(feed_of_token + token)
    position, first, end = key_range(token, feed, positions, slots, starts, ends, window, CAUSAL, WINDOW, TREE)
    first_chunk, end_chunk = first // CHUNK, tl.cdiv(end, CHUNK)
    kv_head, head, in_group = group_heads(group, heads, kv_heads, QUERIES)
    plane = layer * 2 * kv_heads + kv_head
    if (chunk >= first_chunk) & (chunk < end_chunk):
        place = tl.arange(0, BLOCK)
        in_query = in_group[:, None] & (place < HEAD_SIZE)[None, :]
        queries = query_ptr + token.to(tl.int64) * query_stride + head[:, None] * HEAD_SIZE + place[None, :]
        query = tl.load(queries, mask=in_query, other=0.0).to(pool_ptr.dtype.element_ty)
        maximum = tl.full([QUERIES], NEVER, tl.float32)
        total = tl.zeros([QUERIES], tl.float32)
        values = tl.zeros([QUERIES, BLOCK], tl.float32)
        for start in range(chunk * CHUNK, tl.minimum((chunk + 1) * CHUNK, end), KEYS):
            key = start + tl.arange(0, KEYS)
            in_range = key < end
            keys = load_plane_rows(
                pool_ptr, page_table, feed, key, in_range, plane, table_stride, page_stride, HEAD_SIZE, BLOCK, PAGE
            )  # fmt: skip
            tile = load_plane_rows(
                pool_ptr, page_table, feed, key, in_range, plane + kv_heads, table_stride, page_stride, HEAD_SIZE, BLOCK,
                PAGE
            )  # fmt: skip
            scores = masked_scores(
                query, keys, key, head[:, None], token, feed, position, first, end, scale, starts, tree_mask, tree_positions,
                distance_bias, tree_width, window, max_distance, in_group[:, None], WINDOW, TREE, BIAS,
            )  # fmt: skip
            maximum, total, values = add_keys(scores, tile, maximum, total, values)
        if end_chunk - first_chunk == 1:
            out = out_ptr + token.to(tl.int64) * out_stride + head[:, None] * HEAD_SIZE + place[None, :]
            tl.store(out, values / total[:, None], mask=in_query)
        else:
            part = (index.to(tl.int64) * heads + head) * tl.num_programs(2) + chunk
            tl.store(partial_values + part[:, None] * HEAD_SIZE + place[None, :], values, mask=in_query)
            tl.store(partial_sums + part * 2, maximum, mask=in_group)
            tl.store(partial_sums + part * 2 + 1, total, mask=in_group)


@triton.jit(do_not_specialize=(*UNSPECIALIZED, "chunks"))
def merge_chunks_kernel(
    query_ptr, pool_ptr, out_ptr, rows, positions, slots, feed_of_token, starts, ends, page_table, tree_mask, tree_positions,
    distance_bias, query_stride, out_stride, table_stride, page_stride, tree_width, layer, scale, window, max_distance,
    heads, kv_heads, partial_values, partial_sums, chunks, HAS_ROWS: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, TREE: tl.constexpr, BIAS: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK: tl.constexpr,
    PAGE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """One head of one token from the online softmaxes of its chunks, 16 at a time."""
    index, head = tl.program_id(0), tl.program_id(1)
    token = tl.load(rows + index) if HAS_ROWS else index
    feed = tl.load(feed_of_token + token)
    _, first, end = key_range(token, feed, positions, slots, starts, ends, window, CAUSAL, WINDOW, TREE)
    first_chunk, end_chunk = first // CHUNK, tl.cdiv(end, CHUNK)
    if end_chunk - first_chunk > 1:
        place = tl.arange(0, BLOCK)
        highest = NEVER
        total = 0.0
        values = tl.zeros([BLOCK], tl.float32)
        for start in range(first_chunk // 16 * 16, end_chunk, 16):
            chunk = start + tl.arange(0, 16)
            known = (chunk >= first_chunk) & (chunk < end_chunk)
            part = (index.to(tl.int64) * heads + head) * chunks + chunk
            maximums = tl.load(partial_sums + part * 2, mask=known, other=NEVER)
            totals = tl.load(partial_sums + part * 2 + 1, mask=known, other=0.0)
            mask = known[:, None] & (place < HEAD_SIZE)[None, :]
            tile = tl.load(partial_values + part[:, None] * HEAD_SIZE + place[None, :], mask=mask, other=0.0)
            before = highest
            highest = tl.maximum(before, tl.max(maximums, axis=0))
            shift = tl.where(highest == NEVER, 0.0, highest)
            kept, weights = tl.exp2(before - shift), tl.exp2(maximums - shift)
            total = total * kept + tl.sum(totals * weights, axis=0)
            values = values * kept + tl.sum(tile * weights[:, None], axis=0)
        out = out_ptr + token.to(tl.int64) * out_stride + head * HEAD_SIZE + place
        tl.store(out, values / total, mask=place < HEAD_SIZE)


@triton.jit
def group_heads(group, heads, kv_heads, QUERIES: tl.constexpr):
    """The key/value head of a program, and the query heads that it computes."""
    share = heads // kv_heads
    kv_head, block = group % kv_heads, group // kv_heads
    index = block * QUERIES + tl.arange(0, QUERIES)
    return kv_head, kv_head * share + index, index < share


@triton.jit
def add_keys(scores, tile, maximum, total, values):
    """One more tile of keys of an online softmax."""
    highest = tl.maximum(maximum, tl.max(scores, axis=1))
    shift = tl.where(highest == NEVER, 0.0, highest)
    weights = tl.exp2(scores - shift[:, None])
    total, values = add_values(weights, tile, tl.exp2(maximum - shift), total, values)
    return highest, total, values


@triton.jit
def add_values(weights, tile, kept, total, values):
    """Weighted values of one more tile of keys, after so much is `kept` of those before."""
    total = total * kept + tl.sum(weights, axis=1)
    values = tl.dot(weights.to(tile.dtype), tile, values * kept[:, None], input_precision="ieee")
    return total, values


@triton.jit(do_not_specialize=(*UNSPECIALIZED, "kv_heads"))
def prompt_attention_kernel(
    query_ptr, pool, out_ptr, rows, positions, slots, feed_of_token, starts, ends, page_table, tree_mask, tree_positions,
    distance_bias, query_stride, out_stride, table_stride, page_stride, tree_width, layer, scale, window, max_distance,
    heads, kv_heads, first_tokens, token_counts, HAS_ROWS: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    TREE: tl.constexpr, BIAS: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK: tl.constexpr, PAGE: tl.constexpr,
    TOKENS: tl.constexpr, TILED: tl.constexpr,
):  # fmt: skip
    """Pages whose keys all queries of the block see are scored without a mask; the last ones with it.

    Both give the same bits, as long as nothing is fused: which of them a query's page goes through depends on where its
    feed begins, and so on how much of a prompt was cached.
    """
    head, feed = tl.program_id(0), tl.program_id(1)
    block = tl.num_programs(2) - 1 - tl.program_id(2)  # of all heads first those with the most keys
    count = tl.load(token_counts + feed)
    if block * TOKENS < count:
        index = block * TOKENS + tl.arange(0, TOKENS)
        live = index < count
        token = tl.load(first_tokens + feed) + tl.where(live, index, 0)
        position, first, end = key_range(token, feed, positions, slots, starts, ends, window, CAUSAL, WINDOW, TREE)
        end = tl.where(live, end + tl.zeros([TOKENS], tl.int32), 0)
        first = tl.where(live, first, 2147483647)
        place = tl.arange(0, BLOCK)
        in_query = live[:, None] & (place < HEAD_SIZE)[None, :]
        queries = query_ptr + token.to(tl.int64)[:, None] * query_stride + head * HEAD_SIZE + place[None, :]
        dtype = pool.dtype if TILED else pool.dtype.element_ty
        query = tl.load(queries, mask=in_query, other=0.0).to(dtype)
        maximum = tl.full([TOKENS], NEVER, tl.float32)
        total = tl.zeros([TOKENS], tl.float32)
        values = tl.zeros([TOKENS, BLOCK], tl.float32)
        low, last = tl.min(first, axis=0) // PAGE * PAGE, tl.max(end, axis=0)
        whole = low  # keys before it are seen by all
        if not WINDOW and not BIAS:
            whole = tl.min(tl.where(live, end, last), axis=0) // PAGE * PAGE
        pages = page_table + feed.to(tl.int64) * table_stride
        page_rows = page_stride // HEAD_SIZE
        first_row = (layer * 2 * kv_heads + head // (heads // kv_heads)) * PAGE
        for start in range(low, whole, PAGE):
            row = tl.load(pages + start // PAGE).to(tl.int64) * page_rows + first_row
            keys = load_page(pool, row, HEAD_SIZE, BLOCK, PAGE, TILED)
            tile = load_page(pool, row + kv_heads * PAGE, HEAD_SIZE, BLOCK, PAGE, TILED)
            dots = tl.dot(query, tl.trans(keys), input_precision="ieee")
            highest = tl.maximum(maximum, tl.max(dots, axis=1) * scale)
            weights = tl.exp2(dots * scale - highest[:, None])
            total, values = add_values(weights, tile, tl.exp2(maximum - highest), total, values)
            maximum = highest
        for start in range(whole, last, PAGE):
            row = tl.load(pages + start // PAGE).to(tl.int64) * page_rows + first_row
            key = start + tl.arange(0, PAGE)
            keys = load_page(pool, row, HEAD_SIZE, BLOCK, PAGE, TILED)
            tile = load_page(pool, row + kv_heads * PAGE, HEAD_SIZE, BLOCK, PAGE, TILED)
            tile = tl.where((key < last)[:, None], tile, tl.zeros_like(tile))  # what an earlier row left may be no number
            scores = masked_scores(
                query, keys, key, head, token[:, None], feed, position[:, None], first[:, None], end[:, None], scale, starts,
                tree_mask, tree_positions, distance_bias, tree_width, window, max_distance, live[:, None], WINDOW, TREE,
                BIAS,
            )  # fmt: skip
            maximum, total, values = add_keys(scores, tile, maximum, total, values)
        out = out_ptr + token.to(tl.int64)[:, None] * out_stride + head * HEAD_SIZE + place[None, :]
        tl.store(out, values / total[:, None], mask=in_query)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def attention_pattern_kernel(
    query_ptr, pool_ptr, out_ptr, rows, positions, slots, feed_of_token, starts, ends, page_table, tree_mask, tree_positions,
    distance_bias, query_stride, out_stride, table_stride, page_stride, tree_width, layer, scale, window, max_distance,
    heads, kv_heads, key_count, HAS_ROWS: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, TREE: tl.constexpr,
    BIAS: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK: tl.constexpr, PAGE: tl.constexpr, QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):  # fmt: skip
    """Scores are computed twice: for their maximum and total, then as weights."""
    index, group = tl.program_id(0), tl.program_id(1)
    token = tl.load(rows + index) if HAS_ROWS else index
    feed = tl.load(feed_of_token + token)
    position, first, end = key_range(token, feed, positions, slots, starts, ends, window, CAUSAL, WINDOW, TREE)
    kv_head, head, in_group = group_heads(group, heads, kv_heads, QUERIES)
    place = tl.arange(0, BLOCK)
    in_query = in_group[:, None] & (place < HEAD_SIZE)[None, :]
    queries = query_ptr + token.to(tl.int64) * query_stride + head[:, None] * HEAD_SIZE + place[None, :]
    query = tl.load(queries, mask=in_query, other=0.0).to(pool_ptr.dtype.element_ty)
    maximum = tl.full([QUERIES], NEVER, tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    plane = layer * 2 * kv_heads + kv_head
    for start in range(0, end, KEYS):
        key = start + tl.arange(0, KEYS)
        keys = load_plane_rows(
            pool_ptr, page_table, feed, key, key < end, plane, table_stride, page_stride, HEAD_SIZE, BLOCK, PAGE
        )  # fmt: skip
        scores = masked_scores(
            query, keys, key, head[:, None], token, feed, position, first, end, scale, starts, tree_mask, tree_positions,
            distance_bias, tree_width, window, max_distance, in_group[:, None], WINDOW, TREE, BIAS,
        )  # fmt: skip
        highest = tl.maximum(maximum, tl.max(scores, axis=1))
        shift = tl.where(highest == NEVER, 0.0, highest)
        total = total * tl.exp2(maximum - shift) + tl.sum(tl.exp2(scores - shift[:, None]), axis=1)
        maximum = highest
    out = out_ptr + token.to(tl.int64) * out_stride + head.to(tl.int64) * key_count
    for start in range(0, key_count, KEYS):
        key = start + tl.arange(0, KEYS)
        keys = load_plane_rows(
            pool_ptr, page_table, feed, key, key < end, plane, table_stride, page_stride, HEAD_SIZE, BLOCK, PAGE
        )  # fmt: skip
        scores = masked_scores(
            query, keys, key, head[:, None], token, feed, position, first, end, scale, starts, tree_mask, tree_positions,
            distance_bias, tree_width, window, max_distance, in_group[:, None], WINDOW, TREE, BIAS,
        )  # fmt: skip
        weights = tl.exp2(scores - maximum[:, None]) / total[:, None]
        tl.store(out[:, None] + key[None, :], weights, mask=in_group[:, None] & (key < key_count)[None, :])


@triton.jit(do_not_specialize=UNSPECIALIZED)
def weighted_values_kernel(
    pattern_ptr, pool_ptr, out_ptr, rows, feed_of_token, lengths, page_table, pattern_stride, out_stride, table_stride,
    page_stride, layer, heads, kv_heads, key_count, HAS_ROWS: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK: tl.constexpr,
    KEYS: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    index, head = tl.program_id(0), tl.program_id(1)
    token = tl.load(rows + index) if HAS_ROWS else index
    feed = tl.load(feed_of_token + token)
    end = tl.minimum(tl.load(lengths + feed), key_count)
    plane = (layer * 2 + 1) * kv_heads + head // (heads // kv_heads)
    weights = pattern_ptr + token.to(tl.int64) * pattern_stride + head.to(tl.int64) * key_count
    values = tl.zeros([BLOCK], tl.float32)
    for start in range(0, end, KEYS):
        key = start + tl.arange(0, KEYS)
        tile = load_plane_rows(
            pool_ptr, page_table, feed, key, key < end, plane, table_stride, page_stride, HEAD_SIZE, BLOCK, PAGE
        )  # fmt: skip
        weight = tl.load(weights + key, mask=key < end, other=0.0)
        values += tl.sum(weight[:, None] * tile.to(tl.float32), axis=0)
    place = tl.arange(0, BLOCK)
    out = out_ptr + token.to(tl.int64) * out_stride + head * HEAD_SIZE + place
    tl.store(out, values, mask=place < HEAD_SIZE)
