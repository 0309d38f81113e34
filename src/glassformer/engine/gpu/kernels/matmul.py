"""Matrix products of tokens and weights, with a norm before and an epilogue after: epilogue(norm(x) · weightsᵀ + bias).

Step passes have few tokens, so that what counts is how soon all weights are there: a program takes few rows of them, and its
warps share the columns, eight slices at a time, since one warp's sums would wait for one another. A single token's inputs
are normed on the way; those of more are normed and rounded by `prepare_inputs`, once for all tiles of rows. A result is a
sum over the columns of a slice in order, and then over the slices, whatever the tile: it does not depend on the number of
tokens.

Prompt passes have large tiles, and sum over all columns in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from glassformer.engine.gpu.kernels.elementwise import prepare_inputs
from glassformer.engine.gpu.kernels.functions import (
    ACTIVATIONS,
    EPILOGUES,
    GATE,
    GATE_STORED,
    NO_NORM,
    NORMS,
    finish_tile,
    inputs_of,
    load_slices,
    mean_and_scale,
    norm_width,
    overlap_options,
    prefetch_rows,
    start_next_kernel,
    tile_tokens_and_rows,
    wait_for_inputs,
)  # fmt: skip
from glassformer.engine.gpu.kernels.packed_matmul import (
    packed_arguments,
    packed_constants,
    packed_prompt_matmul_kernel,
    packed_step_matmul_kernel,
)  # fmt: skip
from glassformer.engine.gpu.kernels.tensors import DeviceMatrix, DeviceNorm

SMALL_BATCH = 16  # tokens whose inputs are rounded by each tile for itself


SLICES, DEPTH = 8, 32  # of the columns of one iteration of a step: each slice is summed by a warp, and then all of them


class Tile(NamedTuple):
    """What one program of a step's product computes."""

    tokens: int
    rows: int
    stages: int  # iterations whose weights are loaded ahead


class PromptTile(NamedTuple):
    tokens: int
    rows: int
    columns: int  # of one iteration
    warps: int
    stages: int


def matmul(
    x: Tensor,
    matrices: Sequence[DeviceMatrix],
    out: Tensor,
    *,
    norm: DeviceNorm | None = None,
    epilogue: str = "none",
    activation: str | None = None,
    residual: Tensor | None = None,
    scale: float = 1.0,
    input_rows: Tensor | None = None,
    output_rows: Tensor | None = None,
    prompt: bool = False,
) -> None:
    """Products of each token's inputs with matrices, side by side in `out`, (tokens, rows of all matrices).

    `epilogue`: "none"; "add" to the `residual`, which may be `out`; "activate"; or "gate": act(first half) · second half, of
    one matrix that holds both or of two. `prompt`: with tiles for many tokens.
    """
    tokens = x.shape[0] if input_rows is None else input_rows.shape[0]
    if tokens == 0:
        return
    if prompt or tokens > SMALL_BATCH or (norm is not None and tokens > 1):
        dtype = product_dtype(matrices[0])
        if norm is not None or input_rows is not None or x.dtype != dtype:
            x = prepare_inputs(x, norm, dtype, input_rows)
            norm = input_rows = None
    if epilogue == "gate" and len(matrices) == 2:
        gates, values = matrices
        matmul(x, [gates], out, norm=norm, input_rows=input_rows, output_rows=output_rows, prompt=prompt)
        launch = (x, values, out, norm, GATE_STORED.value, activation, out, scale, input_rows, output_rows, tokens, prompt)
        _launch(*launch)
        return
    column = 0
    for matrix in matrices:
        width = matrix.rows // 2 if epilogue == "gate" else matrix.rows
        part = out[:, column : column + width]
        added = None if residual is None else residual[:, column : column + width]
        _launch(
            x, matrix, part, norm, EPILOGUES[epilogue], activation, added, scale, input_rows, output_rows, tokens, prompt
        )  # fmt: skip
        column += width


def product_dtype(matrix: DeviceMatrix) -> torch.dtype:
    """What inputs are rounded to before they are multiplied with a matrix."""
    return torch.bfloat16 if matrix.scales is not None else matrix.data.dtype


