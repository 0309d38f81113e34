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
    NORM_TOKENS,
    NORM_WARPS,
    NORMS,
    activated,
    input_rows_of,
    load_inputs,
    mean_and_scale,
)  # fmt: skip
from glassformer.engine.gpu.kernels.packed_matmul import PACKED_KINDS
from glassformer.engine.gpu.kernels.tensors import DeviceMatrix, DeviceNorm, PassTensors

COLUMNS = 1024  # of one program of an elementwise kernel
COPY, ACTIVATE, ADD = (tl.constexpr(number) for number in range(3))


def embed(
    p: PassTensors, tables: Sequence[DeviceMatrix], out: Tensor, *, position_offset: int = 0, scale: float = 1.0
) -> None:
    """Embeddings of tokens times `scale`, plus those of positions and of token types if there are two or three tables.

    `position_offset`: the row that position 0 has in the table of positions. Numbers must be in their tables.
    """
    for number, table in enumerate(tables):
        rows = (p.ids, p.positions, p.types)[number]
        kind = PACKED_KINDS.get(table.kind)
        grid = (out.shape[0], triton.cdiv(table.columns, COLUMNS))
        embed_kernel[grid](
            rows, table.data, table.scales, table.minimums, table.high_bits, out, table.columns, table.data.shape[1],
            out.stride(0), position_offset if number == 1 else 0, scale if number == 0 else 1.0, HAS_ROWS=rows is not None,
            ADDED=number > 0, BITS=kind.bits if kind else 0, GROUP=kind.group if kind else 1, ZERO=kind.zero if kind else 0,
            HAS_MINIMUM=table.minimums is not None, COLUMNS=COLUMNS, enable_fp_fusion=False,
        )  # fmt: skip


