"""Weights in the packed kinds of GGUF: their layout on the device, and products with them.

GGUF (https://github.com/ggml-org/ggml, ggml-common.h) keeps codes and scales of some neighbours together in a block of odd
size; here codes and scales lie apart, so that loads are wide and aligned. Codes of eight bits are int8, (rows, columns). Of
the others the low four bits lie in bytes, (rows, columns / 2): of 64 columns, byte i holds column i below and column i + 32
above; then the bits above them, (rows, columns / 8 · bits): of 64 columns, byte j holds those of the bytes j, j + 8 · bits,
… A weight is (code - zero) · scale + minimum. The K kinds' scales are products of two numbers, rounded here to float16,
which is four times finer than the bfloat16 that weights are multiplied in.

Columns are padded to whole 64s, with zero scales.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from glassformer.engine.gpu.kernels.functions import (
    GATE,
    NO_NORM,
    finish_tile,
    input_rows_of,
    load_inputs,
    mean_and_scale,
    tile_tokens_and_rows,
)  # fmt: skip
from glassformer.engine.gpu.kernels.tensors import DeviceMatrix

Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]
NIBBLE_BLOCK = 64  # columns whose low four bits lie in 32 bytes


class Unpacked(NamedTuple):
    """What a file's blocks hold: (blocks, columns of a block) codes, and (blocks, groups) scales and minimums."""

    codes: Array
    scales: Array
    minimums: Array | None = None


class PackedKind(NamedTuple):
    block: int  # columns of a file's block
    block_bytes: int
    bits: int  # of a code
    group: int  # columns that share a scale
    zero: int  # the code of a weight of zero
    unpack: Callable[[Bytes], Unpacked]


