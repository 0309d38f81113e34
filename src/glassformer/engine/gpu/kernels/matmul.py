"""Matrix products of tokens and weights, with a norm before and an epilogue after: epilogue(norm(x) · weightsᵀ + bias).

One kernel serves step passes and prompt passes, in tiles of different sizes. A step pass of up to 16 tokens reads its inputs
as they are and norms them on the way; for more, `prepare_inputs` norms and rounds them once for all tiles of rows.

A result is a sum over the columns in order, whatever the tile, so that it does not depend on the number of tokens.
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
    NORM_TOKENS,
    NORM_WARPS,
    NORMS,
    finish_tile,
    input_rows_of,
    load_inputs,
    mean_and_scale,
    tile_tokens_and_rows,
)  # fmt: skip
from glassformer.engine.gpu.kernels.packed_matmul import packed_arguments, packed_constants, packed_matmul_kernel
from glassformer.engine.gpu.kernels.tensors import DeviceMatrix, DeviceNorm


class Tile(NamedTuple):
    """What one program of a matmul computes, and with how much of a multiprocessor."""

    tokens: int
    rows: int
    columns: int  # of one iteration
    warps: int
    stages: int  # iterations whose weights are loaded ahead


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
    if prompt or tokens > NORM_TOKENS:
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


def tile_for(tokens: int, rows: int, matrix: DeviceMatrix, gated: bool, prompt: bool) -> Tile:
    """The tile of a product. Only how fast it is depends on this, not its numbers.

    But for four-bit codes: they are summed low halves first, a tile's columns at a time, so that all step passes need the
    same.
    """
    packed = matrix.scales is not None
    if matrix.data.dtype == torch.float32:
        return Tile(16, 32, 64, 4, 2)
    if prompt:
        return Tile(128, 64 if gated else 128, 64, 8, 3)
    if tokens <= NORM_TOKENS:
        return Tile(16, 16 if rows <= 4096 else 32, 256, 4, 4)
    return Tile(32, 64, 256, 4, 2) if packed else Tile(32, 64, 128, 4, 3)


def _launch(
    x: Tensor, matrix: DeviceMatrix, out: Tensor, norm: DeviceNorm | None, epilogue: int, activation: str | None,
    residual: Tensor | None, scale: float, input_rows: Tensor | None, output_rows: Tensor | None, tokens: int, prompt: bool,
) -> None:  # fmt: skip
    gated = epilogue == GATE.value
    rows = matrix.rows // 2 if gated else matrix.rows
    tile = tile_for(tokens, rows, matrix, gated, prompt)
    assert norm is None or (tile.tokens, tile.warps) == (NORM_TOKENS, NORM_WARPS)
    residual = out if residual is None else residual
    arguments = (
        x, matrix.data, matrix.bias, norm and norm.weight, norm and norm.bias, residual, out, input_rows, output_rows,
        tokens, rows, matrix.columns, x.stride(0), residual.stride(0), out.stride(0), norm.eps if norm else 0.0, scale,
    )  # fmt: skip
    constants = {
        "NORM": NORMS[norm.kind if norm else None], "HAS_NORM_BIAS": norm is not None and norm.bias is not None,
        "EPILOGUE": epilogue, "ACTIVATION": ACTIVATIONS[activation], "HAS_BIAS": matrix.bias is not None,
        "HAS_INPUT_ROWS": input_rows is not None, "HAS_OUTPUT_ROWS": output_rows is not None,
        "MASKED": matrix.columns % tile.columns != 0, "TOKENS": tile.tokens, "ROWS": tile.rows, "COLUMNS": tile.columns,
        "num_warps": tile.warps, "num_stages": tile.stages, "enable_fp_fusion": False,
    }  # fmt: skip
    grid = (triton.cdiv(tokens, tile.tokens) * triton.cdiv(rows, tile.rows),)
    if matrix.scales is None:
        matmul_kernel[grid](*arguments, **constants)
    else:
        packed_matmul_kernel[grid](*arguments, *packed_arguments(matrix), **constants, **packed_constants(matrix))


@triton.jit(do_not_specialize=["tokens"])
def matmul_kernel(
    x_ptr, weights_ptr, bias_ptr, norm_weight, norm_bias, residual_ptr, out_ptr, input_rows, output_rows, tokens, rows,
    columns, x_stride, residual_stride, out_stride, eps, scale, NORM: tl.constexpr, HAS_NORM_BIAS: tl.constexpr,
    EPILOGUE: tl.constexpr, ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_INPUT_ROWS: tl.constexpr,
    HAS_OUTPUT_ROWS: tl.constexpr, MASKED: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    token, row = tile_tokens_and_rows(tokens, TOKENS, ROWS)
    live = token < tokens
    x_rows = input_rows_of(x_ptr, input_rows, token, live, x_stride, HAS_INPUT_ROWS)
    mean = tl.zeros([TOKENS], tl.float32)
    factor = mean
    if NORM != NO_NORM:
        mean, factor = mean_and_scale(x_rows, live, columns, eps, NORM, TOKENS)
    dtype = weights_ptr.dtype.element_ty
    gate_row = tl.minimum(row, rows - 1)
    gate_rows = weights_ptr + gate_row.to(tl.int64) * columns
    weight_rows = gate_rows
    if EPILOGUE == GATE:
        weight_rows = weights_ptr + (gate_row + rows).to(tl.int64) * columns
    sums = tl.zeros([TOKENS, ROWS], tl.float32)
    gates = sums
    for start in range(0, columns, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        x = load_inputs(x_rows, live, column, columns, norm_weight, norm_bias, mean, factor, NORM, HAS_NORM_BIAS, MASKED)
        x = x.to(dtype)
        if EPILOGUE == GATE:
            gates = tl.dot(x, load_weights(gate_rows, column, columns, MASKED), gates, input_precision="ieee")
        sums = tl.dot(x, load_weights(weight_rows, column, columns, MASKED), sums, input_precision="ieee")
    finish_tile(
        sums, gates, bias_ptr, residual_ptr, out_ptr, output_rows, token, live, row, rows, residual_stride, out_stride,
        scale, EPILOGUE, ACTIVATION, HAS_BIAS, HAS_OUTPUT_ROWS,
    )  # fmt: skip


@triton.jit
def load_weights(weight_rows, column, columns, MASKED: tl.constexpr):
    """Some columns of a tile's rows, transposed: (columns, rows)."""
    addresses = weight_rows[None, :] + column[:, None]
    if MASKED:
        return tl.load(addresses, mask=(column < columns)[:, None], other=0.0)
    return tl.load(addresses)
