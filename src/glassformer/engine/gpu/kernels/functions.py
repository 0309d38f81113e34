"""Device functions that several kernels share: activations, the norm of a matmul's input, and what follows its sums.

Shapes: TOKENS and ROWS are a tile's, (tokens, columns) for inputs and (tokens, rows) for results.
"""

from __future__ import annotations

import triton
import triton.language as tl

NO_NORM, RMS_NORM, LAYER_NORM = (tl.constexpr(number) for number in range(3))
SILU, GELU, GELU_TANH, RELU, TANH, QUICK_GELU = (tl.constexpr(number) for number in range(6))
PLAIN, ADD, ACTIVATE, GATE, GATE_STORED = (tl.constexpr(number) for number in range(5))
STATISTICS_COLUMNS = tl.constexpr(256)  # summed at once by `mean_and_scale`

NORMS = {None: 0, "rms": 1, "layer": 2}
ACTIVATIONS = {None: 0, "silu": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3, "tanh": 4, "quick_gelu": 5}
EPILOGUES = {"none": 0, "add": 1, "activate": 2, "gate": 3}
NORM_TOKENS = (
    16  # a tile of tokens whose norms are computed together, and its warps: always the same, since they decide in which
)
NORM_WARPS = 4  # order squares are summed


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
    else:
        return x * sigmoid(1.702 * x)


@triton.jit
def tile_tokens_and_rows(tokens, TOKENS: tl.constexpr, ROWS: tl.constexpr):
    """The tokens and the matrix rows of this program; those that share rows run together and load them once."""
    tiles = tl.cdiv(tokens, TOKENS)
    token = tl.program_id(0) % tiles * TOKENS + tl.arange(0, TOKENS)
    return token, tl.program_id(0) // tiles * ROWS + tl.arange(0, ROWS)


@triton.jit
def input_rows_of(x_ptr, input_rows, token, live, x_stride, HAS_INPUT_ROWS: tl.constexpr):
    """Where each token's inputs lie."""
    place = token
    if HAS_INPUT_ROWS:
        place = tl.load(input_rows + token, mask=live, other=0)
    return x_ptr + place.to(tl.int64) * x_stride


@triton.jit
def mean_and_scale(x_rows, live, columns, eps, NORM: tl.constexpr, TOKENS: tl.constexpr):
    """Of each token's inputs: the mean that a layer norm subtracts, and the factor that makes the rest's variance 1."""
    column = tl.arange(0, STATISTICS_COLUMNS)
    mean = tl.zeros([TOKENS], tl.float32)
    if NORM == LAYER_NORM:
        sums = tl.zeros([TOKENS, STATISTICS_COLUMNS], tl.float32)
        for start in range(0, columns, STATISTICS_COLUMNS):
            inside = live[:, None] & (start + column < columns)[None, :]
            sums += tl.load(x_rows[:, None] + (start + column)[None, :], mask=inside, other=0.0).to(tl.float32)
        mean = tl.sum(sums, axis=1) / columns
    squares = tl.zeros([TOKENS, STATISTICS_COLUMNS], tl.float32)
    for start in range(0, columns, STATISTICS_COLUMNS):
        inside = live[:, None] & (start + column < columns)[None, :]
        x = tl.load(x_rows[:, None] + (start + column)[None, :], mask=inside, other=0.0).to(tl.float32)
        if NORM == LAYER_NORM:
            x = tl.where(inside, x - mean[:, None], 0.0)
        squares += x * x
    return mean, 1.0 / tl.sqrt(tl.sum(squares, axis=1) / columns + eps)


@triton.jit
def load_inputs(
    x_rows, live, column, columns, norm_weight, norm_bias, mean, factor, NORM: tl.constexpr, HAS_NORM_BIAS: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Some columns of some tokens' inputs, normed; zero beyond the last column where `MASKED`."""
    inside = live[:, None]
    if MASKED:
        inside = inside & (column < columns)[None, :]
    x = tl.load(x_rows[:, None] + column[None, :], mask=inside, other=0.0)
    if NORM != NO_NORM:
        x = x.to(tl.float32)
        weight = tl.load(norm_weight + column, mask=column < columns, other=0.0) if MASKED else tl.load(norm_weight + column)
        if NORM == LAYER_NORM:
            x = x - mean[:, None]
        x = x * factor[:, None] * weight[None, :]
        if HAS_NORM_BIAS:
            bias = tl.load(norm_bias + column, mask=column < columns, other=0.0) if MASKED else tl.load(norm_bias + column)
            x = x + bias[None, :]
    return x


@triton.jit
def finish_tile(
    sums, gates, bias_ptr, residual_ptr, out_ptr, output_rows, token, live, row, rows, residual_stride, out_stride, scale,
    EPILOGUE: tl.constexpr, ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_OUTPUT_ROWS: tl.constexpr,
):  # fmt: skip
    """Bias, scale, activation, gate and residual of a tile of sums, (tokens, rows), and its store."""
    inside = row < rows
    if HAS_BIAS:
        if EPILOGUE == GATE:
            gates += tl.load(bias_ptr + row, mask=inside, other=0.0)[None, :]
            bias_ptr += rows
        sums += tl.load(bias_ptr + row, mask=inside, other=0.0)[None, :]
    place = token.to(tl.int64)
    if HAS_OUTPUT_ROWS:
        place = tl.load(output_rows + token, mask=live, other=0).to(tl.int64)
    mask = live[:, None] & inside[None, :]
    if EPILOGUE == GATE:
        sums = activated(gates, ACTIVATION) * sums
    sums *= scale
    if EPILOGUE == ACTIVATE:
        sums = activated(sums, ACTIVATION)
    if EPILOGUE == ADD or EPILOGUE == GATE_STORED:
        other = tl.load(residual_ptr + place[:, None] * residual_stride + row[None, :], mask=mask, other=0.0)
        sums = other + sums if EPILOGUE == ADD else activated(other, ACTIVATION) * sums
    tl.store(out_ptr + place[:, None] * out_stride + row[None, :], sums, mask=mask)
