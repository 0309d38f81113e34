"""Layers that keep a state: convolutions over each column's last inputs, and heads whose state is written to and read.

Each column of a state is computed by itself, token after token in one order, so that nothing depends on how a text is cut
into passes, nor on the other rows of one.

Shapes: the pool of states is (rows, numbers of a row's state), a head's state in it (key_size, head_size); inputs are
(tokens, width) and hold heads of queries, keys and values from some columns on; decays and writes are (tokens, heads), or
(tokens, heads * key_size) where each of a key's numbers has a decay of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from glassformer.engine.gpu.kernels.functions import ACTIVATIONS, activated
from glassformer.engine.gpu.kernels.tensors import PassTensors

CONV_COLUMNS = 128
STATE_COLUMNS = 8  # of a head's state that one program has
NUMBER_COLUMNS = 128
SOFT_LIMIT = tl.constexpr(20.0)  # from here on, softplus is its input


@dataclass(frozen=True)
class StateHeads:
    """Where heads lie in their inputs, and where their state begins among a row's."""

    heads: int
    key_heads: int  # of queries and keys, which so many heads share
    key_size: int
    head_size: int
    query_offset: int
    key_offset: int
    value_offset: int
    state_offset: int
    scale: float
    delta: bool  # whether what the state has for a key is taken from a value before it is written


