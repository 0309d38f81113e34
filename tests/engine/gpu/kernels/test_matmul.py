"""Matrix products against float64: norms before, epilogues after, odd sizes, all dtypes, and batches."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.engine.gpu.kernels import matmul
from glassformer.engine.gpu.kernels.matmul import tile_for
from glassformer.engine.gpu.kernels.tensors import DeviceNorm, float_matrix
from tests.engine.gpu.kernels.cases import DTYPES, assert_written_within, poisoned, relative_error
from tests.sweeps import mostly_swept


def normed(x: Tensor, norm: DeviceNorm) -> Tensor:
    """A norm in float64."""
    x, weight = x.double(), norm.weight.double()
    bias = None if norm.bias is None else norm.bias.double()
    if norm.kind == "layer":
        return F.layer_norm(x, x.shape[-1:], weight, bias, norm.eps)
    x = x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * weight
    return x if bias is None else x + bias


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("tokens", [1, 8, 32, 128, 2048])
def test_tiles_fit_the_shared_memory_of_cards_that_have_less(tokens: int, gated: bool) -> None:
    matrix = float_matrix(torch.empty(6144, 4096, dtype=torch.bfloat16))
    wanted = tile_for(tokens, 3072, matrix, gated)
    assert wanted.within(227 * 1024, 2, gated) == wanted
    tile = wanted.within(99 * 1024, 2, gated)
    assert (tile.tokens, tile.rows) == (wanted.tokens, wanted.rows)
    assert (tile.tokens + tile.rows * (1 + gated)) * tile.columns * 2 * tile.stages <= 99 * 1024


def make_norm(kind: str, width: int, bias: bool = True) -> DeviceNorm:
    return DeviceNorm(kind, torch.rand(width) + 0.5, torch.randn(width) if bias else None, 1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("tokens", "prompt"), [(1, False), (3, False), (17, False), (65, True)])
@pytest.mark.parametrize(("rows", "columns"), mostly_swept([(40, 72), (18, 320), (21, 70)], (21, 70)))
def test_products_of_odd_sizes(dtype: torch.dtype, tokens: int, prompt: bool, rows: int, columns: int) -> None:
    torch.manual_seed(tokens)
    weights, x = torch.randn(rows, columns).to(dtype), torch.randn(tokens, columns).to(dtype).float()
    bias = torch.randn(rows)
    out, whole = poisoned(tokens, rows)
    matmul(x, [float_matrix(weights, bias)], out, prompt=prompt)
    assert_written_within(out, whole)
    assert relative_error(out, x.double() @ weights.double().T + bias) < 1e-6


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("tokens", [2, 20])
def test_the_norm_before_a_product(kind: str, bias: bool, tokens: int) -> None:
    torch.manual_seed(1)
    weights, x, norm = torch.randn(24, 300), 5 * torch.randn(tokens, 300) + 1, make_norm(kind, 300, bias)
    out, whole = poisoned(tokens, 24)
    matmul(x, [float_matrix(weights)], out, norm=norm)
    assert_written_within(out, whole)
    assert relative_error(out, normed(x, norm) @ weights.double().T) < 1e-6


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS = {
    "silu": F.silu, "gelu": F.gelu, "gelu_tanh": gelu_tanh, "relu": F.relu, "tanh": torch.tanh,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("epilogue", mostly_swept(["activate", "gate", "gate of two matrices"], "gate"))
def test_activations_and_gates(activation: str, epilogue: str) -> None:
    torch.manual_seed(2)
    gates, values, x = torch.randn(20, 64), torch.randn(20, 64), torch.randn(3, 64)
    gate_bias, bias = torch.randn(20), torch.randn(20)
    act = ACTIVATIONS[activation]
    gate_sums, sums = (x.double() @ w.double().T + b for w, b in ((gates, gate_bias), (values, bias)))
    out, whole = poisoned(3, 20)
    options: dict[str, Any] = {"epilogue": epilogue.split()[0], "activation": activation, "scale": 0.5}
    if epilogue == "activate":
        matmul(x, [float_matrix(values, bias)], out, **options)
        expected = act(sums * 0.5)
    elif epilogue == "gate":
        joined = float_matrix(torch.cat((gates, values)), torch.cat((gate_bias, bias)))
        matmul(x, [joined], out, **options)
        expected = act(gate_sums) * sums * 0.5
    else:
        matmul(x, [float_matrix(gates, gate_bias), float_matrix(values, bias)], out, **options)
        expected = act(gate_sums) * sums * 0.5
    assert_written_within(out, whole)
    assert relative_error(out, expected) < 1e-6


def test_several_matrices_lie_side_by_side_and_a_residual_is_added() -> None:
    torch.manual_seed(3)
    parts, x, residual = [torch.randn(rows, 40) for rows in (17, 5, 33)], torch.randn(2, 40), torch.randn(2, 55)
    out, whole = poisoned(2, 55)
    matmul(x, [float_matrix(part) for part in parts], out, epilogue="add", residual=residual, scale=2.0)
    assert_written_within(out, whole)
    expected = residual + 2 * x.double() @ torch.cat(parts).double().T
    assert relative_error(out, expected) < 1e-6
    matmul(x, [float_matrix(part) for part in parts], residual, epilogue="add", residual=residual, scale=2.0)
    assert torch.equal(residual, out)


@pytest.mark.parametrize("count", [2, 18])
def test_some_tokens_in_their_own_rows_or_gathered(count: int) -> None:
    torch.manual_seed(4)
    weights, x, residual, norm = torch.randn(20, 64), torch.randn(30, 64), torch.randn(30, 20), make_norm("rms", 64)
    rows = torch.randperm(30)[:count].int()
    expected = normed(x, norm) @ weights.double().T
    gathered, whole = poisoned(count, 20)
    matmul(x, [float_matrix(weights)], gathered, norm=norm, input_rows=rows)
    assert_written_within(gathered, whole)
    assert relative_error(gathered, expected[rows]) < 1e-6
    scattered, _ = poisoned(30, 20)
    places = {"input_rows": rows, "output_rows": rows}
    matmul(x, [float_matrix(weights)], scattered, norm=norm, epilogue="add", residual=residual, **places)
    assert relative_error(scattered[rows], (expected + residual)[rows]) < 1e-6
    assert int(scattered.isnan().all(1).sum()) == 30 - count


@pytest.mark.parametrize(
    ("kind", "dtype"),
    mostly_swept(product(("rms", "layer"), DTYPES), ("rms", torch.bfloat16), ("layer", torch.float32)),
    ids=str,
)
def test_a_token_alone_equals_the_token_in_a_batch(dtype: torch.dtype, kind: str) -> None:
    torch.manual_seed(5)
    weights, x, norm = (
        float_matrix(torch.randn(48, 320).to(dtype), torch.randn(48)),
        torch.randn(70, 320),
        make_norm(kind, 320),
    )
    options: dict[str, Any] = {"norm": norm, "epilogue": "gate", "activation": "silu"}
    together, _ = poisoned(70, 24)
    matmul(x, [weights], together, **options)
    for tokens in (slice(0, 1), slice(33, 34), slice(60, 70), slice(40, 70)):
        out, _ = poisoned(tokens.stop - tokens.start, 24)
        matmul(x[tokens], [weights], out, **options)
        assert torch.equal(out, together[tokens])


def test_no_tokens_are_no_work() -> None:
    out, whole = poisoned(2, 20)
    matmul(torch.randn(2, 16), [float_matrix(torch.randn(20, 16))], out, input_rows=torch.zeros(0, dtype=torch.int32))
    assert whole.isnan().all()
