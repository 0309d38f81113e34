"""Packed weights against the checkpoint's own decoding of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from glassformer.checkpoint.gguf_kinds import dequantize
from glassformer.checkpoint.quantization import quantize_rows
from glassformer.engine.gpu.kernels import embed, matmul
from glassformer.engine.gpu.kernels.packed_matmul import PACKED_KINDS, pack
from glassformer.engine.gpu.kernels.tensors import DeviceMatrix, float_matrix
from tests.engine.gpu.kernels.cases import Cache, assert_written_within, pass_over, poisoned, relative_error
from tests.sweeps import mostly_swept


def packed(kind: str, rows: int, columns: int) -> tuple[DeviceMatrix, Tensor]:
    """A random matrix of a kind, and what it is in float64."""
    draw = np.random.default_rng(rows)
    raw = quantize_rows(draw.standard_normal((rows, columns)).astype(np.float32), kind)
    values = dequantize(np.frombuffer(raw, np.uint8), kind, (rows, columns), "here")
    return pack(kind, raw, rows, columns), torch.from_numpy(values).double()


def widths(kind: str) -> tuple[int, ...]:
    return (256, 768) if PACKED_KINDS[kind].block == 256 else (32, 96, 320)


KINDS_AND_WIDTHS = [(kind, width) for kind in PACKED_KINDS for width in widths(kind)]


TOKENS = [(1, False), (17, False), (65, True)]  # and whether it is a prompt pass
PRODUCTS = [(*matrix, *tokens) for matrix in KINDS_AND_WIDTHS for tokens in TOKENS]
QUICK = [  # of each kind its narrowest matrix for one token, and its widest for a prompt
    (kind, columns, tokens, prompt)
    for kind, columns, tokens, prompt in PRODUCTS
    if columns == {1: widths(kind)[0], 17: {"Q4_1": 96, "Q4_K": 768}.get(kind), 65: widths(kind)[-1]}[tokens]
]


@pytest.mark.parametrize(("kind", "columns", "tokens", "prompt"), mostly_swept(PRODUCTS, *QUICK))
def test_products_with_packed_weights(kind: str, columns: int, tokens: int, prompt: bool) -> None:
    torch.manual_seed(1)
    matrix, values = packed(kind, 21, columns)
    x, bias = torch.randn(tokens, columns).bfloat16().float(), torch.randn(21)
    out, whole = poisoned(tokens, 21)
    matmul(x, [replace(matrix, bias=bias)], out, prompt=prompt)
    assert_written_within(out, whole)
    assert relative_error(out, x.double() @ (values.bfloat16().double() if prompt else values).T + bias) < 1e-6


@pytest.mark.parametrize("kind", mostly_swept(PACKED_KINDS, "Q4_K"))
def test_a_gate_and_a_residual_of_packed_weights(kind: str) -> None:
    matrix, values = packed(kind, 40, 256)
    x, residual = torch.randn(3, 256).bfloat16().float(), torch.randn(3, 40)
    sums = x.double() @ values.T
    out, whole = poisoned(3, 20)
    matmul(x, [matrix], out, epilogue="gate", activation="silu")
    assert_written_within(out, whole)
    assert relative_error(out, torch.nn.functional.silu(sums[:, :20]) * sums[:, 20:]) < 1e-2
    out, whole = poisoned(3, 40)
    matmul(x, [matrix], out, epilogue="add", residual=residual)
    assert_written_within(out, whole)
    assert relative_error(out, sums + residual) < 4e-3


@pytest.mark.parametrize("kind", mostly_swept(PACKED_KINDS, "Q4_K"))
def test_a_token_alone_equals_the_token_in_a_batch(kind: str) -> None:
    matrix, _ = packed(kind, 20, 768)
    x = torch.randn(40, 768)
    together, alone = poisoned(40, 20)[0], poisoned(1, 20)[0]
    matmul(x, [matrix], together)
    matmul(x[33:34], [matrix], alone)
    assert torch.equal(alone[0], together[33])


@pytest.mark.parametrize(("kind", "columns"), KINDS_AND_WIDTHS)
def test_embeddings_from_a_packed_table(kind: str, columns: int) -> None:
    table, values = packed(kind, 21, columns)
    p = pass_over(Cache([4]), [3])
    p.ids = torch.tensor([20, 0, 7], dtype=torch.int32)
    out, whole = poisoned(3, columns)
    embed(p, [table], out, scale=2.0)
    assert_written_within(out, whole)
    assert relative_error(out, 2 * values[[20, 0, 7]]) < 1e-6


@pytest.mark.parametrize("prompt", [False, True], ids=["step", "prompt"])
def test_matrices_of_several_kinds_lie_side_by_side(prompt: bool) -> None:
    (first, first_values), (second, second_values) = packed("Q4_K", 20, 256), packed("Q6_K", 9, 256)
    floats, x = torch.randn(7, 256).half(), torch.randn(3, 256).bfloat16().float()
    out, whole = poisoned(3, 36)
    matmul(x, [first, float_matrix(floats), second], out, prompt=prompt)
    assert_written_within(out, whole)
    expected = x.double() @ torch.cat((first_values, floats.double(), second_values)).T
    assert relative_error(out, expected) < 4e-3
