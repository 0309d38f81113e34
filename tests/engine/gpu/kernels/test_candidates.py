"""The best few scores against those that the host finds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from glassformer.engine.gpu.kernels import top_scores
from glassformer.ground.candidates import EntropyStats, best, entropy_stats


@pytest.mark.parametrize(("vocabulary", "count"), [(5, 5), (100, 1), (5000, 7), (9000, 3)])
@pytest.mark.parametrize("case", ["random", "ties", "banned", "nearly all banned", "all banned"])
def test_the_best_few_and_the_sums_of_a_softmax(vocabulary: int, count: int, case: str) -> None:
    torch.manual_seed(vocabulary)
    scores = 5 * torch.randn(3, vocabulary)
    if case == "ties":
        scores = scores.round()
    elif case != "random":
        scores[
            :, {"banned": slice(0, None, 2), "nearly all banned": slice(2, None), "all banned": slice(None)}[case]
        ] = -torch.inf
    values, ids = torch.full((3, count), torch.nan), torch.full((3, count), -1, dtype=torch.int32)
    sums = torch.full((3, 3), torch.nan)
    top_scores(scores, values, ids, sums)
    for row in range(3):
        expected = best(scores[row].numpy(), count)
        assert ids[row].tolist() == expected.tolist()
        assert values[row].tolist() == scores[row, expected].tolist()
        total, weighted, in_play = (float(number) for number in sums[row])
        np.testing.assert_allclose(
            EntropyStats.of(int(in_play), total, weighted), entropy_stats(scores[row].numpy()), rtol=1e-5, atol=1e-6
        )
