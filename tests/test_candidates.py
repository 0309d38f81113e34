"""The best of a score vector, against sorting all of it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from glassformer.ground.candidates import best, leaders


@given(st.integers(0, 2**32 - 1), st.integers(1, 3000), st.integers(1, 60), st.sampled_from([1, 8, 1000]))
def test_the_best_are_those_that_sorting_gives(seed: int, size: int, count: int, steps: int) -> None:
    """Coarse scores have many ties, of which the first places win."""
    scores = np.round(np.random.default_rng(seed).standard_normal(size) * steps).astype(np.float32)
    scores[np.random.default_rng(seed + 1).random(size) < 0.2] = -np.inf
    expected = np.argsort(-scores, kind="stable")[:count]
    assert best(scores, count).tolist() == expected.tolist()
    places = leaders(scores, min(count, size))
    assert (np.diff(places) > 0).all()
    assert np.flatnonzero(scores >= scores[expected[-1]]).tolist() == [
        place for place in places.tolist() if scores[place] >= scores[expected[-1]]
    ]
