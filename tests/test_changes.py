"""Changes as data: what they select and compute, on numpy's arrays and on tensors alike, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glassformer.ground.changes import Change, change_data, change_from_data
from glassformer.ground.errors import SiteError
from glassformer.ground.sites import where_of

HEADS, LENGTH, SIZE = 3, 5, 4
Selection = Collection[int] | slice | None


def numbers(count: int) -> st.SearchStrategy[Selection]:
    some = st.lists(st.integers(-count, count - 1), min_size=1, max_size=count, unique_by=lambda n: n % count)
    ends = st.none() | st.integers(-count - 1, count + 1)
    return st.none() | some | st.builds(slice, ends, ends, st.sampled_from([None, 1, 2]))


def chosen(selection: Selection, count: int) -> set[int]:
    everything = list(range(count))
    if selection is None:
        return set(everything)
    return set(everything[selection]) if isinstance(selection, slice) else {everything[number] for number in selection}


def slowly(change: Change, value: np.ndarray) -> np.ndarray:
    """A change, applied number by number."""
    result = value.copy()
    for head in chosen(change.heads, HEADS):
        for position in chosen(change.positions, LENGTH):
            for neuron in chosen(change.neurons, SIZE):
                number = value[0, head, position, neuron] * np.float32(change.scale) + np.float32(change.shift)
                low = -np.inf if change.minimum is None else change.minimum
                high = np.inf if change.maximum is None else change.maximum
                result[0, head, position, neuron] = min(max(number, low), high)
    return result


@given(
    numbers(HEADS), numbers(LENGTH), numbers(SIZE), st.sampled_from([None, -0.5, 0.25]), st.sampled_from([None, 0.5]),
    st.booleans(),
)  # fmt: skip
def test_what_is_selected_is_changed_and_nothing_else(
    heads: Selection, positions: Selection, neurons: Selection, low: float | None, high: float | None, as_tensor: bool
) -> None:
    value = np.random.default_rng(3).standard_normal((1, HEADS, LENGTH, SIZE)).astype(np.float32)
    change = Change(2.0, 0.5, positions, heads, neurons, minimum=low, maximum=high)
    own = torch.from_numpy(value.copy()) if as_tensor else value.copy()
    result = change.apply(own, where_of("blocks.0.attention.heads", 0))
    assert np.array_equal(np.asarray(result), slowly(change, value))
    assert np.array_equal(np.asarray(own), value)
    again = change_from_data(json.loads(json.dumps(change_data(change))))
    assert np.array_equal(np.asarray(again.apply(own, where_of("blocks.0.attention.heads", 0))), np.asarray(result))


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
def test_arrays_of_either_library_scale_and_shift(kind: Any) -> None:
    value = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
    factors, shift = [[1.0, 2.0], [3.0, 4.0]], [10.0, 20.0]
    for own in (value, torch.from_numpy(value)):
        change = Change(kind(factors), kind(shift), positions=[0, 2], neurons=[1, 3])
        result = np.asarray(change.apply(own, where_of("embedding", 0)))
        assert result[0, 1].tolist() == value[0, 1].tolist()
        assert result[0, 0].tolist() == [0, 1 * 1 + 10, 2, 3 * 2 + 20]
        assert result[0, 2].tolist() == [8, 9 * 3 + 10, 10, 11 * 4 + 20]


def test_projections() -> None:
    value, direction = np.random.default_rng(1).standard_normal((1, 5, 8)).astype(np.float32), np.arange(8.0)
    unit = direction / np.linalg.norm(direction)
    along = (value @ unit)[..., None] * unit
    onto = Change(onto=direction).apply(value, where_of("embedding", 0))
    away = Change(away_from=torch.tensor(direction)).apply(value, where_of("embedding", 0))
    assert np.allclose(onto, along, atol=1e-6)
    assert np.allclose(away, value - along, atol=1e-6)
    assert np.allclose(away @ unit, 0, atol=1e-5)
    with pytest.raises(SiteError, match="direction"):
        Change(onto=np.zeros(8)).apply(value, where_of("embedding", 0))


def test_negative_positions_count_from_the_end_of_what_was_read() -> None:
    whole = np.ones((1, 6, 2), np.float32)
    change = Change(0.0, positions=[-1, -6])
    pieces = [change.apply(whole[:, at : at + 2], where_of("embedding", at, 6)) for at in (0, 2, 4)]
    assert np.concatenate(pieces, 1)[0, :, 0].tolist() == [0, 1, 1, 1, 1, 0]
    later = change.apply(np.ones((1, 1, 2), np.float32), where_of("embedding", 6))  # a new token: the last one by then
    assert later[0, 0].tolist() == [0, 0]


def test_what_is_not_there_is_refused() -> None:
    value = np.ones((1, 3, 4), np.float32)
    with pytest.raises(SiteError, match="neuron 4"):
        Change(0.0, neurons=[4]).apply(value, where_of("embedding", 0))
    with pytest.raises(ValueError, match="there is no colour"):
        change_from_data({"scale": 1.0, "colour": 3})
    for name in ("scale", "minimum", "maximum"):
        for number in (float("nan"), float("-inf"), 1e39, 10**400):
            with pytest.raises(SiteError, match=f"{name} is a finite number"):
                Change(**{name: number})


def test_gradients_go_through_a_shift() -> None:
    shift = torch.zeros(4, requires_grad=True)
    value = torch.ones(1, 3, 4)
    Change(1.0, shift, positions=[1]).apply(value, where_of("embedding", 0)).sum().backward()
    assert shift.grad is not None
    assert shift.grad.tolist() == [1, 1, 1, 1]
