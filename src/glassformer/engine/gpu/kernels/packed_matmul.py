"""Weights in the packed kinds of GGUF: their layout on the device, and products with them.

GGUF (https://github.com/ggml-org/ggml, ggml-common.h) keeps codes and scales of some neighbours together in a block of odd
size; here codes and scales lie apart, so that loads are wide and aligned. No number changes, only its place. Everything is
in blocks of 64 columns: 32 below and 32 above.

Codes of eight bits are int8, (rows, columns). Of the others the low four bits lie in bytes, (rows, columns / 2): byte i of a
block holds column i in its low half and column i + 32 in its high half. The bits beyond four lie apart, (rows, columns / 8 ·
bits): byte j of a block holds those of the bytes j, j + 8 · bits, …

Scales are words of 32 bits, (rows, columns / 64): two float16, of the columns below and above; for the K kinds four bytes,
which are multiplied with the float16 of 256 columns, (rows, columns / 256): a scale and a minimum of each half (Q4_K,
Q5_K), or two scales of each (Q6_K). A weight is (code - zero) · scale + minimum.

Columns are padded to whole blocks, with zero scales.
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
    load_other,
    mean_and_scale,
    normed_columns,
    output_places,
    tile_tokens_and_rows,
)  # fmt: skip
from glassformer.engine.gpu.kernels.tensors import DeviceMatrix

Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]
BLOCK = 64  # columns that lie together
PROMPT_TOKENS, PROMPT_ROWS = 128, 128  # of one program of a prompt pass
HALVES, HALVES_AND_MINIMUMS, BYTES_AND_MINIMUMS, BYTES = (tl.constexpr(code) for code in range(4))  # what scales are


class Unpacked(NamedTuple):
    """What a file's blocks hold: (blocks, columns) codes, words of scales, and words of what those are multiplied with."""

    codes: Array
    scales: Array
    outer_scales: Array | None = None


class PackedKind(NamedTuple):
    block: int  # columns of a file's block
    block_bytes: int
    bits: int  # of a code
    zero: int  # the code of a weight of zero
    scales: int
    unpack: Callable[[Bytes], Unpacked]