def step_tile(tokens: int, rows: int, matrix: DeviceMatrix, gated: bool) -> Tile:
    """The tile of a step's product. Only how fast it is depends on this, not its numbers."""
    if matrix.data.dtype == torch.float32:
        return Tile(16, 16, 1)
    if tokens <= 16:
        return Tile(16, 16, 4)
    return Tile(32 if tokens <= 32 else 64, 32, 3)


def prompt_tile(matrix: DeviceMatrix, gated: bool) -> PromptTile:
    if matrix.data.dtype == torch.float32:
        return PromptTile(32, 32, 32, 4, 2)
    return PromptTile(128, 128 if gated else 256, 64, 8, 3)


def _launch(
    x: Tensor, matrix: DeviceMatrix, out: Tensor, norm: DeviceNorm | None, epilogue: int, activation: str | None,
    residual: Tensor | None, scale: float, input_rows: Tensor | None, output_rows: Tensor | None, tokens: int, prompt: bool,
) -> None:  # fmt: skip
    gated = epilogue == GATE.value
    rows = matrix.rows // 2 if gated else matrix.rows
    residual = out if residual is None else residual
    packed = matrix.scales is not None
    constants = {
        "EPILOGUE": epilogue, "ACTIVATION": ACTIVATIONS[activation], "HAS_BIAS": matrix.bias is not None,
        "HAS_OUTPUT_ROWS": output_rows is not None, "enable_fp_fusion": False, **overlap_options(x),
        **(packed_constants(matrix) if packed else {}),
    }  # fmt: skip
    more = packed_arguments(matrix) if packed else ()
    if prompt:
        tile = prompt_tile(matrix, gated)
        kernel = packed_prompt_matmul_kernel if packed else prompt_matmul_kernel
        kernel[triton.cdiv(tokens, tile.tokens) * triton.cdiv(rows, tile.rows),](
            x, matrix.data, matrix.bias, residual, out, output_rows, tokens, rows, matrix.columns, x.stride(0),
            residual.stride(0), out.stride(0), scale, *more, TOKENS=tile.tokens, ROWS=tile.rows, COLUMNS=tile.columns,
            MASKED=matrix.columns % tile.columns != 0, num_warps=tile.warps, num_stages=tile.stages, **constants,
        )  # fmt: skip
        return
    step = step_tile(tokens, rows, matrix, gated)
    kernel = packed_step_matmul_kernel if packed else step_matmul_kernel
    kernel[triton.cdiv(tokens, step.tokens) * triton.cdiv(rows, step.rows),](
        x, matrix.data, matrix.bias, norm and norm.weight, norm and norm.bias, residual, out, input_rows, output_rows,
        tokens, rows, matrix.columns, x.stride(0), residual.stride(0), out.stride(0), norm.eps if norm else 0.0, scale,
        *more, NORM=NORMS[norm.kind if norm else None], HAS_NORM_BIAS=norm is not None and norm.bias is not None,
        HAS_INPUT_ROWS=input_rows is not None, TOKENS=step.tokens, ROWS=step.rows, SLICES=SLICES, DEPTH=DEPTH,
        SINGLE=tokens == 1, MASKED=matrix.columns % (SLICES * DEPTH * (2 if packed else 1)) != 0,
        NORM_WIDTH=norm_width(matrix.columns), num_warps=SLICES, num_stages=step.stages, **constants,
    )  # fmt: skip