def pack(kind: str, raw: bytes | Bytes, rows: int, columns: int, device: torch.device | str = "cpu") -> DeviceMatrix:
    """A matrix from the bytes that a GGUF file has of it."""
    form = PACKED_KINDS[kind]
    blocks = np.frombuffer(raw, np.uint8).reshape(rows * columns // form.block, form.block_bytes)
    codes, scales, minimums = form.unpack(blocks)

    def laid_out(numbers: Array, step: int) -> torch.Tensor:
        numbers = numbers.reshape(rows, columns // step)
        padded = np.pad(numbers, ((0, 0), (0, -columns % NIBBLE_BLOCK // step)))
        return torch.from_numpy(padded).to(device)

    data, high_bits = laid_out(codes, 1), None
    if form.bits < 8:
        data, high_bits = _split_bits(data, form.bits - 4)
    lows = None if minimums is None else laid_out(minimums, form.group)
    return DeviceMatrix(kind, rows, columns, data, None, laid_out(scales, form.group), lows, high_bits)


def _split_bits(codes: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Codes of more than four bits to their low halves and the bits above them."""
    blocks = codes.reshape(len(codes), -1, 2, NIBBLE_BLOCK // 2)  # (rows, blocks, below or above, bytes)
    low = (blocks[:, :, 0] & 15 | (blocks[:, :, 1] & 15) << 4).reshape(len(codes), -1)
    if not bits:
        return low, None
    pairs = blocks[:, :, 0] >> 4 | blocks[:, :, 1] >> 4 << bits
    parts = pairs.reshape(len(codes), pairs.shape[1], -1, 8 * bits)  # (rows, blocks, parts, bytes)
    high = torch.zeros_like(parts[:, :, 0])
    for number in range(parts.shape[2]):
        high |= parts[:, :, number] << (2 * bits * number)
    return low, high.reshape(len(codes), -1)


def _halves(blocks: Bytes, at: int) -> Array:
    """The float16 at some byte of each block, (blocks, 1)."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16)


def _nibbles(blocks: Bytes) -> Array:
    """The low halves of some bytes, then their high halves."""
    return np.concatenate((blocks & 15, blocks >> 4), axis=-1)


def _unpack_q8_0(blocks: Bytes) -> Unpacked:
    return Unpacked(blocks[:, 2:].view(np.int8), _halves(blocks, 0))


def _unpack_q4_0(blocks: Bytes) -> Unpacked:
    return Unpacked(_nibbles(blocks[:, 2:]), _halves(blocks, 0))


def _unpack_q4_1(blocks: Bytes) -> Unpacked:
    return Unpacked(_nibbles(blocks[:, 4:]), _halves(blocks, 0), _halves(blocks, 2))


def _k_scales(blocks: Bytes) -> tuple[Array, Array]:
    """Scales and minimums of the eight 32s of a block: six bits each, in twelve bytes, times those of the whole block."""
    low, middle, high = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate((low & 63, high & 15 | low >> 6 << 4), axis=1)
    minimums = np.concatenate((middle & 63, high >> 4 | middle >> 6 << 4), axis=1)
    scale, minimum = (_halves(blocks, at).astype(np.float32) for at in (0, 2))
    return (scale * scales).astype(np.float16), (-minimum * minimums).astype(np.float16)


def _unpack_q4_k(blocks: Bytes) -> Unpacked:
    codes = _nibbles(blocks[:, 16:].reshape(len(blocks), 4, 32))
    return Unpacked(codes, *_k_scales(blocks))


def _unpack_q5_k(blocks: Bytes) -> Unpacked:
    low = _nibbles(blocks[:, 48:].reshape(len(blocks), 4, 32)).reshape(len(blocks), 8, 32)
    fifth = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return Unpacked(low | fifth << 4, *_k_scales(blocks))


def _unpack_q6_k(blocks: Bytes) -> Unpacked:
    low = _nibbles(blocks[:, :128].reshape(len(blocks), 2, 64)).reshape(len(blocks), 2, 4, 32)
    high = blocks[:, 128:192].reshape(len(blocks), 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    scales = blocks[:, 192:208].view(np.int8) * _halves(blocks, 208).astype(np.float32)
    return Unpacked(low | high << 4, scales.astype(np.float16))


PACKED_KINDS: Mapping[str, PackedKind] = {
    "Q8_0": PackedKind(32, 34, 8, 32, 0, _unpack_q8_0),
    "Q4_0": PackedKind(32, 18, 4, 32, 8, _unpack_q4_0),
    "Q4_1": PackedKind(32, 20, 4, 32, 0, _unpack_q4_1),
    "Q4_K": PackedKind(256, 144, 4, 32, 0, _unpack_q4_k),
    "Q5_K": PackedKind(256, 176, 5, 32, 0, _unpack_q5_k),
    "Q6_K": PackedKind(256, 210, 6, 16, 32, _unpack_q6_k),
}


def packed_arguments(matrix: DeviceMatrix) -> tuple[Any, ...]:
    assert matrix.scales is not None
    return matrix.scales, matrix.minimums, matrix.high_bits, matrix.data.shape[1]


def packed_constants(matrix: DeviceMatrix) -> dict[str, Any]:
    kind = PACKED_KINDS[matrix.kind]
    return {"BITS": kind.bits, "GROUP": kind.group, "ZERO": kind.zero, "HAS_MINIMUM": matrix.minimums is not None}


@triton.jit(do_not_specialize=["tokens"])
def packed_matmul_kernel(
    x_ptr, weights_ptr, bias_ptr, norm_weight, norm_bias, residual_ptr, out_ptr, input_rows, output_rows, tokens, rows,
    columns, x_stride, residual_stride, out_stride, eps, scale, scales, minimums, high_bits, row_bytes,
    NORM: tl.constexpr, HAS_NORM_BIAS: tl.constexpr, EPILOGUE: tl.constexpr, ACTIVATION: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_INPUT_ROWS: tl.constexpr, HAS_OUTPUT_ROWS: tl.constexpr, MASKED: tl.constexpr,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    ZERO: tl.constexpr, HAS_MINIMUM: tl.constexpr,
):  # fmt: skip
    """`matmul_kernel` for packed weights, which are expanded to bfloat16 a tile at a time."""
    token, row = tile_tokens_and_rows(tokens, TOKENS, ROWS)
    live = token < tokens
    x_rows = input_rows_of(x_ptr, input_rows, token, live, x_stride, HAS_INPUT_ROWS)
    mean = tl.zeros([TOKENS], tl.float32)
    factor = mean
    if NORM != NO_NORM:
        mean, factor = mean_and_scale(x_rows, live, columns, eps, NORM, TOKENS)
    weight_row = tl.minimum(row, rows - 1).to(tl.int64)
    gate_row = weight_row
    if EPILOGUE == GATE:
        weight_row += rows
    sums = tl.zeros([TOKENS, ROWS], tl.float32)
    gates = sums
    PLACES: tl.constexpr = COLUMNS if BITS == 8 else COLUMNS // 2  # bytes of a row in one iteration
    for start in range(0, row_bytes, PLACES):
        place = start + tl.arange(0, PLACES)
        column = place if BITS == 8 else place // 32 * 64 + place % 32
        x = load_inputs(x_rows, live, column, columns, norm_weight, norm_bias, mean, factor, NORM, HAS_NORM_BIAS, MASKED)
        x = x.to(tl.bfloat16)
        x_above = x
        if BITS < 8:
            column += 32
            x_above = load_inputs(
                x_rows, live, column, columns, norm_weight, norm_bias, mean, factor, NORM, HAS_NORM_BIAS, MASKED
            ).to(tl.bfloat16)  # fmt: skip
        if EPILOGUE == GATE:
            gates = add_products(
                x, x_above, gates, gate_row, weights_ptr, scales, minimums, high_bits, start, row_bytes, MASKED, ROWS,
                PLACES, BITS, GROUP, ZERO, HAS_MINIMUM,
            )  # fmt: skip
        sums = add_products(
            x, x_above, sums, weight_row, weights_ptr, scales, minimums, high_bits, start, row_bytes, MASKED, ROWS, PLACES,
            BITS, GROUP, ZERO, HAS_MINIMUM,
        )  # fmt: skip
    finish_tile(
        sums, gates, bias_ptr, residual_ptr, out_ptr, output_rows, token, live, row, rows, residual_stride, out_stride,
        scale, EPILOGUE, ACTIVATION, HAS_BIAS, HAS_OUTPUT_ROWS,
    )  # fmt: skip


@triton.jit
def add_products(
    x, x_above, sums, row, weights_ptr, scales, minimums, high_bits, start, row_bytes, MASKED: tl.constexpr,
    ROWS: tl.constexpr, PLACES: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, ZERO: tl.constexpr,
    HAS_MINIMUM: tl.constexpr,
):  # fmt: skip
    """Sums plus the products with `PLACES` bytes of each row: those of the low halves, then those of the high ones."""
    place = start + tl.arange(0, PLACES)
    inside = (place < row_bytes)[None, :]
    codes = load_places(weights_ptr + (row * row_bytes)[:, None] + place[None, :], inside, MASKED)
    GROUPS: tl.constexpr = PLACES // GROUP
    group = start // GROUP + tl.arange(0, GROUPS)
    if BITS == 8:
        row_scales = row * (row_bytes // GROUP)
        weights = expanded(
            codes, scales, minimums, row_scales, group, group * GROUP < row_bytes, MASKED, ROWS, GROUPS, GROUP, ZERO,
            HAS_MINIMUM
        )  # fmt: skip
        return tl.dot(x, tl.trans(weights), sums)
    else:
        row_scales = row * (2 * row_bytes // GROUP)
        PER: tl.constexpr = 32 // GROUP  # groups of 32 bytes
        below = group // PER * (2 * PER) + group % PER
        low, high = codes & 15, codes >> 4
        if BITS > 4:
            HIGH: tl.constexpr = BITS - 4
            WIDTH: tl.constexpr = 8 * HIGH  # bytes of the upper bits of 64 columns
            upper_place = place // 32 * WIDTH + place % WIDTH
            row_upper = row * (row_bytes // 32 * WIDTH)
            upper = load_places(high_bits + row_upper[:, None] + upper_place[None, :], inside, MASKED)
            upper = upper >> (place % 32 // WIDTH * (2 * HIGH)).to(tl.uint8)[None, :]
            low = low | (upper & ((1 << HIGH) - 1)) << 4
            high = high | (upper >> HIGH & ((1 << HIGH) - 1)) << 4
        known = group * GROUP < row_bytes
        weights = expanded(
            low, scales, minimums, row_scales, below, known, MASKED, ROWS, GROUPS, GROUP, ZERO, HAS_MINIMUM
        )  # fmt: skip
        sums = tl.dot(x, tl.trans(weights), sums)
        weights = expanded(
            high, scales, minimums, row_scales, below + PER, known, MASKED, ROWS, GROUPS, GROUP, ZERO, HAS_MINIMUM
        )  # fmt: skip
        return tl.dot(x_above, tl.trans(weights), sums)


@triton.jit
def load_places(addresses, inside, MASKED: tl.constexpr):
    return tl.load(addresses, mask=inside, other=0) if MASKED else tl.load(addresses)


@triton.jit
def expanded(
    codes, scales, minimums, row_scales, group, known, MASKED: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr,
    GROUP: tl.constexpr, ZERO: tl.constexpr, HAS_MINIMUM: tl.constexpr,
):  # fmt: skip
    """Codes as weights in bfloat16, (rows, groups · columns of a group)."""
    at = row_scales[:, None] + group[None, :]
    factor = load_places(scales + at, known[None, :], MASKED).to(tl.float32)
    weights = tl.reshape(codes.to(tl.float32) - ZERO, [ROWS, GROUPS, GROUP]) * factor[:, :, None]
    if HAS_MINIMUM:
        weights += load_places(minimums + at, known[None, :], MASKED).to(tl.float32)[:, :, None]
    return tl.reshape(weights.to(tl.bfloat16), [ROWS, GROUPS * GROUP])
