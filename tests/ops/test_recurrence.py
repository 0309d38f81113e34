"""Layers that keep a state: in chunks, token by token, as an effective pattern and in numpy they are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from glassformer.torch.cache import DynamicCache
from glassformer.torch.recurrence import CHUNK, chunked, effective_pattern, in_chunks, one_step, state_norms

BATCH, HEADS = 2, 3


def drawn(
    length: int, key_size: int, size: int, seed: int, dtype: torch.dtype = torch.float64, by_row: bool = False
) -> dict[str, Tensor]:
    """`by_row`: each row of a state decays by itself."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    keys = normal(BATCH, HEADS, length, key_size)
    return {
        "query": normal(BATCH, HEADS, length, key_size),
        "key": keys / keys.norm(dim=-1, keepdim=True),
        "value": normal(BATCH, HEADS, length, size),
        "decay": normal(BATCH, HEADS, length, *([key_size] if by_row else [])).sigmoid() ** 0.2,
        "write": normal(BATCH, HEADS, length).sigmoid(),
    }


def token_by_token(parts: dict[str, Tensor], state: Tensor, delta: bool) -> tuple[Tensor, Tensor]:
    """The definition, written out."""
    heads = []
    for place in range(parts["value"].shape[2]):
        q, k, v = (parts[name][:, :, place] for name in ("query", "key", "value"))
        state = state * parts["decay"].reshape(*parts["write"].shape, -1)[:, :, place, :, None]
        known = torch.einsum("bhk,bhkd->bhd", k, state) if delta else torch.zeros_like(v)
        state = state + torch.einsum("bhk,bhd->bhkd", k, (v - known) * parts["write"][..., place, None])
        heads.append(torch.einsum("bhk,bhkd->bhd", q, state))
    return torch.stack(heads, 2), state


@settings(max_examples=25, deadline=None)
@given(
    length=st.integers(1, 2 * CHUNK + 9), start=st.integers(0, 3 * CHUNK), key_size=st.integers(1, 9),
    size=st.integers(1, 9), delta=st.booleans(), by_row=st.booleans(), seed=st.integers(0, 10**6),
)  # fmt: skip
def test_chunks_equal_the_definition(
    length: int, start: int, key_size: int, size: int, delta: bool, by_row: bool, seed: int
) -> None:
    parts = drawn(length, key_size, size, seed, by_row=by_row)
    state = torch.randn(BATCH, HEADS, key_size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected, last = token_by_token(parts, state, delta)
    heads, after = chunked(*parts.values(), state, delta, start)
    torch.testing.assert_close(heads, expected, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(after, last, rtol=1e-9, atol=1e-10)
    first = {name: value[:, :, :1] for name, value in parts.items()}
    torch.testing.assert_close(one_step(*first.values(), state, delta)[0], expected[:, :, :1], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("delta", [False, True])
def test_the_effective_pattern_is_the_linear_map(delta: bool, by_row: bool) -> None:
    parts = drawn(80, 6, 5, 1, by_row=by_row)
    pattern = effective_pattern(parts["query"], parts["key"], parts["decay"], parts["write"], delta)
    expected, state = token_by_token(parts, torch.zeros(BATCH, HEADS, 6, 5, dtype=torch.float64), delta)
    torch.testing.assert_close(pattern @ parts["value"], expected, rtol=1e-9, atol=1e-10)
    assert pattern.triu(1).abs().max() == 0
    norms = state_norms(parts["key"], parts["value"], parts["decay"], parts["write"], torch.zeros_like(state), delta)
    torch.testing.assert_close(norms[..., -1], state.flatten(2).norm(dim=-1), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("by_row", [False, True])
def test_a_state_that_forgets_everything_is_finite(by_row: bool) -> None:
    """A decay of zero has no logarithm."""
    parts = drawn(70, 4, 4, 2, by_row=by_row)
    parts["decay"][:, :, 10] = 0.0
    state = torch.zeros(BATCH, HEADS, 4, 4, dtype=torch.float64)
    heads, _ = chunked(*parts.values(), state, True, 0)
    torch.testing.assert_close(heads, token_by_token(parts, state, True)[0], rtol=1e-9, atol=1e-10)
    pattern = effective_pattern(parts["query"], parts["key"], parts["decay"], parts["write"], True)
    assert pattern[..., 10:, :10].abs().max() < 1e-20
    assert pattern.isfinite().all()


def test_texts_that_go_on_from_different_positions_are_as_alone() -> None:
    parts = drawn(100, 4, 4, 3)
    state = torch.zeros(BATCH, HEADS, 4, 4, dtype=torch.float64)
    together = in_chunks(*parts.values(), state, True, [5, 40])
    for row, start in enumerate((5, 40)):
        alone = chunked(*(value[row : row + 1] for value in parts.values()), state[row : row + 1], True, start)
        assert all(torch.equal(some[row], one[0]) for some, one in zip(together, alone, strict=True))


def test_float32_stays_near_float64() -> None:
    """The error of a sum of n float32 products grows with the root of n; chunks must not lose more than that."""
    exact, single = (drawn(1000, 16, 16, 4, dtype) for dtype in (torch.float64, torch.float32))
    expected, _ = chunked(*exact.values(), torch.zeros(BATCH, HEADS, 16, 16, dtype=torch.float64), True, 0)
    found, _ = chunked(*single.values(), torch.zeros(BATCH, HEADS, 16, 16), True, 0)
    bound = 8 * torch.finfo(torch.float32).eps * (CHUNK * 16) ** 0.5 * expected.abs().max()
    assert (found - expected).abs().max() <= bound


def test_a_cache_with_states_is_not_cropped() -> None:
    cache = DynamicCache()
    cache.update(torch.zeros(1, 1, 5, 2), torch.zeros(1, 1, 5, 2), 0)
    cache.keep_state(0, torch.zeros(1, 2), 5)
    cache.crop(5)
    with pytest.raises(ValueError, match="3 of 5"):
        cache.crop(3)
    cache.reorder_cache(torch.tensor([0, 0]))
    loaded: Any = cache.load_state(0)
    assert loaded.shape == (2, 2)
    assert np.array_equal(loaded.numpy(), np.zeros((2, 2)))
