"""Head norms and rotary positions of queries and keys, and the store of keys and values to their pages.

Shapes: qkv (tokens, width) holds heads of queries, keys and values from some columns on; the pool of pages is (pages,
layers, 2, kv_heads, PAGE, head_size): keys, then values.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from glassformer.engine.gpu.kernels.functions import (
    LAYER_NORM,
    NO_NORM,
    NORMS,
    overlap_options,
    start_next_kernel,
    wait_for_inputs,
)  # fmt: skip
from glassformer.engine.gpu.kernels.tensors import PAGE, DeviceNorm, PassTensors


def rope_kv_store(
    p: PassTensors,
    qkv: Tensor,
    pool: Tensor,
    *,
    layer: int,
    heads: int,
    kv_heads: int,
    head_size: int,
    query_offset: int = 0,
    key_offset: int = 0,
    value_offset: int = 0,
    query_norm: DeviceNorm | None = None,
    key_norm: DeviceNorm | None = None,
    frequencies: Tensor | None = None,
    rope_scale: float = 1.0,
    rotate: bool = True,
    store: bool = True,
    cross: bool = False,
) -> None:
    """Norms and rotates queries and keys in place (`rotate`), and stores keys and values in their tokens' slots (`store`).

    `frequencies`: (head_size / 2) in float32, radians a position; None: no RoPE. Pairs lie half a head apart. `cross`: store
    to the pages of a row's source.
    """
    first = 0 if rotate else heads  # queries are only rotated
    table = p.source_page_table if cross else p.page_table
    assert table is not None
    has_rope = rotate and frequencies is not None
    grid = (p.slots.shape[0], heads + (2 if store else 1) * kv_heads - first)
    rope_kv_store_kernel[grid](
        qkv, pool, p.positions, p.slots, p.feed_of_token, table, frequencies,
        query_norm and query_norm.weight, query_norm and query_norm.bias, key_norm and key_norm.weight,
        key_norm and key_norm.bias, qkv.stride(0), table.stride(0), pool.stride(0), layer, first, heads, kv_heads,
        query_offset, key_offset, value_offset, query_norm.eps if query_norm else 0.0, key_norm.eps if key_norm else 0.0,
        rope_scale, QUERY_NORM=NORMS[query_norm.kind if query_norm and rotate else None],
        KEY_NORM=NORMS[key_norm.kind if key_norm and rotate else None],
        HAS_QUERY_BIAS=query_norm is not None and query_norm.bias is not None,
        HAS_KEY_BIAS=key_norm is not None and key_norm.bias is not None,
        ROPE=has_rope, ROTATE=rotate, STORE=store, HEAD_SIZE=head_size, HALF=triton.next_power_of_2(triton.cdiv(head_size,
        2)), PAGE=PAGE, num_warps=1, enable_fp_fusion=False,
        **overlap_options(qkv),
    )  # fmt: skip


@triton.jit(do_not_specialize=["layer", "first"])
def rope_kv_store_kernel(
    qkv_ptr, pool_ptr, positions, slots, feed_of_token, page_table, frequencies, query_weight, query_bias, key_weight,
    key_bias, qkv_stride, table_stride, page_stride, layer, first, heads, kv_heads, query_offset, key_offset, value_offset,
    query_eps, key_eps, rope_scale, QUERY_NORM: tl.constexpr, KEY_NORM: tl.constexpr, HAS_QUERY_BIAS: tl.constexpr,
    HAS_KEY_BIAS: tl.constexpr, ROPE: tl.constexpr, ROTATE: tl.constexpr, STORE: tl.constexpr, HEAD_SIZE: tl.constexpr,
    HALF: tl.constexpr, PAGE: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    start_next_kernel(OVERLAP & 1)
    wait_for_inputs(OVERLAP)
    token, number = tl.program_id(0), tl.program_id(1) + first  # query heads, then key heads, then value heads
    row = qkv_ptr + token.to(tl.int64) * qkv_stride
    if number < heads:
        low, high = normed_head(
            row + query_offset + number * HEAD_SIZE, query_weight, query_bias, query_eps, QUERY_NORM, HAS_QUERY_BIAS,
            HEAD_SIZE, HALF
        )  # fmt: skip
        rotate_head(
            row + query_offset + number * HEAD_SIZE, low, high, positions, frequencies, token, rope_scale, ROPE, HEAD_SIZE,
            HALF
        )  # fmt: skip
    else:
        head = (number - heads) % kv_heads
        is_value = (number - heads) // kv_heads
        if is_value == 0:
            address = row + key_offset + head * HEAD_SIZE
            low, high = normed_head(address, key_weight, key_bias, key_eps, KEY_NORM, HAS_KEY_BIAS, HEAD_SIZE, HALF)
            if ROTATE:
                low, high = rotate_head(
                    address, low, high, positions, frequencies, token, rope_scale, ROPE, HEAD_SIZE, HALF
                )  # fmt: skip
        else:
            address = row + value_offset + head * HEAD_SIZE
            low, high = normed_head(address, key_weight, key_bias, key_eps, NO_NORM, False, HEAD_SIZE, HALF)
        if STORE:
            slot = tl.load(slots + token)
            feed = tl.load(feed_of_token + token)
            page = tl.load(page_table + feed.to(tl.int64) * table_stride + slot // PAGE)
            plane = (layer * 2 + is_value) * kv_heads + head
            offset = (plane.to(tl.int64) * PAGE + slot % PAGE) * HEAD_SIZE
            store_head(pool_ptr + page.to(tl.int64) * page_stride + offset, low, high, HEAD_SIZE, HALF)


@triton.jit
def normed_head(
    address, weight, bias, eps, NORM: tl.constexpr, HAS_BIAS: tl.constexpr, HEAD_SIZE: tl.constexpr, HALF: tl.constexpr
):  # fmt: skip
    """The two halves of a head, normed over both."""
    place = tl.arange(0, HALF)
    SPLIT: tl.constexpr = HEAD_SIZE // 2
    in_low, in_high = place < SPLIT, place < HEAD_SIZE - SPLIT
    low = tl.load(address + place, mask=in_low, other=0.0)
    high = tl.load(address + SPLIT + place, mask=in_high, other=0.0)
    if NORM != NO_NORM:
        if NORM == LAYER_NORM:
            mean = tl.sum(low + high, axis=0) / HEAD_SIZE
            low = tl.where(in_low, low - mean, 0.0)
            high = tl.where(in_high, high - mean, 0.0)
        factor = 1.0 / tl.sqrt(tl.sum(low * low + high * high, axis=0) / HEAD_SIZE + eps)
        low = low * factor * tl.load(weight + place, mask=in_low, other=0.0)
        high = high * factor * tl.load(weight + SPLIT + place, mask=in_high, other=0.0)
        if HAS_BIAS:
            low += tl.load(bias + place, mask=in_low, other=0.0)
            high += tl.load(bias + SPLIT + place, mask=in_high, other=0.0)
    return low, high


@triton.jit
def rotate_head(
    address, low, high, positions, frequencies, token, rope_scale, ROPE: tl.constexpr, HEAD_SIZE: tl.constexpr, HALF:
    tl.constexpr
):  # fmt: skip
    """Both halves of a head, rotated and written back."""
    if ROPE:
        place = tl.arange(0, HALF)
        frequency = tl.load(frequencies + place, mask=place < HEAD_SIZE // 2, other=0.0)
        angle = tl.load(positions + token).to(tl.float32) * frequency
        cosine, sine = tl.cos(angle) * rope_scale, tl.sin(angle) * rope_scale
        low, high = low * cosine - high * sine, high * cosine + low * sine
    store_head(address, low, high, HEAD_SIZE, HALF)
    return low, high


@triton.jit
def store_head(address, low, high, HEAD_SIZE: tl.constexpr, HALF: tl.constexpr):
    place = tl.arange(0, HALF)
    SPLIT: tl.constexpr = HEAD_SIZE // 2
    dtype = address.dtype.element_ty
    tl.store(address + place, low.to(dtype), mask=place < SPLIT)
    tl.store(address + SPLIT + place, high.to(dtype), mask=place < HEAD_SIZE - SPLIT)
