"""What quantizing a model costs: how far its distributions diverge from the reference's, and how often best tokens agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from glassformer.engine.protocol import Executor
from glassformer.ground.candidates import kl_divergence
from glassformer.see.evaluation import WINDOW, Likelihood, log_probabilities, target_sum


@dataclass(frozen=True, slots=True)
class LikelihoodComparison:
    """Two models over the same tokens."""

    first: Likelihood
    second: Likelihood
    divergence: float  # of the second's distribution from the first's: Kullback and Leibler's, in bits per token
    agreement: float  # the share of places whose best token is the same


def compare_likelihoods(
    first: Executor, second: Executor, ids: Sequence[int], *, bos: int | None = None, window: int = WINDOW
) -> LikelihoodComparison:
    """Two executors of one vocabulary over the same tokens; the first is the reference."""
    window = min(window, first.context, second.context)
    count, nats, divergence, same = 0, [0.0, 0.0], 0.0, 0
    pairs = zip(log_probabilities(first, ids, bos, window), log_probabilities(second, ids, bos, window), strict=True)
    for (targets, logs), (_, other) in pairs:
        count += len(targets)
        nats = [nats[0] - target_sum(logs, targets), nats[1] - target_sum(other, targets)]
        divergence += kl_divergence(logs, other)
        same += int((logs.argmax(axis=1) == other.argmax(axis=1)).sum())
    first_result, second_result = (Likelihood(count, total / math.log(2)) for total in nats)
    return LikelihoodComparison(first_result, second_result, divergence / count, same / count)
