"""Embeddings, norms and elementwise steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from glassformer.engine.gpu.kernels import activate, add, copy, embed, gate, matmul, norm
from glassformer.engine.gpu.kernels.tensors import float_matrix
from tests.engine.gpu.kernels.cases import DTYPES, Cache, assert_written_within, pass_over, poisoned, relative_error
from tests.engine.gpu.kernels.test_matmul import ACTIVATIONS, make_norm, normed


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_embeddings_of_tokens_positions_and_types(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    tables = [torch.randn(rows, 1030).to(dtype) for rows in (50, 12, 2)]
    p = pass_over(Cache([8, 3]), [2, 1])
    p.ids, p.types = torch.tensor([49, 0, 3], dtype=torch.int32), torch.tensor([1, 0, 1], dtype=torch.int32)
    out, whole = poisoned(3, 1030)
    embed(p, [float_matrix(table) for table in tables], out, position_offset=2, scale=3.0)
    assert_written_within(out, whole)
    tokens, positions, types = (table.double() for table in tables)
    assert relative_error(out, 3 * tokens[[49, 0, 3]] + positions[[8, 9, 4]] + types[[1, 0, 1]]) < 1e-6
    p.types = None
    embed(p, [float_matrix(table) for table in tables], out, position_offset=2, scale=3.0)
    assert relative_error(out, 3 * tokens[[49, 0, 3]] + positions[[8, 9, 4]] + types[[0, 0, 0]]) < 1e-6


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("tokens", "width"), [(1, 20), (17, 256), (3, 300)])
def test_norms(kind: str, bias: bool, tokens: int, width: int) -> None:
    torch.manual_seed(2)
    x, how = 3 * torch.randn(tokens, width) + 2, make_norm(kind, width, bias)
    out, whole = poisoned(tokens, width)
    norm(x, how, out)
    assert_written_within(out, whole)
    assert relative_error(out, normed(x, how)) < 1e-6
    rows = torch.tensor([tokens - 1], dtype=torch.int32)
    some, _ = poisoned(tokens, width)
    norm(x, how, some, rows=rows)
    assert torch.equal(some[-1], out[-1])
    assert some[:-1].isnan().all()


@pytest.mark.parametrize("kind", ["rms", "layer", "l2"])
def test_norms_of_groups(kind: str) -> None:
    x, how = 3 * torch.randn(5, 60) + 2, make_norm("rms", 60, bias=False)
    how = replace(how, kind=kind, groups=4)
    parts = x.double().view(5, 4, 15)
    parts = parts - parts.mean(-1, keepdim=True) if kind == "layer" else parts
    sizes = parts.square().sum(-1, keepdim=True) / (1 if kind == "l2" else 15)
    expected = (parts / (sizes + how.eps).sqrt()).view(5, 60) * how.weight
    out, whole = poisoned(5, 60)
    norm(x, how, out)
    assert_written_within(out, whole)
    assert relative_error(out, expected) < 1e-6
    product, whole = poisoned(5, 7)
    matrix = torch.randn(7, 60)
    matmul(x, [float_matrix(matrix)], product, norm=how)
    assert_written_within(product, whole)
    assert relative_error(product, expected @ matrix.double().T) < 1e-5


@pytest.mark.parametrize("activation", ["silu", "sigmoid", "no_activation"])
@pytest.mark.parametrize("gates", [1, 1030])
def test_gates(activation: str, gates: int) -> None:
    x, gate_of = torch.randn(3, 1030), torch.randn(3, gates)
    gate_of = gate_of.double()
    opened = {"silu": gate_of.sigmoid() * gate_of, "sigmoid": gate_of.sigmoid(), "no_activation": gate_of}[activation]
    expected, gate_of = opened * x, gate_of.float()
    out, whole = poisoned(3, 1030)
    gate(gate_of, activation, x, out)
    assert_written_within(out, whole)
    assert relative_error(out, expected) < 1e-6
    some, _ = poisoned(3, 1030)
    gate(gate_of, activation, x, some, rows=torch.tensor([1], dtype=torch.int32))
    assert torch.equal(some[1], out[1])
    assert some[[0, 2]].isnan().all()


@pytest.mark.parametrize("step", ["add", "copy", *ACTIVATIONS])
def test_elementwise_steps_of_all_and_of_some_tokens(step: str) -> None:
    torch.manual_seed(3)
    x, other = torch.randn(3, 1030), torch.randn(3, 1030)
    expected = {"add": x + other, "copy": x}.get(step)
    expected = ACTIVATIONS[step](x.double()) if expected is None else expected
    for rows in (None, torch.tensor([2, 0], dtype=torch.int32)):
        out, whole = poisoned(3, 1030)
        if step == "add":
            add(x, other, out, rows=rows)
        elif step == "copy":
            copy(x, out, rows=rows)
        else:
            activate(x, step, out, rows=rows)
        if rows is None:
            assert_written_within(out, whole)
            torch.testing.assert_close(out, expected.float(), rtol=1e-5, atol=1e-6)
        else:
            torch.testing.assert_close(out[[0, 2]], expected[[0, 2]].float(), rtol=1e-5, atol=1e-6)
            assert out[1].isnan().all()
