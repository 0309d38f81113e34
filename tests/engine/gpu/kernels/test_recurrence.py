"""Layers that keep a state: against the same in PyTorch, bit for bit however a text is cut and whatever is beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.engine.gpu import kernels
from glassformer.engine.gpu.kernels.recurrence import StateHeads
from glassformer.engine.gpu.kernels.tensors import PassTensors
from tests.engine.gpu import torch_kernels
from tests.engine.gpu.kernels.cases import Cache, assert_written_within, pass_over, poisoned, relative_error

FED = [5, 1, 19]


def fed(counts: Sequence[int] = FED) -> PassTensors:
    return pass_over(Cache([count + 3 for count in counts]), list(counts))


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("bias", [None, torch.linspace(-1, 1, 150)])
@pytest.mark.parametrize("size", [2, 4])
def test_a_convolution_keeps_what_comes_next_needs(activation: str | None, bias: Tensor | None, size: int) -> None:
    torch.manual_seed(1)
    p, x, kernel = fed(), torch.randn(sum(FED), 150), torch.randn(size, 150)
    pool = torch.randn(5, 7 + (size - 1) * 150 + 2)
    expected, kept = torch.empty(len(x), 150), pool.clone()
    torch_kernels.causal_conv(p, x, kept, kernel, bias, expected, state_offset=7, activation=activation)
    out, whole = poisoned(len(x), 150)
    kernels.causal_conv(p, x, pool, kernel, bias, out, state_offset=7, activation=activation)
    assert_written_within(out, whole)
    assert relative_error(out, expected) < 1e-6
    assert torch.equal(pool, kept)


@pytest.mark.parametrize(("least", "most"), [(0.0, float("inf")), (0.1, 2.0)])
def test_time_steps(least: float, most: float) -> None:
    x, bias = torch.cat((torch.linspace(-40, 40, 401), torch.tensor([-80.0])))[:, None] * torch.ones(3), torch.randn(3)
    out, whole = poisoned(len(x), 3)
    kernels.time_step(x, bias, out, least=least, most=most)
    assert_written_within(out, whole)
    expected = torch.nn.functional.softplus((x + bias).double()).clamp(least, most)
    assert torch.allclose(out.double(), expected, rtol=1e-6, atol=0)


def test_decays() -> None:
    x, rate = torch.rand(4, 130), torch.randn(130)
    out, whole = poisoned(4, 130)
    kernels.decay(x, rate, out)
    assert_written_within(out, whole)
    assert relative_error(out, (-rate.double().exp() * x).exp()) < 1e-6


class Heads:
    """Heads with random numbers, and columns before and between them."""

    def __init__(self, counts: Sequence[int] = FED, *, wide: bool = False, delta: bool = True, skips: bool = False) -> None:
        torch.manual_seed(3)
        heads, key_heads, key_size, size = 4, 2, 10, 21
        keys = key_heads * key_size
        self.heads = StateHeads(heads, key_heads, key_size, size, 2, 2 + keys, 3 + 2 * keys, 11, 0.3, delta)
        tokens = sum(counts)
        self.counts, self.x = list(counts), torch.randn(tokens, 3 + 2 * keys + heads * size + 1) / 3
        self.decays, self.writes = torch.rand(tokens, heads * (key_size if wide else 1)) - 0.05, torch.rand(tokens, heads)
        self.pool = torch.randn(len(counts) + 2, 11 + heads * key_size * size + 4)
        self.width, self.skip = heads * size, torch.randn(heads) if skips else None

    def run(
        self, with_kernels: Any, pool: Tensor, tokens: slice = slice(None), counts: Sequence[int] | None = None
    ) -> Tensor:
        count = len(self.x[tokens])
        out, whole = poisoned(count, self.width)
        parts = (self.x[tokens], pool, self.decays[tokens], self.writes[tokens])
        with_kernels.recur(fed(counts or self.counts), *parts, out, self.heads, skip=self.skip)
        assert_written_within(out, whole)
        return out


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("wide", [False, True])
def test_states_are_read_and_written(delta: bool, wide: bool) -> None:
    case = Heads(delta=delta, wide=wide, skips=wide != delta)
    pool, expected_pool = case.pool.clone(), case.pool.clone()
    out, expected = case.run(kernels, pool), case.run(torch_kernels, expected_pool)
    assert relative_error(out, expected) < 1e-5
    assert relative_error(pool, expected_pool) < 1e-5
    assert torch.equal(pool[[0, 4]], case.pool[[0, 4]])  # nobody's
    assert torch.equal(pool[:, :11], case.pool[:, :11])


def test_a_text_in_pieces_is_as_at_once() -> None:
    """To the bit."""
    case = Heads([12])
    whole, pieces = case.pool.clone(), case.pool.clone()
    at_once = case.run(kernels, whole)
    parts = [case.run(kernels, pieces, slice(first, end), [end - first]) for first, end in ((0, 5), (5, 6), (6, 12))]
    assert torch.equal(torch.cat(parts), at_once)
    assert torch.equal(pieces, whole)


def test_norms_are_measured_and_change_nothing() -> None:
    case = Heads([6])
    alone, measured = case.pool.clone(), case.pool.clone()
    expected, out, norms = case.run(kernels, alone), torch.empty(6, case.width), torch.empty(6, 4)
    kernels.recur(fed([6]), case.x, measured, case.decays, case.writes, out, case.heads, norms=norms)
    assert torch.equal(out, expected)
    assert torch.equal(measured, alone)
    last = measured[1, 11 : 11 + 4 * 10 * 21].view(4, -1)
    assert relative_error(norms[-1], last.norm(dim=-1)) < 1e-6


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("wide", [False, True])
def test_patterns_say_what_is_read_of_each_token(delta: bool, wide: bool) -> None:
    """From states of zeros, outputs are the values times the pattern."""
    case, keys = Heads(delta=delta, wide=wide, skips=wide != delta), 32
    out = case.run(kernels, torch.zeros_like(case.pool))
    pattern, whole = poisoned(len(case.x), 4 * keys)
    kernels.recur_pattern(fed(), case.x, case.decays, case.writes, pattern, case.heads, keys=keys, skip=case.skip)
    assert_written_within(pattern, whole)
    expected = torch.empty(len(case.x), 4 * keys)
    torch_kernels.recur_pattern(fed(), case.x, case.decays, case.writes, expected, case.heads, keys=keys, skip=case.skip)
    assert relative_error(pattern, expected) < 1e-5
    values, whole = poisoned(len(case.x), case.width)
    kernels.recur_values(fed(), case.x, pattern, values, case.heads, keys=keys)
    assert_written_within(values, whole)
    assert relative_error(values, out) < 1e-5