@triton.jit(do_not_specialize=["row_offset"])
def embed_kernel(
    rows, table, scales, minimums, high_bits, out_ptr, columns, row_places, out_stride, row_offset, scale,
    HAS_ROWS: tl.constexpr, ADDED: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, ZERO: tl.constexpr,
    HAS_MINIMUM: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    row = tl.load(rows + token) + row_offset if HAS_ROWS else row_offset
    values = table_values(
        table, scales, minimums, high_bits, row, row_places, column, inside, BITS, GROUP, ZERO, HAS_MINIMUM
    )  # fmt: skip
    values *= scale
    out = out_ptr + token * out_stride + column
    if ADDED:
        values = tl.load(out, mask=inside) + values
    tl.store(out, values, mask=inside)


@triton.jit
def table_values(
    table, scales, minimums, high_bits, row, row_places, column, inside, BITS: tl.constexpr, GROUP: tl.constexpr,
    ZERO: tl.constexpr, HAS_MINIMUM: tl.constexpr,
):  # fmt: skip
    """Some columns of a table's row in float32; packed_matmul.py says how codes lie."""
    at = row.to(tl.int64) * row_places
    if BITS == 0:
        values = tl.load(table + at + column, mask=inside, other=0.0).to(tl.float32)
    else:
        if BITS == 8:
            codes = tl.load(table + at + column, mask=inside, other=0).to(tl.int32)
            group_at = row.to(tl.int64) * (row_places // GROUP)
        else:
            place, above = column // 64 * 32 + column % 32, column // 32 % 2
            codes = tl.load(table + at + place, mask=inside, other=0).to(tl.int32) >> (4 * above) & 15
            group_at = row.to(tl.int64) * (2 * row_places // GROUP)
            if BITS > 4:
                HIGH: tl.constexpr = BITS - 4
                WIDTH: tl.constexpr = 8 * HIGH
                upper_at = row.to(tl.int64) * (row_places // 32 * WIDTH) + place // 32 * WIDTH + place % WIDTH
                upper = tl.load(high_bits + upper_at, mask=inside, other=0).to(tl.int32)
                upper = upper >> (place % 32 // WIDTH * (2 * HIGH) + above * HIGH)
                codes |= (upper & ((1 << HIGH) - 1)) << 4
        group_at += column // GROUP
        values = (codes - ZERO).to(tl.float32) * tl.load(scales + group_at, mask=inside, other=0.0).to(tl.float32)
        if HAS_MINIMUM:
            values += tl.load(minimums + group_at, mask=inside, other=0.0).to(tl.float32)
    return values


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
    norm_kernel[triton.cdiv(tokens, NORM_TOKENS),](
        x, norm and norm.weight, norm and norm.bias, out, input_rows, output_rows, tokens, x.shape[1], x.stride(0),
        out.stride(0), norm.eps if norm else 0.0, NORM=NORMS[norm.kind if norm else None],
        HAS_NORM_BIAS=norm is not None and norm.bias is not None, HAS_INPUT_ROWS=input_rows is not None,
        HAS_OUTPUT_ROWS=output_rows is not None, TOKENS=NORM_TOKENS, COLUMNS=256, num_warps=NORM_WARPS,
        enable_fp_fusion=False,
    )  # fmt: skip


@triton.jit(do_not_specialize=["tokens"])
def norm_kernel(
    x_ptr, norm_weight, norm_bias, out_ptr, input_rows, output_rows, tokens, columns, x_stride, out_stride, eps,
    NORM: tl.constexpr, HAS_NORM_BIAS: tl.constexpr, HAS_INPUT_ROWS: tl.constexpr, HAS_OUTPUT_ROWS: tl.constexpr,
    TOKENS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    live = token < tokens
    x_rows = input_rows_of(x_ptr, input_rows, token, live, x_stride, HAS_INPUT_ROWS)
    out_rows = input_rows_of(out_ptr, output_rows, token, live, out_stride, HAS_OUTPUT_ROWS)
    mean = tl.zeros([TOKENS], tl.float32)
    factor = mean
    if NORM != NO_NORM:
        mean, factor = mean_and_scale(x_rows, live, columns, eps, NORM, TOKENS)
    for start in range(0, columns, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        x = load_inputs(x_rows, live, column, columns, norm_weight, norm_bias, mean, factor, NORM, HAS_NORM_BIAS, True)
        mask = live[:, None] & (column < columns)[None, :]
        tl.store(out_rows[:, None] + column[None, :], x.to(out_ptr.dtype.element_ty), mask=mask)


def add(x: Tensor, other: Tensor, out: Tensor, *, rows: Tensor | None = None) -> None:
    """out = other + x; `rows`: of these tokens only."""
    _elementwise(ADD.value, x, other, out, rows, None)


def activate(x: Tensor, activation: str, out: Tensor, *, rows: Tensor | None = None) -> None:
    _elementwise(ACTIVATE.value, x, x, out, rows, activation)


def copy(x: Tensor, out: Tensor, *, rows: Tensor | None = None) -> None:
    _elementwise(COPY.value, x, x, out, rows, None)


def _elementwise(step: int, x: Tensor, other: Tensor, out: Tensor, rows: Tensor | None, activation: str | None) -> None:
    tokens, width = (x.shape[0] if rows is None else rows.shape[0]), x.shape[1]
    if tokens == 0:
        return
    elementwise_kernel[tokens, triton.cdiv(width, COLUMNS)](
        x, other, out, rows, width, x.stride(0), other.stride(0), out.stride(0), STEP=step, HAS_ROWS=rows is not None,
        ACTIVATION=ACTIVATIONS[activation], COLUMNS=COLUMNS, enable_fp_fusion=False,
    )  # fmt: skip


@triton.jit
def elementwise_kernel(
    x_ptr, other_ptr, out_ptr, rows, width, x_stride, other_stride, out_stride, STEP: tl.constexpr, HAS_ROWS: tl.constexpr,
    ACTIVATION: tl.constexpr, COLUMNS: tl.constexpr,
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
    tl.store(out_ptr + token * out_stride + column, x, mask=inside)
