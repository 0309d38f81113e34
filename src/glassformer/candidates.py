"""The best few of a score vector: what executors find, policies report and views show."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

LogProbabilities: TypeAlias = npt.NDArray[np.float64]  # (…, vocabulary)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The best few ids, best first."""

    ids: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float32]
    probabilities: npt.NDArray[np.float32]  # among the whole vocabulary

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def logprobs(self) -> npt.NDArray[np.float32]:
        """Log-probabilities among the whole vocabulary."""
        logs: npt.NDArray[np.float32] = self.scores - self.scores[0] + np.log(self.probabilities[0])
        return logs

    def __iter__(self) -> Iterator[tuple[int, float, float]]:
        """(id, score, probability), best first."""
        return zip(self.ids.tolist(), self.scores.tolist(), self.probabilities.tolist(), strict=True)

    def __repr__(self) -> str:
        best = ", ".join(f"{token}: {probability:.1%}" for token, _, probability in list(self)[:3])
        return f"Candidates({best}{', …' if len(self) > 3 else ''})"


def kl_divergence(logs: LogProbabilities, other: LogProbabilities) -> float:
    """Of the second distribution from the first, in nats, summed over rows; infinite where something is not a number."""
    divergence = float((np.exp(logs) * (logs - other)).sum())
    return max(divergence, 0.0) if math.isfinite(divergence) else math.inf


def log_softmax(scores: npt.NDArray[np.float32]) -> LogProbabilities:
    """Log-probabilities among the whole vocabulary, along the last axis."""
    depths = scores.astype(np.float64) - scores.max(-1, keepdims=True)
    logs: LogProbabilities = depths - np.log(np.exp(depths).sum(-1, keepdims=True))
    return logs


def top(scores: npt.NDArray[np.float32], k: int, total: float | None = None) -> Candidates:
    """The best k of a score vector, with their softmax probabilities; `total`: the sum of exp(score − best), if known."""
    k = min(k, scores.size)
    ids = leaders(scores, k)
    ids = ids[np.argsort(-scores[ids], kind="stable")[:k]]
    best = scores[ids[0]]
    if total is None:
        total = float(np.exp(scores - best, dtype=np.float32).sum(dtype=np.float64))
    return Candidates(ids.astype(np.int64), scores[ids], (np.exp(scores[ids] - best) / total).astype(np.float32))


def leaders(scores: npt.NDArray[Any], count: int) -> npt.NDArray[np.int64]:
    """A few places, in ascending order, among which the best `count` are, and all that tie with them.

    Selecting among a whole vocabulary is slow. So it is reshaped to a table, and the highest score of each column taken,
    which is fast. There are `count` columns that reach the `count`-th highest of these, so no better one is left below it.
    """
    if scores.size < 4 * max(count, 1):
        return np.arange(scores.size)
    rows = min(64, scores.size // (2 * count))
    columns = scores.size // rows
    highest = scores[: rows * columns].reshape(rows, columns).max(0)
    return np.flatnonzero(scores >= np.partition(highest, -count)[-count])
