"""Head norms and rotary positions of queries and keys, and the store of keys and values to their pages.

Shapes: qkv (tokens, width) holds heads of queries, keys and values from some columns on; the pool of pages is (pages,
layers, 2, kv_heads, PAGE, head_size): keys, then values.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from glassformer.engine.gpu.kernels.functions import L2_NORM, LAYER_NORM, NO_NORM, NORMS
from glassformer.engine.gpu.kernels.tensors import CachedHeads, DeviceNorm, PassTensors
from glassformer.engine.paged_rows import PAGE


def rope_kv_store(
    p: PassTensors, qkv: Tensor, pool: Tensor, heads: CachedHeads, *, query_offset: int = 0, key_offset: int = 0,
    value_offset: int = 0, query_norm: DeviceNorm | None = None, key_norm: DeviceNorm | None = None,
    frequencies: Tensor | None = None, rope_scale: float = 1.0, interleaved: bool = False, rotate: bool = True,
    store: bool = True,
) -> None:  # fmt: skip
    """Norms and rotates queries and keys in place (`rotate`), and stores keys and values in their tokens' slots (`store`).

    `frequencies`: (numbers that are rotated / 2) in float32, radians a position; None: no RoPE. The first numbers of a head
    are rotated, in pairs that lie half of them apart, or beside each other (`interleaved`).
    """
    rotary = heads.head_size if frequencies is None or not rotate else 2 * frequencies.shape[0]
    table = p.source_page_table if heads.cross else p.page_table
    assert table is not None
    rope_kv_store_kernel[p.slots.shape[0],](
        qkv, pool, p.positions, p.slots, p.feed_of_token, table, frequencies, query_norm and query_norm.weight,
        query_norm and query_norm.bias, key_norm and key_norm.weight, key_norm and key_norm.bias, qkv.stride(0),
        table.stride(0), pool.stride(0), heads.layer, heads.heads, heads.kv_heads, query_offset, key_offset, value_offset,
        query_norm.eps if query_norm else 0.0, key_norm.eps if key_norm else 0.0, rope_scale,
        QUERY_NORM=NORMS[query_norm.kind if query_norm and rotate else None],
        KEY_NORM=NORMS[key_norm.kind if key_norm and rotate else None],
        HAS_QUERY_BIAS=query_norm is not None and query_norm.bias is not None,
        HAS_KEY_BIAS=key_norm is not None and key_norm.bias is not None,
        ROPE=rotate and frequencies is not None, ROTATE=rotate, STORE=store, HEAD_SIZE=heads.head_size, ROTARY=rotary,
        INTERLEAVED=interleaved and frequencies is not None,
        HEADS=triton.next_power_of_2(heads.heads + (2 if store else 1) * heads.kv_heads),
        HALF=triton.next_power_of_2(triton.cdiv(rotary, 2)), TAIL=triton.next_power_of_2(max(heads.head_size - rotary, 1)),
        PAGE=PAGE, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


@triton.jit(do_not_specialize=["layer"])
def rope_kv_store_kernel(
    qkv_ptr, pool_ptr, positions, slots, feed_of_token, page_table, frequencies, query_weight, query_bias, key_weight,
    key_bias, qkv_stride, table_stride, page_stride, layer, heads, kv_heads, query_offset, key_offset, value_offset,
    query_eps, key_eps, rope_scale, QUERY_NORM: tl.constexpr, KEY_NORM: tl.constexpr, HAS_QUERY_BIAS: tl.constexpr,
    HAS_KEY_BIAS: tl.constexpr, ROPE: tl.constexpr, ROTATE: tl.constexpr, STORE: tl.constexpr, HEAD_SIZE: tl.constexpr,
    ROTARY: tl.constexpr, INTERLEAVED: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, TAIL: tl.constexpr,
    PAGE: tl.constexpr,
):  # fmt: skip
    """All heads of a token: those of queries, then of keys, then of values.

    Tiles are (heads, half of what is rotated), and (heads, the tail that is not).
    """
    token = tl.program_id(0)
    slot = tl.load(slots + token)
    page = tl.load(page_table + tl.load(feed_of_token + token).to(tl.int64) * table_stride + slot // PAGE)
    head = tl.arange(0, HEADS)[:, None]
    place = tl.arange(0, HALF)[None, :]
    SPLIT: tl.constexpr = ROTARY // 2
    is_query, is_value = head < heads, head >= heads + kv_heads
    is_key = (head >= heads) & (head < heads + kv_heads)
    known = head < heads + (2 * kv_heads if STORE else kv_heads)
    in_low, in_high = known & (place < SPLIT), known & (place < ROTARY - SPLIT)
    tail_place = tl.arange(0, TAIL)[None, :]
    in_tail = known & (tail_place < HEAD_SIZE - ROTARY)
    kv_head = tl.where(is_value, head - heads - kv_heads, head - heads)
    column = tl.where(is_query, query_offset + head * HEAD_SIZE, key_offset + kv_head * HEAD_SIZE)
    column = tl.where(is_value, value_offset + kv_head * HEAD_SIZE, column)
    low_place = 2 * place if INTERLEAVED else place
    high_place = 2 * place + 1 if INTERLEAVED else SPLIT + place
    addresses = qkv_ptr + token.to(tl.int64) * qkv_stride + column
    low = tl.load(addresses + low_place, mask=in_low, other=0.0)
    high = tl.load(addresses + high_place, mask=in_high, other=0.0)
    tail = tl.load(addresses + ROTARY + tail_place, mask=in_tail, other=0.0)
    if QUERY_NORM != NO_NORM:
        low, high, tail = norm_heads(
            low, high, tail, is_query, query_weight, query_bias, query_eps, low_place, high_place, QUERY_NORM,
            HAS_QUERY_BIAS, HEAD_SIZE, ROTARY, HALF, TAIL,
        )  # fmt: skip
    if KEY_NORM != NO_NORM:
        low, high, tail = norm_heads(
            low, high, tail, is_key, key_weight, key_bias, key_eps, low_place, high_place, KEY_NORM, HAS_KEY_BIAS, HEAD_SIZE,
            ROTARY, HALF, TAIL,
        )  # fmt: skip
    if ROPE:
        frequency = tl.load(frequencies + place, mask=place < SPLIT, other=0.0)
        angle = tl.load(positions + token).to(tl.float32) * frequency
        cosine, sine = tl.cos(angle) * rope_scale, tl.sin(angle) * rope_scale
        turned = is_query | is_key
        low, high = (
            tl.where(turned, low * cosine - high * sine, low),
            tl.where(turned, high * cosine + low * sine, high),
        )
    if ROTATE:
        tl.store(addresses + low_place, low, mask=in_low & (is_query | is_key))
        tl.store(addresses + high_place, high, mask=in_high & (is_query | is_key))
        if ROTARY != HEAD_SIZE:
            tl.store(addresses + ROTARY + tail_place, tail, mask=in_tail & (is_query | is_key))
    if STORE:
        plane = (layer * 2 + is_value.to(tl.int32)) * kv_heads + kv_head
        stored = pool_ptr + page.to(tl.int64) * page_stride + (plane.to(tl.int64) * PAGE + slot % PAGE) * HEAD_SIZE
        dtype = pool_ptr.dtype.element_ty
        tl.store(stored + low_place, low.to(dtype), mask=in_low & (is_key | is_value))
        tl.store(stored + high_place, high.to(dtype), mask=in_high & (is_key | is_value))
        if ROTARY != HEAD_SIZE:
            tl.store(stored + ROTARY + tail_place, tail.to(dtype), mask=in_tail & (is_key | is_value))


@triton.jit
def norm_heads(
    low, high, tail, chosen, weight, bias, eps, low_place, high_place, NORM: tl.constexpr, HAS_BIAS: tl.constexpr,
    HEAD_SIZE: tl.constexpr, ROTARY: tl.constexpr, HALF: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """All parts of the chosen heads, each head normed; of the others as they are."""
    place, tail_place = tl.arange(0, HALF)[None, :], tl.arange(0, TAIL)[None, :]
    SPLIT: tl.constexpr = ROTARY // 2
    in_low, in_high, in_tail = place < SPLIT, place < ROTARY - SPLIT, tail_place < HEAD_SIZE - ROTARY
    normed_low, normed_high, normed_tail = low, high, tail
    if NORM == LAYER_NORM:
        mean = (tl.sum(low + high, axis=1)[:, None] + tl.sum(tail, axis=1)[:, None]) / HEAD_SIZE
        normed_low, normed_high = tl.where(in_low, low - mean, 0.0), tl.where(in_high, high - mean, 0.0)
        normed_tail = tl.where(in_tail, tail - mean, 0.0)
    squares = tl.sum(normed_low * normed_low + normed_high * normed_high, axis=1)[:, None]
    squares += tl.sum(normed_tail * normed_tail, axis=1)[:, None]
    factor = 1.0 / tl.sqrt((squares if NORM == L2_NORM else squares / HEAD_SIZE) + eps)
    normed_low = normed_low * factor * tl.load(weight + low_place, mask=in_low, other=0.0)
    normed_high = normed_high * factor * tl.load(weight + high_place, mask=in_high, other=0.0)
    normed_tail = normed_tail * factor * tl.load(weight + ROTARY + tail_place, mask=in_tail, other=0.0)
    if HAS_BIAS:
        normed_low += tl.load(bias + low_place, mask=in_low, other=0.0)
        normed_high += tl.load(bias + high_place, mask=in_high, other=0.0)
        normed_tail += tl.load(bias + ROTARY + tail_place, mask=in_tail, other=0.0)
    return tl.where(chosen, normed_low, low), tl.where(chosen, normed_high, high), tl.where(chosen, normed_tail, tail)
