"""Matrix products of tokens and weights, with a norm before and an epilogue after: epilogue(norm(x) · weightsᵀ + bias).

A single token's inputs are normed on the way; those of more are normed and rounded by `prepare_inputs`, once for all tiles
of rows. A result is a sum over the columns in order, 16 at a time, whatever the tile and the instructions that compute it:
it does not depend on the number of tokens. Packed weights are in packed_matmul.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from glassformer.engine.gpu.kernels.elementwise import prepare_inputs
from glassformer.engine.gpu.kernels.functions import (
    ACTIVATIONS,
    EPILOGUES,
    GATE,
    GATE_STORED,
    NO_NORM,
    NORM_WARPS,
    NORMS,
    can_be_tiled,
    finish_tile,
    load_other,
    mean_and_scale,
    norm_width,
    normed_columns,
    output_places,
    shared_bytes,
    tile_tokens_and_rows,
)  # fmt: skip
from glassformer.engine.gpu.kernels.packed_matmul import launch_packed_matmul
from glassformer.engine.gpu.kernels.tensors import DeviceMatrix, DeviceNorm

SMALL_BATCH = 16  # tokens whose inputs each tile rounds for itself, if they need no norm


class Tile(NamedTuple):
    """What one program of a product computes, and with how much of a multiprocessor."""

    tokens: int
    rows: int
    columns: int  # of one iteration
    warps: int
    stages: int  # iterations whose weights are loaded ahead
    by_copy_engine: bool = False

    def within(self, shared_bytes: int, itemsize: int, gated: bool) -> Tile:
        """The tile with as few columns and stages as a multiprocessor's shared memory has room for."""
        tile = self
        while (tile.tokens + tile.rows * (1 + gated)) * tile.columns * itemsize * tile.stages > shared_bytes:
            if tile.columns > 64:
                tile = tile._replace(columns=tile.columns // 2)
            elif tile.stages > 1:
                tile = tile._replace(stages=tile.stages - 1)
            else:
                break
        return tile


def matmul(
    x: Tensor,
    matrices: Sequence[DeviceMatrix],
    out: Tensor,
    *,
    norm: DeviceNorm | None = None,
    epilogue: str = "none",
    activation: str | None = None,
    activated_from: int = 0,
    residual: Tensor | None = None,
    scale: float = 1.0,
    input_rows: Tensor | None = None,
    output_rows: Tensor | None = None,
    prompt: bool = False,
) -> None:
    """Products of each token's inputs with matrices, side by side in `out`, (tokens, rows of all matrices).

    `epilogue`: "none"; "add" to the `residual`, which may be `out`; "activate", from a column of `out` on; or "gate":
    act(first half) · second half, of one matrix that holds both or of two. `prompt`: of packed weights, with tiles for many
    tokens, which round differently.
    """
    tokens = x.shape[0] if input_rows is None else input_rows.shape[0]
    if tokens == 0:
        return
    if norm is not None and norm.groups > 1:
        x, norm, input_rows = prepare_inputs(x, norm, torch.float32, input_rows), None, None
    steps = [(matrix, EPILOGUES[epilogue], residual, scale) for matrix in matrices]
    if epilogue == "gate" and len(matrices) == 2:
        gates, values = matrices
        steps = [(gates, EPILOGUES["none"], None, 1.0), (values, GATE_STORED.value, out, scale)]
    prepared: dict[torch.dtype, Tensor] = {}
    column = 0
    for matrix, step, other, factor in steps:
        width = matrix.rows // 2 if step == GATE.value else matrix.rows
        part = out[:, column : column + width]
        added = part if other is None else other[:, column : column + width]
        first_activated = max(activated_from - column, 0)
        column += 0 if epilogue == "gate" else width
        inputs, inputs_norm, rows, dtype = x, norm, input_rows, product_dtype(matrix)
        if _needs_preparation(x, matrix, norm, input_rows, tokens, prompt):
            if dtype not in prepared:
                prepared[dtype] = prepare_inputs(x, norm, dtype, input_rows)
            inputs, inputs_norm, rows = prepared[dtype], None, None
        constants = {
            "EPILOGUE": step, "ACTIVATION": ACTIVATIONS[activation], "HAS_BIAS": matrix.bias is not None,
            "HAS_OUTPUT_ROWS": output_rows is not None, "enable_fp_fusion": False,
        }  # fmt: skip
        strides = (added.stride(0), part.stride(0))
        outputs = (matrix.bias, added, part, output_rows, tokens, width, matrix.columns, *strides, factor, first_activated)
        launch = _launch_matmul if matrix.scales is None else launch_packed_matmul
        launch(inputs, matrix, outputs, constants, norm_arguments(inputs_norm, rows, matrix.columns), prompt)


def _needs_preparation(
    x: Tensor, matrix: DeviceMatrix, norm: DeviceNorm | None, input_rows: Tensor | None, tokens: int, prompt: bool
) -> bool:
    """Whether inputs are normed, gathered and rounded before a product, rather than on the way."""
    if not prompt and (tokens == 1 or matrix.scales is not None):
        return False
    rounded = x.dtype == product_dtype(matrix) or (tokens <= SMALL_BATCH and not prompt)
    return norm is not None or input_rows is not None or not rounded


def product_dtype(matrix: DeviceMatrix) -> torch.dtype:
    """What inputs are rounded to before they are multiplied with a matrix."""
    return torch.bfloat16 if matrix.scales is not None else matrix.data.dtype


def tile_for(tokens: int, rows: int, matrix: DeviceMatrix, gated: bool) -> Tile:
    """The tile of a product, by what was fastest on an H200. Only how fast it is depends on this, not its numbers."""
    if matrix.data.dtype == torch.float32:
        return Tile(16, 32, 64, NORM_WARPS, 2)
    if tokens == 1:
        if rows >= 16384:
            return Tile(16, 64, 128, NORM_WARPS, 5)
        return Tile(16, 32, 256, NORM_WARPS, 4) if rows > 2048 or gated else Tile(16, 8, 1024, NORM_WARPS, 3)
    if tokens <= SMALL_BATCH:
        return Tile(16, 32, 256, 4, 4)
    if tokens <= 32:
        return Tile(32, 32, 128, 4, 4)
    if tokens <= 256:
        return Tile(64, 64, 64, 4, 4)
    if rows >= 4096 and matrix.columns >= 2048 and not gated:
        return Tile(128, 256, 64, 8, 3, True)
    return Tile(128, 128, 64, 8, 3 if gated or matrix.columns < 2048 else 4, True)


def norm_arguments(
    norm: DeviceNorm | None, input_rows: Tensor | None, columns: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Where inputs lie and how they are normed: arguments and constants of the kernels that norm them on the way."""
    constants = {
        "NORM": NORMS[norm.kind if norm else None], "HAS_NORM_BIAS": norm is not None and norm.bias is not None,
        "NORM_WIDTH": norm_width(columns), "HAS_INPUT_ROWS": input_rows is not None,
    }  # fmt: skip
    return (norm and norm.weight, norm and norm.bias, norm.eps if norm else 0.0, input_rows), constants


def _launch_matmul(
    x: Tensor, matrix: DeviceMatrix, outputs: tuple[Any, ...], constants: dict[str, Any],
    norm: tuple[tuple[Any, ...], dict[str, Any]], prompt: bool,
) -> None:  # fmt: skip
    tokens, rows = outputs[4:6]
    gated = constants["EPILOGUE"] == GATE.value
    tile = tile_for(tokens, rows, matrix, gated).within(shared_bytes(x.device), matrix.data.itemsize, gated)
    grid = (triton.cdiv(tokens, tile.tokens) * triton.cdiv(rows, tile.rows),)
    constants |= {
        "TOKENS": tile.tokens, "ROWS": tile.rows, "COLUMNS": tile.columns, "num_warps": tile.warps,
        "num_stages": tile.stages,
    }  # fmt: skip
    masked = matrix.columns % tile.columns != 0
    if tokens == 1 and not prompt:
        arguments, more = norm
        single_matmul_kernel[grid](
            x, matrix.data, *outputs, x.stride(0), *arguments, MASKED=masked, **more, **constants
        )  # fmt: skip
        return
    inputs, weights = x, matrix.data
    tiled = tile.by_copy_engine and can_be_tiled(x) and can_be_tiled(weights)
    if tiled:
        inputs = TensorDescriptor.from_tensor(x, [tile.tokens, tile.columns])
        weights = TensorDescriptor.from_tensor(weights, [tile.rows, tile.columns])
    matmul_kernel[grid](inputs, weights, *outputs, x.stride(0), TILED=tiled, MASKED=masked, **constants)


@triton.jit
def single_matmul_kernel(
    x_ptr, weights_ptr, bias_ptr, residual_ptr, out_ptr, output_rows, tokens, rows, columns, residual_stride, out_stride,
    scale, first_activated, x_stride, norm_weight, norm_bias, eps, input_rows, EPILOGUE: tl.constexpr,
    ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_OUTPUT_ROWS: tl.constexpr, HAS_INPUT_ROWS: tl.constexpr,
    NORM: tl.constexpr, HAS_NORM_BIAS: tl.constexpr, NORM_WIDTH: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """One token, in a tile that has room for more."""
    token, row = tile_tokens_and_rows(tokens, TOKENS, ROWS)
    live = token < tokens
    place = output_places(output_rows, token, live, HAS_OUTPUT_ROWS)
    other = load_other(residual_ptr, place, live, row, rows, residual_stride, EPILOGUE)
    x_row = x_ptr + tl.load(input_rows).to(tl.int64) * x_stride if HAS_INPUT_ROWS else x_ptr
    mean, factor = 0.0, 0.0
    if NORM != NO_NORM:
        mean, factor = mean_and_scale(x_row, columns, eps, NORM, NORM_WIDTH)
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
        x = normed_columns(x_row, column, columns, norm_weight, norm_bias, mean, factor, NORM, HAS_NORM_BIAS)
        inputs = tl.where(live[:, None], x[None, :], 0.0).to(dtype)
        if EPILOGUE == GATE:
            gates = tl.dot(inputs, load_transposed(gate_rows, column, columns, MASKED), gates, input_precision="ieee")
        sums = tl.dot(inputs, load_transposed(weight_rows, column, columns, MASKED), sums, input_precision="ieee")
    finish_tile(
        sums, gates, other, bias_ptr, out_ptr, place, live, row, rows, out_stride, scale, first_activated, EPILOGUE,
        ACTIVATION, HAS_BIAS,
    )  # fmt: skip


@triton.jit
def load_transposed(rows, column, columns, MASKED: tl.constexpr):
    """Some columns of a tile's rows: (columns, rows)."""
    addresses = rows[None, :] + column[:, None]
    return tl.load(addresses, mask=(column < columns)[:, None], other=0.0) if MASKED else tl.load(addresses)


@triton.jit(do_not_specialize=["tokens"])
def matmul_kernel(
    x, weights, bias_ptr, residual_ptr, out_ptr, output_rows, tokens, rows, columns, residual_stride, out_stride,
    scale, first_activated, x_stride, EPILOGUE: tl.constexpr, ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_OUTPUT_ROWS: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TILED: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """`TILED`: inputs and weights are descriptors whose tiles the copy engine loads; otherwise they are addresses."""
    token, row = tile_tokens_and_rows(tokens, TOKENS, ROWS)
    live = token < tokens
    first_token, first_row = tl.min(token, axis=0), tl.min(row, axis=0)
    first_weight_row = first_row + rows if EPILOGUE == GATE else first_row
    end_row = rows + rows if EPILOGUE == GATE else rows
    dtype = weights.dtype if TILED else weights.dtype.element_ty
    sums = tl.zeros([TOKENS, ROWS], tl.float32)
    gates = sums
    for start in range(0, columns, COLUMNS):
        inputs = load_tile(x, first_token, tokens, start, columns, x_stride, TOKENS, COLUMNS, TILED, MASKED).to(dtype)
        if EPILOGUE == GATE:
            tile = load_tile(weights, first_row, rows, start, columns, columns, ROWS, COLUMNS, TILED, MASKED)
            gates = tl.dot(inputs, tl.trans(tile), gates, input_precision="ieee")
        tile = load_tile(weights, first_weight_row, end_row, start, columns, columns, ROWS, COLUMNS, TILED, MASKED)
        sums = tl.dot(inputs, tl.trans(tile), sums, input_precision="ieee")
    place = output_places(output_rows, token, live, HAS_OUTPUT_ROWS)
    other = load_other(residual_ptr, place, live, row, rows, residual_stride, EPILOGUE)
    finish_tile(
        sums, gates, other, bias_ptr, out_ptr, place, live, row, rows, out_stride, scale, first_activated, EPILOGUE,
        ACTIVATION, HAS_BIAS,
    )  # fmt: skip


@triton.jit
def load_tile(
    source, first, end, start, columns, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TILED: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Columns from `start` on of the rows from `first` on; zero beyond the last column, anything beyond the last row."""
    if TILED:
        tile = source.load([first, start])
    else:
        row = tl.minimum(first + tl.arange(0, ROWS), end - 1).to(tl.int64)
        column = start + tl.arange(0, COLUMNS)
        addresses = source + row[:, None] * stride + column[None, :]
        tile = tl.load(addresses, mask=(column < columns)[None, :], other=0.0) if MASKED else tl.load(addresses)
    return tile
