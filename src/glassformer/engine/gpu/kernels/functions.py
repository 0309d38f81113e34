"""Device functions that several kernels share: activations, the norm of a matmul's input, and what follows its sums.

Shapes: TOKENS and ROWS are a tile's, (tokens, columns) for inputs and (tokens, rows) for results.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

NO_NORM, RMS_NORM, LAYER_NORM, L2_NORM = (tl.constexpr(code) for code in range(4))
SILU, GELU, GELU_TANH, RELU, TANH, QUICK_GELU, RELU2, SIGMOID, NO_ACTIVATION = (tl.constexpr(code) for code in range(9))
PLAIN, ADD, ACTIVATE, GATE, GATE_STORED = (tl.constexpr(code) for code in range(5))

NORMS = {None: 0, "rms": 1, "layer": 2, "l2": 3}
ACTIVATIONS = {
    None: 0, "silu": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3, "tanh": 4, "quick_gelu": 5, "relu2": 6, "sigmoid": 7,
    "no_activation": 8,
}  # fmt: skip
EPILOGUES = {"none": 0, "add": 1, "activate": 2, "gate": 3}
NORM_WARPS = 4  # which, with the width, decide in which order squares are summed: the same for one token and for more
NORM_WIDTH = 8192  # columns of a norm that are summed at once, at most


def norm_width(columns: int) -> int:
    return min(int(triton.next_power_of_2(columns)), NORM_WIDTH)


@cache
def has_copy_engine(device: torch.device) -> bool:
    """Whether tiles can be loaded by descriptor: on Hopper and later."""
    return torch.cuda.get_device_capability(device) >= (9, 0)


def can_be_tiled(matrix: torch.Tensor) -> bool:
    """Whether the copy engine can load tiles of a matrix: its rows begin at multiples of 16 bytes, and can be counted."""
    aligned = matrix.data_ptr() % 16 == 0 and matrix.stride(0) * matrix.itemsize % 16 == 0 and matrix.stride(1) == 1
    return aligned and len(matrix) < 2**31 and (not matrix.is_cuda or has_copy_engine(matrix.device))


@cache
def shared_bytes(device: torch.device) -> int:
    """The shared memory that a program can have: 227 kB on Hopper, 99 kB on the cards that people have at home."""
    if device.type != "cuda":
        return 227 * 1024
    properties: Any = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_block_optin)


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def activated(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == SILU:
        return x * sigmoid(x)
    elif ACTIVATION == GELU:
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == GELU_TANH:  # 0.5 (1 + tanh u) is the sigmoid of 2u
        return x * sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif ACTIVATION == RELU:
        return tl.where(x < 0.0, 0.0, x)  # NaN stays NaN
    elif ACTIVATION == TANH:
        return 2.0 * sigmoid(2.0 * x) - 1.0
    elif ACTIVATION == QUICK_GELU:
        return x * sigmoid(1.702 * x)
    elif ACTIVATION == SIGMOID:
        return sigmoid(x)
    elif ACTIVATION == NO_ACTIVATION:
        return x
    else:
        return tl.where(x < 0.0, 0.0, x * x)  # RELU2


@triton.jit
def tile_tokens_and_rows(tokens, TOKENS: tl.constexpr, ROWS: tl.constexpr):
    """The tokens and the matrix rows of this program; those that share rows run together and load them once."""
    tiles = tl.cdiv(tokens, TOKENS)
    token = tl.program_id(0) % tiles * TOKENS + tl.arange(0, TOKENS)
    return token, tl.program_id(0) // tiles * ROWS + tl.arange(0, ROWS)


@triton.jit
def mean_and_scale(x_row, columns, eps, NORM: tl.constexpr, WIDTH: tl.constexpr):
    """Of one token's inputs: the mean that a layer norm subtracts, and the factor that makes the rest's variance, or its
    length, 1.

    `WIDTH` columns are loaded at once: all of them, if they are not too many.
    """
    mean = 0.0
    if NORM == LAYER_NORM:
        sums = tl.zeros([WIDTH], tl.float32)
        for start in range(0, columns, WIDTH):
            column = start + tl.arange(0, WIDTH)
            sums += tl.load(x_row + column, mask=column < columns, other=0.0)
        mean = tl.sum(sums, axis=0) / columns
    squares = tl.zeros([WIDTH], tl.float32)
    for start in range(0, columns, WIDTH):
        column = start + tl.arange(0, WIDTH)
        x = tl.load(x_row + column, mask=column < columns, other=0.0)
        if NORM == LAYER_NORM:
            x = tl.where(column < columns, x - mean, 0.0)
        squares += x * x
    total = tl.sum(squares, axis=0)
    return mean, 1.0 / tl.sqrt((total if NORM == L2_NORM else total / columns) + eps)


@triton.jit
def normed_columns(
    x_row, column, columns, norm_weight, norm_bias, mean, factor, NORM: tl.constexpr, HAS_NORM_BIAS: tl.constexpr
):  # fmt: skip
    """Some columns of one token's inputs, normed; zero beyond the last."""
    inside = column < columns
    x = tl.load(x_row + column, mask=inside, other=0.0)
    if NORM != NO_NORM:
        if NORM == LAYER_NORM:
            x = x - mean
        x = x * factor * tl.load(norm_weight + column, mask=inside, other=0.0)
        if HAS_NORM_BIAS:
            x += tl.load(norm_bias + column, mask=inside, other=0.0)
    return x


@triton.jit
def output_places(output_rows, token, live, HAS_OUTPUT_ROWS: tl.constexpr):
    """The rows where tokens' results are written."""
    place = token
    if HAS_OUTPUT_ROWS:
        place = tl.load(output_rows + token, mask=live, other=0)
    return place.to(tl.int64)


@triton.jit
def load_other(residual_ptr, place, live, row, rows, residual_stride, EPILOGUE: tl.constexpr):
    """What a tile of results is added to, or gated with; zero where the epilogue needs nothing."""
    if EPILOGUE == ADD or EPILOGUE == GATE_STORED:
        mask = live[:, None] & (row < rows)[None, :]
        other = tl.load(residual_ptr + place[:, None] * residual_stride + row[None, :], mask=mask, other=0.0)
    else:
        other = 0.0
    return other


@triton.jit
def finish_tile(
    sums, gates, other, bias_ptr, out_ptr, place, live, row, rows, out_stride, scale, first_activated,
    EPILOGUE: tl.constexpr, ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """Bias, scale, activation, gate and residual of a tile of sums, (tokens, rows), and its store."""
    inside = row < rows
    if HAS_BIAS:
        if EPILOGUE == GATE:
            gates += tl.load(bias_ptr + row, mask=inside, other=0.0)[None, :]
            bias_ptr += rows
        sums += tl.load(bias_ptr + row, mask=inside, other=0.0)[None, :]
    if EPILOGUE == GATE:
        sums = activated(gates, ACTIVATION) * sums
    sums *= scale
    if EPILOGUE == ACTIVATE:
        sums = tl.where((row >= first_activated)[None, :], activated(sums, ACTIVATION), sums)
    elif EPILOGUE == ADD:
        sums = other + sums
    elif EPILOGUE == GATE_STORED:
        sums = activated(other, ACTIVATION) * sums
    tl.store(out_ptr + place[:, None] * out_stride + row[None, :], sums, mask=live[:, None] & inside[None, :])