@triton.jit(do_not_specialize=["tokens"])
def step_matmul_kernel(
    x_ptr, weights_ptr, bias_ptr, norm_weight, norm_bias, residual_ptr, out_ptr, input_rows, output_rows, tokens, rows,
    columns, x_stride, residual_stride, out_stride, eps, scale, NORM: tl.constexpr, HAS_NORM_BIAS: tl.constexpr,
    EPILOGUE: tl.constexpr, ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_INPUT_ROWS: tl.constexpr,
    HAS_OUTPUT_ROWS: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, SLICES: tl.constexpr, DEPTH: tl.constexpr,
    SINGLE: tl.constexpr, MASKED: tl.constexpr, NORM_WIDTH: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    start_next_kernel(OVERLAP & 1)
    token, row = tile_tokens_and_rows(tokens, TOKENS, ROWS)
    live = token < tokens
    gate_row = tl.minimum(row, rows - 1)
    gate_rows = weights_ptr + gate_row.to(tl.int64) * columns
    weight_rows = gate_rows
    if EPILOGUE == GATE:
        weight_rows = weights_ptr + (gate_row + rows).to(tl.int64) * columns
    dtype = weights_ptr.dtype.element_ty
    if OVERLAP & 4:
        prefetch_rows(weight_rows, columns, dtype.primitive_bitwidth // 8)
        if EPILOGUE == GATE:
            prefetch_rows(gate_rows, columns, dtype.primitive_bitwidth // 8)
    wait_for_inputs(OVERLAP)
    x_rows = inputs_of(x_ptr, input_rows, token, live, x_stride, HAS_INPUT_ROWS, SINGLE)
    mean, factor = 0.0, 0.0
    if NORM != NO_NORM:
        mean, factor = mean_and_scale(x_rows, columns, eps, NORM, NORM_WIDTH)
    sums = tl.zeros([SLICES, TOKENS, ROWS], tl.float32)
    gates = sums
    place = tl.arange(0, SLICES)[:, None] * DEPTH + tl.arange(0, DEPTH)[None, :]
    for start in range(0, columns, SLICES * DEPTH):
        column = start + place
        x = load_slices(x_rows, live, column, columns, norm_weight, norm_bias, mean, factor, NORM, HAS_NORM_BIAS, SINGLE)
        x = x.to(dtype)
        if EPILOGUE == GATE:
            gates = tl.dot(x, load_weight_slices(gate_rows, column, columns, MASKED), gates, input_precision="ieee")
        sums = tl.dot(x, load_weight_slices(weight_rows, column, columns, MASKED), sums, input_precision="ieee")
    start_next_kernel(OVERLAP & 2)
    finish_tile(
        tl.sum(sums, axis=0), tl.sum(gates, axis=0), bias_ptr, residual_ptr, out_ptr, output_rows, token, live, row, rows,
        residual_stride, out_stride, scale, EPILOGUE, ACTIVATION, HAS_BIAS, HAS_OUTPUT_ROWS,
    )  # fmt: skip


@triton.jit
def load_weight_slices(weight_rows, column, columns, MASKED: tl.constexpr):
    """Columns (slices, depth) of a tile's rows: (slices, depth, rows)."""
    addresses = weight_rows[None, None, :] + column[:, :, None]
    if MASKED:
        return tl.load(addresses, mask=(column < columns)[:, :, None], other=0.0)
    return tl.load(addresses)


@triton.jit(do_not_specialize=["tokens"])
def prompt_matmul_kernel(
    x_ptr, weights_ptr, bias_ptr, residual_ptr, out_ptr, output_rows, tokens, rows, columns, x_stride, residual_stride,
    out_stride, scale, EPILOGUE: tl.constexpr, ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_OUTPUT_ROWS: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, MASKED: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    start_next_kernel(OVERLAP & 1)
    wait_for_inputs(OVERLAP)
    token, row = tile_tokens_and_rows(tokens, TOKENS, ROWS)
    live = token < tokens
    x_rows = x_ptr + tl.minimum(token, tokens - 1).to(tl.int64) * x_stride
    gate_row = tl.minimum(row, rows - 1)
    gate_rows = weights_ptr + gate_row.to(tl.int64) * columns
    weight_rows = gate_rows
    if EPILOGUE == GATE:
        weight_rows = weights_ptr + (gate_row + rows).to(tl.int64) * columns
    sums = tl.zeros([TOKENS, ROWS], tl.float32)
    gates = sums
    for start in range(0, columns, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        x = load_columns(x_rows, column, columns, MASKED)
        if EPILOGUE == GATE:
            gates = tl.dot(x, tl.trans(load_columns(gate_rows, column, columns, MASKED)), gates, input_precision="ieee")
        sums = tl.dot(x, tl.trans(load_columns(weight_rows, column, columns, MASKED)), sums, input_precision="ieee")
    start_next_kernel(OVERLAP & 2)
    finish_tile(
        sums, gates, bias_ptr, residual_ptr, out_ptr, output_rows, token, live, row, rows, residual_stride, out_stride,
        scale, EPILOGUE, ACTIVATION, HAS_BIAS, HAS_OUTPUT_ROWS,
    )  # fmt: skip


@triton.jit
def load_columns(rows, column, columns, MASKED: tl.constexpr):
    addresses = rows[:, None] + column[None, :]
    return tl.load(addresses, mask=(column < columns)[None, :], other=0.0) if MASKED else tl.load(addresses)