def pack(kind: str, raw: bytes | Bytes, rows: int, columns: int, device: torch.device | str = "cpu") -> DeviceMatrix:
    """A matrix from the bytes that a GGUF file has of it."""
    form = PACKED_KINDS[kind]
    blocks = np.frombuffer(raw, np.uint8).reshape(rows, columns // form.block, form.block_bytes)
    padded = np.pad(blocks, ((0, 0), (0, -columns % BLOCK // form.block), (0, 0)))
    unpacked = form.unpack(padded.reshape(-1, form.block_bytes))

    def laid_out(numbers: Array) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers).reshape(rows, -1)).to(device)

    codes, high_bits = laid_out(unpacked.codes), None
    if form.bits < 8:
        codes, high_bits = _split_bits(codes, form.bits - 4)
    outer_scales = None if unpacked.outer_scales is None else laid_out(unpacked.outer_scales)
    return DeviceMatrix(kind, rows, columns, codes, None, laid_out(unpacked.scales), outer_scales, high_bits)


def _split_bits(codes: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Codes of more than four bits to their low halves and the bits above them."""
    blocks = codes.reshape(len(codes), -1, 2, BLOCK // 2)  # (rows, blocks, below or above, bytes)
    low = (blocks[:, :, 0] & 15 | (blocks[:, :, 1] & 15) << 4).reshape(len(codes), -1)
    if not bits:
        return low, None
    pairs = blocks[:, :, 0] >> 4 | blocks[:, :, 1] >> 4 << bits
    parts = pairs.reshape(len(codes), pairs.shape[1], -1, 8 * bits)  # (rows, blocks, parts, bytes)
    high = torch.zeros_like(parts[:, :, 0])
    for index in range(parts.shape[2]):
        high |= parts[:, :, index] << (2 * bits * index)
    return low, high.reshape(len(codes), -1)


def _halves(blocks: Bytes, start: int) -> Array:
    """The float16 at some byte of each block, (blocks, 1)."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view(np.float16)


def _words(numbers: Array) -> Array:
    """Small numbers to words of 32 bits, in their order."""
    return np.ascontiguousarray(numbers).reshape(-1).view(np.int32)


def _nibbles(blocks: Bytes) -> Array:
    """The low halves of some bytes, then their high halves."""
    return np.concatenate((blocks & 15, blocks >> 4), axis=-1)


def _unpack_q8_0(blocks: Bytes) -> Unpacked:
    return Unpacked(blocks[:, 2:].view(np.int8), _words(_halves(blocks, 0)))


def _unpack_q4_0(blocks: Bytes) -> Unpacked:
    return Unpacked(_nibbles(blocks[:, 2:]), _words(_halves(blocks, 0)))


def _unpack_q4_1(blocks: Bytes) -> Unpacked:
    return Unpacked(_nibbles(blocks[:, 4:]), _words(_halves(blocks, 0)), _words(_halves(blocks, 2)))


def _k_scales(blocks: Bytes) -> tuple[Array, Array]:
    """Scales and minimums of the eight 32s of a block, six bits each in twelve bytes; and those of the whole block."""
    low, middle, high = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate((low & 63, high & 15 | low >> 6 << 4), axis=1)
    minimums = np.concatenate((middle & 63, high >> 4 | middle >> 6 << 4), axis=1)
    outer = np.concatenate((_halves(blocks, 0), -_halves(blocks, 2)), axis=1)  # minimums are subtracted in a file
    return _words(np.stack((scales, minimums), axis=-1)), _words(outer)


def _unpack_q4_k(blocks: Bytes) -> Unpacked:
    return Unpacked(_nibbles(blocks[:, 16:].reshape(len(blocks), 4, 32)), *_k_scales(blocks))


def _unpack_q5_k(blocks: Bytes) -> Unpacked:
    low = _nibbles(blocks[:, 48:].reshape(len(blocks), 4, 32)).reshape(len(blocks), 8, 32)
    fifth = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return Unpacked(low | fifth << 4, *_k_scales(blocks))


def _unpack_q6_k(blocks: Bytes) -> Unpacked:
    low = _nibbles(blocks[:, :128].reshape(len(blocks), 2, 64)).reshape(len(blocks), 2, 4, 32)
    high = blocks[:, 128:192].reshape(len(blocks), 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    outer = np.repeat(_halves(blocks, 208), 2, axis=1)
    return Unpacked(low | high << 4, _words(blocks[:, 192:208]), _words(outer))


PACKED_KINDS: Mapping[str, PackedKind] = {
    "Q8_0": PackedKind(32, 34, 8, 0, HALVES.value, _unpack_q8_0),
    "Q4_0": PackedKind(32, 18, 4, 8, HALVES.value, _unpack_q4_0),
    "Q4_1": PackedKind(32, 20, 4, 0, HALVES_AND_MINIMUMS.value, _unpack_q4_1),
    "Q4_K": PackedKind(256, 144, 4, 0, BYTES_AND_MINIMUMS.value, _unpack_q4_k),
    "Q5_K": PackedKind(256, 176, 5, 0, BYTES_AND_MINIMUMS.value, _unpack_q5_k),
    "Q6_K": PackedKind(256, 210, 6, 32, BYTES.value, _unpack_q6_k),
}


class PackedTile(NamedTuple):
    """What one program of a step's product computes of one token."""

    rows: int
    blocks: int  # of one iteration
    warps: int
    stages: int


def packed_tile(rows: int, columns: int) -> PackedTile:
    """Decides in which order products are summed: by the shape of the matrix alone."""
    return PackedTile(4, 16, 4, 2)


def launch_packed_matmul(
    x: torch.Tensor, matrix: DeviceMatrix, outputs: tuple[Any, ...], constants: dict[str, Any],
    norm: tuple[tuple[Any, ...], dict[str, Any]], prompt: bool,
) -> None:  # fmt: skip
    assert matrix.scales is not None
    kind, blocks = PACKED_KINDS[matrix.kind], matrix.scales.shape[1]
    tokens, rows = outputs[4:6]
    arguments = (x, matrix.data, *outputs, x.stride(0), matrix.scales, matrix.outer_scales, matrix.high_bits, blocks)
    constants |= {"BITS": kind.bits, "ZERO": kind.zero, "SCALES": kind.scales}
    if prompt:
        grid = (triton.cdiv(tokens, PROMPT_TOKENS) * triton.cdiv(rows, PROMPT_ROWS),)
        packed_prompt_matmul_kernel[grid](
            *arguments, TOKENS=PROMPT_TOKENS, ROWS=PROMPT_ROWS, num_warps=8, num_stages=3, **constants
        )  # fmt: skip
        return
    tile = packed_tile(rows, matrix.columns)
    norm_arguments, norm_constants = norm
    packed_step_matmul_kernel[triton.cdiv(rows, tile.rows), tokens](
        *arguments, *norm_arguments, ROWS=tile.rows, BLOCKS=tile.blocks, MASKED=blocks % tile.blocks != 0,
        STAGES=tile.stages, num_warps=tile.warps, **norm_constants, **constants,
    )  # fmt: skip


@triton.jit
def half_of(word, above: tl.constexpr):
    """One of the two float16 of a word, in float32."""
    bits = (word >> 16 if above else word) & 0xFFFF
    return bits.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def byte_of(word, index: tl.constexpr):
    return (word >> (8 * index) & 0xFF).to(tl.float32)


@triton.jit
def signed_byte_of(word, index: tl.constexpr):
    return (word << (24 - 8 * index) >> 24).to(tl.float32)


@triton.jit
def expanded(
    codes, word, outer, above: tl.constexpr, SCALES: tl.constexpr, ZERO: tl.constexpr, A: tl.constexpr, B: tl.constexpr
):
    """Codes of half a block as weights in float32, (A, B, 32); words of scales are (A, B)."""
    values = codes.to(tl.float32) - ZERO
    if SCALES == BYTES:  # each of 16 columns
        first, second = signed_byte_of(word, 2 if above else 0), signed_byte_of(word, 3 if above else 1)
        factors = tl.join(first, second) * half_of(outer, False)[:, :, None]  # (A, B, 2)
        values = tl.reshape(tl.reshape(values, [A, B, 2, 16]) * factors[:, :, :, None], [A, B, 32])
    elif SCALES == BYTES_AND_MINIMUMS:
        factor = half_of(outer, False) * byte_of(word, 2 if above else 0)
        minimum = half_of(outer, True) * byte_of(word, 3 if above else 1)
        values = values * factor[:, :, None] + minimum[:, :, None]
    else:
        values = values * half_of(word, above)[:, :, None]
        if SCALES == HALVES_AND_MINIMUMS:
            values += half_of(outer, above)[:, :, None]
    return values


@triton.jit
def load_blocks(
    weights_ptr, scales, outer_scales, high_bits, row, block, blocks, BITS: tl.constexpr, SCALES: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Codes below and above, (A, B, 32), and words of scales, (A, B), of some blocks: `row` and `block` are (A, B)."""
    place = tl.arange(0, 32)[None, None, :]
    inside = (block < blocks) & (row >= 0)
    word = load_inside(scales + row * blocks + block, inside, MASKED)
    outer = word
    if SCALES == HALVES_AND_MINIMUMS:
        outer = load_inside(outer_scales + row * blocks + block, inside, MASKED)
    elif SCALES != HALVES:
        outer = load_inside(outer_scales + row * (blocks // 4) + block // 4, inside, MASKED)
    block_index = (row * blocks + block)[:, :, None]
    inside = inside[:, :, None]
    if BITS == 8:
        below = load_inside(weights_ptr + block_index * 64 + place, inside, MASKED)
        above = load_inside(weights_ptr + block_index * 64 + 32 + place, inside, MASKED)
    else:
        codes = load_inside(weights_ptr + block_index * 32 + place, inside, MASKED)
        below, above = codes & 15, codes >> 4
        if BITS > 4:
            HIGH: tl.constexpr = BITS - 4
            WIDTH: tl.constexpr = 8 * HIGH  # bytes of a block
            upper = load_inside(high_bits + block_index * WIDTH + place % WIDTH, inside, MASKED)
            upper = upper >> (place // WIDTH * (2 * HIGH)).to(tl.uint8)
            below = below | (upper & ((1 << HIGH) - 1)) << 4
            above = above | (upper >> HIGH & ((1 << HIGH) - 1)) << 4
    return below, above, word, outer


@triton.jit
def load_inside(addresses, inside, MASKED: tl.constexpr):
    return tl.load(addresses, mask=inside, other=0) if MASKED else tl.load(addresses)


@triton.jit(do_not_specialize=["tokens"])
def packed_step_matmul_kernel(
    x_ptr, weights_ptr, bias_ptr, residual_ptr, out_ptr, output_rows, tokens, rows, columns, residual_stride, out_stride,
    scale, first_activated, x_stride, scales, outer_scales, high_bits, blocks, norm_weight, norm_bias, eps, input_rows,
    EPILOGUE: tl.constexpr, ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_OUTPUT_ROWS: tl.constexpr,
    HAS_INPUT_ROWS: tl.constexpr, NORM: tl.constexpr, HAS_NORM_BIAS: tl.constexpr, NORM_WIDTH: tl.constexpr,
    ROWS: tl.constexpr, BLOCKS: tl.constexpr, MASKED: tl.constexpr, STAGES: tl.constexpr, BITS: tl.constexpr,
    ZERO: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    """One token and some rows, in float32 without tensor cores: each token is computed as if it were alone."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = tl.program_id(1) + tl.zeros([1], tl.int32)
    live = token >= 0
    place = output_places(output_rows, token, live, HAS_OUTPUT_ROWS)
    other = load_other(residual_ptr, place, live, row, rows, residual_stride, EPILOGUE)
    x_row = x_ptr + input_place(input_rows, HAS_INPUT_ROWS) * x_stride
    mean, factor = 0.0, 0.0
    if NORM != NO_NORM:
        mean, factor = mean_and_scale(x_row, columns, eps, NORM, NORM_WIDTH)
    gate_row = tl.minimum(row, rows - 1).to(tl.int64)[:, None]
    weight_row = gate_row + rows if EPILOGUE == GATE else gate_row
    sums = tl.zeros([ROWS, BLOCKS, 32], tl.float32)
    gates = sums
    for start in tl.range(0, blocks, BLOCKS, num_stages=STAGES):
        block = start + tl.arange(0, BLOCKS)
        column = block[:, None] * 64 + tl.arange(0, 32)[None, :]
        x_below = normed_columns(x_row, column, columns, norm_weight, norm_bias, mean, factor, NORM, HAS_NORM_BIAS)
        x_above = normed_columns(x_row, column + 32, columns, norm_weight, norm_bias, mean, factor, NORM, HAS_NORM_BIAS)
        if EPILOGUE == GATE:
            below, above, word, outer = load_blocks(
                weights_ptr, scales, outer_scales, high_bits, gate_row, block[None, :], blocks, BITS, SCALES, MASKED
            )  # fmt: skip
            gates += expanded(below, word, outer, False, SCALES, ZERO, ROWS, BLOCKS) * x_below[None, :, :]
            gates += expanded(above, word, outer, True, SCALES, ZERO, ROWS, BLOCKS) * x_above[None, :, :]
        below, above, word, outer = load_blocks(
            weights_ptr, scales, outer_scales, high_bits, weight_row, block[None, :], blocks, BITS, SCALES, MASKED
        )  # fmt: skip
        sums += expanded(below, word, outer, False, SCALES, ZERO, ROWS, BLOCKS) * x_below[None, :, :]
        sums += expanded(above, word, outer, True, SCALES, ZERO, ROWS, BLOCKS) * x_above[None, :, :]
    row_sums = tl.sum(tl.sum(sums, axis=2), axis=1)[None, :]
    row_gates = row_sums
    if EPILOGUE == GATE:
        row_gates = tl.sum(tl.sum(gates, axis=2), axis=1)[None, :]
    finish_tile(
        row_sums, row_gates, other, bias_ptr, out_ptr, place, live, row, rows, out_stride, scale, first_activated, EPILOGUE,
        ACTIVATION, HAS_BIAS,
    )  # fmt: skip


@triton.jit
def input_place(input_rows, HAS_INPUT_ROWS: tl.constexpr):
    """The row of the program's token in the inputs."""
    token = tl.program_id(1)
    if HAS_INPUT_ROWS:
        token = tl.load(input_rows + token)
    return token.to(tl.int64)


@triton.jit(do_not_specialize=["tokens"])
def packed_prompt_matmul_kernel(
    x_ptr, weights_ptr, bias_ptr, residual_ptr, out_ptr, output_rows, tokens, rows, columns, residual_stride, out_stride,
    scale, first_activated, x_stride, scales, outer_scales, high_bits, blocks, EPILOGUE: tl.constexpr,
    ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_OUTPUT_ROWS: tl.constexpr, TOKENS: tl.constexpr,
    ROWS: tl.constexpr, BITS: tl.constexpr, ZERO: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    token, row = tile_tokens_and_rows(tokens, TOKENS, ROWS)
    live = token < tokens
    x_rows = x_ptr + tl.minimum(token, tokens - 1).to(tl.int64) * x_stride
    gate_row = tl.minimum(row, rows - 1).to(tl.int64)
    weight_row = gate_row + rows if EPILOGUE == GATE else gate_row
    sums = tl.zeros([TOKENS, ROWS], tl.float32)
    gates = sums
    for start in range(blocks):
        column = start * 64 + tl.arange(0, 32)
        inside = live[:, None] & (column < columns)[None, :]
        below = tl.load(x_rows[:, None] + column[None, :], mask=inside, other=0.0)
        above = tl.load(
            x_rows[:, None] + 32 + column[None, :], mask=live[:, None] & (column + 32 < columns)[None, :], other=0.0
        )
        if EPILOGUE == GATE:
            gates = add_prompt_products(
                below, above, gates, weights_ptr, scales, outer_scales, high_bits, gate_row, start, blocks, ROWS, BITS, ZERO,
                SCALES,
            )  # fmt: skip
        sums = add_prompt_products(
            below, above, sums, weights_ptr, scales, outer_scales, high_bits, weight_row, start, blocks, ROWS, BITS, ZERO,
            SCALES,
        )  # fmt: skip
    out_place = output_places(output_rows, token, live, HAS_OUTPUT_ROWS)
    other = load_other(residual_ptr, out_place, live, row, rows, residual_stride, EPILOGUE)
    finish_tile(
        sums, gates, other, bias_ptr, out_ptr, out_place, live, row, rows, out_stride, scale, first_activated, EPILOGUE,
        ACTIVATION, HAS_BIAS,
    )  # fmt: skip


@triton.jit
def add_prompt_products(
    x_below, x_above, sums, weights_ptr, scales, outer_scales, high_bits, row, block, blocks, ROWS: tl.constexpr,
    BITS: tl.constexpr, ZERO: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    rows = row[None, :]
    below, above, word, outer = load_blocks(
        weights_ptr, scales, outer_scales, high_bits, rows, block + tl.zeros([1, 1], tl.int32), blocks, BITS, SCALES,
        False,
    )  # fmt: skip
    weights = tl.reshape(expanded(below, word, outer, False, SCALES, ZERO, 1, ROWS), [ROWS, 32])
    sums = tl.dot(x_below, tl.trans(weights.to(tl.bfloat16)), sums)
    weights = tl.reshape(expanded(above, word, outer, True, SCALES, ZERO, 1, ROWS), [ROWS, 32])
    return tl.dot(x_above, tl.trans(weights.to(tl.bfloat16)), sums)
