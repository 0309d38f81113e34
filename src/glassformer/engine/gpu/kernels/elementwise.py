"""Embeddings, norms, and what else is done to each token by itself.

Shapes: buffers are (tokens, width) in float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from glassformer.engine.gpu.kernels.functions import (
    ACTIVATIONS,
    NO_NORM,
    NORM_WARPS,
    NORMS,
    activated,
    mean_and_scale,
    norm_width,
    normed_columns,
)  # fmt: skip
from glassformer.engine.gpu.kernels.packed_matmul import BLOCK, PACKED_KINDS, expanded, load_blocks
from glassformer.engine.gpu.kernels.tensors import DeviceMatrix, DeviceNorm, PassTensors

COLUMNS = 1024  # of one program of an elementwise kernel
BLOCKS = 16  # of 64 columns, of one program of an embedding
COPY, ACTIVATE, ADD, GATED = (tl.constexpr(code) for code in range(4))


def embed(
    p: PassTensors, tables: Sequence[DeviceMatrix], out: Tensor, *, position_offset: int = 0, scale: float = 1.0
) -> None:
    """Embeddings of tokens times `scale`, plus those of positions and of token types if there are two or three tables.

    `position_offset`: the row that position 0 has in the table of positions. Numbers must be in their
    tables.
    """
    for index, table in enumerate(tables):
        rows = (p.ids, p.positions, p.types)[index]
        kind = PACKED_KINDS.get(table.kind)
        blocks = triton.cdiv(table.columns, BLOCK)
        embed_kernel[out.shape[0], triton.cdiv(blocks, BLOCKS)](
            rows, table.data, table.scales, table.outer_scales, table.high_bits, out, table.columns, blocks, out.stride(0),
            position_offset if index == 1 else 0, scale if index == 0 else 1.0, HAS_ROWS=rows is not None,
            ADDED=index > 0, BITS=kind.bits if kind else 0, ZERO=kind.zero if kind else 0,
            SCALES=kind.scales if kind else 0, BLOCKS=BLOCKS, enable_fp_fusion=False,
        )  # fmt: skip


@triton.jit(do_not_specialize=["row_offset"])
def embed_kernel(
    rows, table, scales, outer_scales, high_bits, out_ptr, columns, blocks, out_stride, row_offset, scale,
    HAS_ROWS: tl.constexpr, ADDED: tl.constexpr, BITS: tl.constexpr, ZERO: tl.constexpr, SCALES: tl.constexpr,
    BLOCKS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    block = (tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS))[:, None]
    row = tl.load(rows + token) + row_offset if HAS_ROWS else row_offset
    row = row.to(tl.int64) + tl.zeros([1, 1], tl.int64)
    out_row = out_ptr + token * out_stride
    column = block * 64 + tl.arange(0, 32)[None, :]
    if BITS == 0:
        below = tl.load(table + row * columns + column, mask=column < columns, other=0.0).to(tl.float32)
        above = tl.load(table + row * columns + column + 32, mask=column + 32 < columns, other=0.0).to(tl.float32)
    else:
        codes_below, codes_above, word, outer = load_blocks(
            table, scales, outer_scales, high_bits, row, block, blocks, BITS, SCALES, True
        )  # fmt: skip
        below = tl.reshape(expanded(codes_below, word, outer, False, SCALES, ZERO, BLOCKS, 1), [BLOCKS, 32])
        above = tl.reshape(expanded(codes_above, word, outer, True, SCALES, ZERO, BLOCKS, 1), [BLOCKS, 32])
    add_to_row(out_row, column, below * scale, columns, ADDED)
    add_to_row(out_row, column + 32, above * scale, columns, ADDED)


@triton.jit
def add_to_row(out_row, column, values, columns, ADDED: tl.constexpr):
    inside = column < columns
    if ADDED:
        values = tl.load(out_row + column, mask=inside, other=0.0) + values
    tl.store(out_row + column, values, mask=inside)


def norm(x: Tensor, norm: DeviceNorm, out: Tensor, *, rows: Tensor | None = None) -> None:
    """The norm of each token; `rows`: of these tokens only."""
    _norm(x, norm, out, rows, rows)


def prepare_inputs(x: Tensor, norm: DeviceNorm | None, dtype: torch.dtype, input_rows: Tensor | None) -> Tensor:
    """Inputs of a matmul, normed, in the dtype that they are multiplied in, in order."""
    tokens = x.shape[0] if input_rows is None else input_rows.shape[0]
    out = torch.empty(tokens, x.shape[1], dtype=dtype, device=x.device)
    _norm(x, norm, out, input_rows, None)
    return out


def _norm(x: Tensor, norm: DeviceNorm | None, out: Tensor, input_rows: Tensor | None, output_rows: Tensor | None) -> None:
    tokens = x.shape[0] if input_rows is None else input_rows.shape[0]
    if tokens == 0:
        return
    groups = norm.groups if norm else 1
    columns = x.shape[1] // groups
    norm_kernel[tokens, groups](
        x, norm and norm.weight, norm and norm.bias, out, input_rows, output_rows, columns, x.stride(0), out.stride(0),
        norm.eps if norm else 0.0, NORM=NORMS[norm.kind if norm else None],
        HAS_NORM_BIAS=norm is not None and norm.bias is not None, HAS_INPUT_ROWS=input_rows is not None,
        HAS_OUTPUT_ROWS=output_rows is not None, WIDTH=norm_width(columns), num_warps=NORM_WARPS, enable_fp_fusion=False,
    )  # fmt: skip


@triton.jit
def norm_kernel(
    x_ptr, norm_weight, norm_bias, out_ptr, input_rows, output_rows, columns, x_stride, out_stride, eps, NORM: tl.constexpr,
    HAS_NORM_BIAS: tl.constexpr, HAS_INPUT_ROWS: tl.constexpr, HAS_OUTPUT_ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    row = tl.load(input_rows + token) if HAS_INPUT_ROWS else token
    place = tl.load(output_rows + token) if HAS_OUTPUT_ROWS else token
    first = tl.program_id(1) * columns  # of this group
    x_row, out_row = x_ptr + row.to(tl.int64) * x_stride + first, out_ptr + place.to(tl.int64) * out_stride + first
    mean, factor = 0.0, 0.0
    if NORM != NO_NORM:
        mean, factor = mean_and_scale(x_row, columns, eps, NORM, WIDTH)
    for start in range(0, columns, WIDTH):
        column = start + tl.arange(0, WIDTH)
        x = normed_columns(
            x_row, column, columns, norm_weight + first if NORM != NO_NORM else norm_weight,
            norm_bias + first if HAS_NORM_BIAS else norm_bias, mean, factor, NORM, HAS_NORM_BIAS,
        )  # fmt: skip
        tl.store(out_row + column, x.to(out_ptr.dtype.element_ty), mask=column < columns)


def add(x: Tensor, other: Tensor, out: Tensor, *, rows: Tensor | None = None) -> None:
    """out = other + x; `rows`: of these tokens only."""
    _elementwise(ADD.value, x, other, out, rows, None)


def activate(x: Tensor, activation: str, out: Tensor, *, rows: Tensor | None = None) -> None:
    _elementwise(ACTIVATE.value, x, x, out, rows, activation)


def gate(gates: Tensor, activation: str, x: Tensor, out: Tensor, *, rows: Tensor | None = None) -> None:
    """out = act(gates) · x; one gate may be for all of x."""
    _elementwise(GATED.value, x, gates, out, rows, activation)


def copy(x: Tensor, out: Tensor, *, rows: Tensor | None = None) -> None:
    _elementwise(COPY.value, x, x, out, rows, None)


def _elementwise(step: int, x: Tensor, other: Tensor, out: Tensor, rows: Tensor | None, activation: str | None) -> None:
    tokens, width = (x.shape[0] if rows is None else rows.shape[0]), x.shape[1]
    if tokens == 0:
        return
    elementwise_kernel[tokens, triton.cdiv(width, COLUMNS)](
        x, other, out, rows, width, x.stride(0), other.stride(0), out.stride(0), STEP=step, HAS_ROWS=rows is not None,
        ACTIVATION=ACTIVATIONS[activation], ONE_OTHER=other.shape[1] == 1 < width, COLUMNS=COLUMNS, enable_fp_fusion=False,
    )  # fmt: skip


@triton.jit
def elementwise_kernel(
    x_ptr, other_ptr, out_ptr, rows, width, x_stride, other_stride, out_stride, STEP: tl.constexpr, HAS_ROWS: tl.constexpr,
    ACTIVATION: tl.constexpr, ONE_OTHER: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    if HAS_ROWS:
        token = tl.load(rows + token).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    x = tl.load(x_ptr + token * x_stride + column, mask=inside)
    if STEP == ADD:
        x = tl.load(other_ptr + token * other_stride + column, mask=inside) + x
    elif STEP == ACTIVATE:
        x = activated(x, ACTIVATION)
    elif STEP == GATED:
        gates = tl.load(other_ptr + token * other_stride + (0 * column if ONE_OTHER else column), mask=inside)
        x = activated(gates, ACTIVATION) * x
    tl.store(out_ptr + token * out_stride + column, x, mask=inside)