def causal_conv(
    p: PassTensors, x: Tensor, pool: Tensor, kernel: Tensor, bias: Tensor | None, out: Tensor, *, state_offset: int,
    activation: str | None,
) -> None:  # fmt: skip
    """A sum over each column's last values, weighted by how long ago they were, and its activation.

    `kernel`: (size, width), the weights of the oldest values first. Of each row the last `size` - 1 inputs are kept.
    """
    tokens, feeds, (size, width) = x.shape[0], p.starts.shape[0], kernel.shape
    blocks = triton.cdiv(width, CONV_COLUMNS)
    shape = (width, x.stride(0), pool.stride(0), state_offset)
    alone = tokens == feeds  # then one program has all that is read of a feed, and can write over it
    causal_conv_kernel[tokens, blocks](
        x, out, pool, p.states, p.feed_of_token, p.first_tokens, kernel, bias, *shape, out.stride(0), SIZE=size,
        HAS_BIAS=bias is not None, ACTIVATES=activation is not None, ACTIVATION=ACTIVATIONS[activation], KEEPS=alone,
        COLUMNS=CONV_COLUMNS, num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    if not alone:
        keep_inputs_kernel[feeds, blocks](
            x, pool, p.states, p.first_tokens, p.token_counts, *shape, SIZE=size, COLUMNS=CONV_COLUMNS, num_warps=1
        )


@triton.jit(do_not_specialize=["state_offset"])
def causal_conv_kernel(
    x_ptr, out_ptr, pool, states, feed_of_token, first_tokens, kernel, bias, width, x_stride, pool_stride, state_offset,
    out_stride, SIZE: tl.constexpr, HAS_BIAS: tl.constexpr, ACTIVATES: tl.constexpr, ACTIVATION: tl.constexpr,
    KEEPS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Some columns of one token."""
    token = tl.program_id(0)
    feed = tl.load(feed_of_token + token)
    first = tl.load(first_tokens + feed)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    kept = pool + tl.load(states + feed).to(tl.int64) * pool_stride + state_offset + column
    inputs = x_ptr + first.to(tl.int64) * x_stride + column
    total = tl.load(bias + column, mask=inside, other=0.0) if HAS_BIAS else tl.zeros([COLUMNS], tl.float32)
    for place in tl.static_range(SIZE):
        value = input_of(inputs, kept, token - first - (SIZE - 1) + place, inside, width, x_stride, SIZE)
        total += value * tl.load(kernel + place * width + column, mask=inside, other=0.0)
    if ACTIVATES:
        total = activated(total, ACTIVATION)
    tl.store(out_ptr + token.to(tl.int64) * out_stride + column, total, mask=inside)
    if KEEPS:
        keep(inputs, kept, 1, inside, width, x_stride, SIZE)


@triton.jit(do_not_specialize=["state_offset"])
def keep_inputs_kernel(
    x_ptr, pool, states, first_tokens, token_counts, width, x_stride, pool_stride, state_offset, SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Some columns of one feed."""
    feed = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    kept = pool + tl.load(states + feed).to(tl.int64) * pool_stride + state_offset + column
    inputs = x_ptr + tl.load(first_tokens + feed).to(tl.int64) * x_stride + column
    keep(inputs, kept, tl.load(token_counts + feed), column < width, width, x_stride, SIZE)


@triton.jit
def input_of(inputs, kept, place, inside, width, x_stride, SIZE: tl.constexpr):
    """Columns of a feed's token at a place; before its first one, at negative places, they are what was kept."""
    now = tl.load(inputs + place * x_stride, mask=inside & (place >= 0), other=0.0)
    before = tl.load(kept + (place + SIZE - 1) * width, mask=inside & (place < 0), other=0.0)
    return tl.where(place < 0, before, now)


@triton.jit
def keep(inputs, kept, count, inside, width, x_stride, SIZE: tl.constexpr):
    """Write the last inputs over those that were kept: each thread its own columns, the oldest first."""
    for place in tl.static_range(SIZE - 1):
        value = input_of(inputs, kept, count - (SIZE - 1) + place, inside, width, x_stride, SIZE)
        tl.store(kept + place * width, value, mask=inside)


def time_step(x: Tensor, bias: Tensor, out: Tensor, *, least: float, most: float) -> None:
    """softplus(x + bias), cut at limits."""
    _numbers(x, bias, out, least, most, decay=False)


def decay(x: Tensor, rate: Tensor, out: Tensor) -> None:
    """exp(−exp(rate) · x)"""
    _numbers(x, rate, out, 0.0, 0.0, decay=True)


def _numbers(x: Tensor, vector: Tensor, out: Tensor, least: float, most: float, *, decay: bool) -> None:
    number_kernel[x.shape[0], triton.cdiv(x.shape[1], NUMBER_COLUMNS)](
        x, vector, out, x.shape[1], x.stride(0), out.stride(0), least, most, DECAY=decay, COLUMNS=NUMBER_COLUMNS,
        enable_fp_fusion=False,
    )  # fmt: skip


@triton.jit(do_not_specialize=["least", "most"])
def number_kernel(
    x_ptr, vector, out_ptr, width, x_stride, out_stride, least, most, DECAY: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    x = tl.load(x_ptr + token * x_stride + column, mask=inside, other=0.0)
    number = tl.load(vector + column, mask=inside, other=0.0)
    if DECAY:
        x = tl.exp(-tl.exp(number) * x)
    else:
        x += number
        small = tl.exp(tl.minimum(x, SOFT_LIMIT))
        above = 1.0 + small  # rounded, which is divided out again: else little would be left of a small number
        soft = tl.where(above == 1.0, small, tl.log(above) * (small / tl.where(above == 1.0, 1.0, above - 1.0)))
        x = tl.minimum(tl.maximum(tl.where(x > SOFT_LIMIT, x, soft), least), most)
    tl.store(out_ptr + token * out_stride + column, x, mask=inside)


def recur(
    p: PassTensors, x: Tensor, pool: Tensor, decays: Tensor, writes: Tensor, out: Tensor, heads: StateHeads, *,
    norms: Tensor | None = None, skip: Tensor | None = None,
) -> None:  # fmt: skip
    """Heads' states go on by each token of their rows, and give their outputs, (tokens, heads * head_size).

    `norms`: (tokens, heads), to be filled with the states' norms after each token. `skip`: (heads), how much of a token's
    own value is added to its output.
    """
    feeds, blocks = p.starts.shape[0], triton.cdiv(heads.head_size, STATE_COLUMNS)
    squares = None if norms is None else torch.empty(x.shape[0], heads.heads, blocks, device=x.device)
    recur_kernel[feeds, heads.heads, blocks](
        x, decays, writes, skip, out, squares, pool, p.states, p.first_tokens, p.token_counts, x.stride(0), decays.stride(0),
        writes.stride(0), out.stride(0), pool.stride(0), heads.query_offset, heads.key_offset, heads.value_offset,
        heads.state_offset, heads.scale, heads.heads, heads.heads // heads.key_heads, KEY_SIZE=heads.key_size,
        KEYS=triton.next_power_of_2(heads.key_size), HEAD_SIZE=heads.head_size, DELTA=heads.delta,
        WIDE=decays.shape[1] > heads.heads, MEASURES=norms is not None, SKIPS=skip is not None, COLUMNS=STATE_COLUMNS,
        num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    if norms is not None and squares is not None:
        norms.copy_(squares.sum(-1).sqrt())


@triton.jit(do_not_specialize=["state_offset"])
def recur_kernel(
    x_ptr, decay_ptr, write_ptr, skip_ptr, out_ptr, squares, pool, states, first_tokens, token_counts, x_stride,
    decay_stride, write_stride, out_stride, pool_stride, query_offset, key_offset, value_offset, state_offset, scale, heads,
    shared, KEY_SIZE: tl.constexpr, KEYS: tl.constexpr, HEAD_SIZE: tl.constexpr, DELTA: tl.constexpr,
    WIDE: tl.constexpr, MEASURES: tl.constexpr, SKIPS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Some columns of the state of one head of one feed, (keys, columns), token after token."""
    feed, head, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first, count = tl.load(first_tokens + feed).to(tl.int64), tl.load(token_counts + feed)
    row, column = tl.arange(0, KEYS), block * COLUMNS + tl.arange(0, COLUMNS)
    in_key, in_head = row < KEY_SIZE, column < HEAD_SIZE
    place = pool + tl.load(states + feed).to(tl.int64) * pool_stride + state_offset + head * KEY_SIZE * HEAD_SIZE
    place = place + row[:, None] * HEAD_SIZE + column[None, :]
    inside = in_key[:, None] & in_head[None, :]
    state = tl.load(place, mask=inside, other=0.0)
    inputs = x_ptr + first * x_stride
    queries = inputs + query_offset + head // shared * KEY_SIZE + row
    keys = inputs + key_offset + head // shared * KEY_SIZE + row
    values = inputs + value_offset + head * HEAD_SIZE + column
    decays = decay_ptr + first * decay_stride + (head * KEY_SIZE + row if WIDE else head)
    writes, outputs = write_ptr + first * write_stride + head, out_ptr + first * out_stride + head * HEAD_SIZE + column
    query, key, value, kept, write = load_token(
        queries, keys, values, decays, writes, count > 0, in_key, in_head, 0, x_stride, decay_stride, write_stride, WIDE
    )
    for token in range(count):
        # The next token is loaded while this one is computed.
        next_query, next_key, next_value, next_kept, next_write = load_token(
            queries, keys, values, decays, writes, token + 1 < count, in_key, in_head, token + 1, x_stride, decay_stride,
            write_stride, WIDE,
        )  # fmt: skip
        state = state * (kept[:, None] if WIDE else kept)
        read, own = tl.sum(state * query[:, None], axis=0), value  # before the write, so that no sum waits for another
        if DELTA:
            value = value - tl.sum(state * key[:, None], axis=0)
        written = value * write
        state = state + key[:, None] * written[None, :]
        read = (read + tl.sum(key * query, axis=0) * written) * scale
        if SKIPS:
            read = read + tl.load(skip_ptr + head) * own
        tl.store(outputs + token * out_stride, read, mask=in_head)
        if MEASURES:
            total = tl.sum(tl.sum(state * state, axis=0), axis=0)
            tl.store(squares + ((first + token) * heads + head) * tl.num_programs(2) + block, total)
        query, key, value, kept, write = next_query, next_key, next_value, next_kept, next_write
    tl.store(place, state, mask=inside)


@triton.jit
def load_token(
    queries, keys, values, decays, writes, live, in_key, in_head, token, x_stride, decay_stride, write_stride,
    WIDE: tl.constexpr,
):  # fmt: skip
    query = tl.load(queries + token * x_stride, mask=in_key & live, other=0.0)
    key = tl.load(keys + token * x_stride, mask=in_key & live, other=0.0)
    value = tl.load(values + token * x_stride, mask=in_head & live, other=0.0)
    kept = tl.load(decays + token * decay_stride, mask=in_key & live if WIDE else live, other=0.0)
    return query, key, value, tl.maximum(kept, 0.0), tl.load(writes + token * write_stride, mask=live, other=0.0)


def recur_pattern(
    p: PassTensors, x: Tensor, decays: Tensor, writes: Tensor, out: Tensor, heads: StateHeads, *, keys: int,
    skip: Tensor | None = None,
) -> None:  # fmt: skip
    """How much of each token of a feed is in each later one's output: (tokens, heads * keys)."""
    out.zero_()
    recur_pattern_kernel[x.shape[0], heads.heads](
        x, decays, writes, skip, out, p.feed_of_token, p.first_tokens, x.stride(0), decays.stride(0), writes.stride(0),
        out.stride(0), heads.query_offset, heads.key_offset, heads.scale, heads.heads // heads.key_heads, keys,
        KEY_SIZE=heads.key_size, KEYS=triton.next_power_of_2(heads.key_size), DELTA=heads.delta,
        WIDE=decays.shape[1] > heads.heads, SKIPS=skip is not None, num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip


@triton.jit(do_not_specialize=["most_keys"])
def recur_pattern_kernel(
    x_ptr, decay_ptr, write_ptr, skip_ptr, out_ptr, feed_of_token, first_tokens, x_stride, decay_stride, write_stride,
    out_stride, query_offset, key_offset, scale, shared, most_keys, KEY_SIZE: tl.constexpr, KEYS: tl.constexpr,
    DELTA: tl.constexpr, WIDE: tl.constexpr, SKIPS: tl.constexpr,
):  # fmt: skip
    """From a token back: what it reads of what each token wrote, and what of its query is left for those before."""
    token, head = tl.program_id(0), tl.program_id(1)
    first = tl.load(first_tokens + tl.load(feed_of_token + token))
    row = tl.arange(0, KEYS)
    in_key = row < KEY_SIZE
    column = head // shared * KEY_SIZE + row
    query = x_ptr + token.to(tl.int64) * x_stride + query_offset + column
    left = tl.load(query, mask=in_key, other=0.0) * scale
    weights = out_ptr + token.to(tl.int64) * out_stride + head * most_keys
    for back in range(token - first + 1):
        place = (token - back).to(tl.int64)
        key = tl.load(x_ptr + place * x_stride + key_offset + column, mask=in_key, other=0.0)
        found = tl.sum(left * key, axis=0) * tl.load(write_ptr + place * write_stride + head)
        weight = found
        if SKIPS and back == 0:
            weight = found + tl.load(skip_ptr + head)
        tl.store(weights + (place - first), weight)
        if DELTA:
            left = left - found * key
        if WIDE:
            kept = tl.load(decay_ptr + place * decay_stride + head * KEY_SIZE + row, mask=in_key, other=0.0)
        else:
            kept = tl.load(decay_ptr + place * decay_stride + head)
        left = left * tl.maximum(kept, 0.0)


def recur_values(p: PassTensors, x: Tensor, pattern: Tensor, out: Tensor, heads: StateHeads, *, keys: int) -> None:
    """Each head's outputs from a pattern, (tokens, heads * keys), which may be changed: values times its weights."""
    recur_values_kernel[x.shape[0], heads.heads](
        x, pattern, out, p.feed_of_token, p.first_tokens, p.token_counts, x.stride(0), pattern.stride(0), out.stride(0),
        heads.value_offset, keys, HEAD_SIZE=heads.head_size, COLUMNS=triton.next_power_of_2(heads.head_size), num_warps=1,
        enable_fp_fusion=False,
    )  # fmt: skip


@triton.jit(do_not_specialize=["most_keys"])
def recur_values_kernel(
    x_ptr, pattern, out_ptr, feed_of_token, first_tokens, token_counts, x_stride, pattern_stride, out_stride, value_offset,
    most_keys, HEAD_SIZE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    token, head = tl.program_id(0), tl.program_id(1)
    feed = tl.load(feed_of_token + token)
    first, count = tl.load(first_tokens + feed).to(tl.int64), tl.load(token_counts + feed)
    column = tl.arange(0, COLUMNS)
    inside = column < HEAD_SIZE
    values = x_ptr + first * x_stride + value_offset + head * HEAD_SIZE + column
    weights = pattern + token.to(tl.int64) * pattern_stride + head * most_keys
    total = tl.zeros([COLUMNS], tl.float32)
    for place in range(count):
        total += tl.load(weights + place) * tl.load(values + place * x_stride, mask=inside, other=0.0)
    tl.store(out_ptr + token.to(tl.int64) * out_stride + head * HEAD_SIZE + column, total, mask=inside)
