"""The best few of a score vector: what executors find, policies report and views show."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.ground.errors import NotNumbers

LogProbabilities: TypeAlias = npt.NDArray[np.float64]  # (…, vocabulary)

FAR = np.float32(-200)  # so far below the best a weight is 0; and 0 · FAR is 0, where 0 · -inf would be NaN


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
    """Of the second distribution from the first, in bits, summed over rows; infinite where something is not a number.

    `logs` and `other` are natural logarithms, as `log_softmax` gives them.
    """
    divergence = float((np.exp(logs) * (logs - other)).sum()) / math.log(2)
    return max(divergence, 0.0) if math.isfinite(divergence) else math.inf


def log_softmax(scores: npt.NDArray[np.float32]) -> LogProbabilities:
    """Log-probabilities among the whole vocabulary, along the last axis."""
    depths = scores.astype(np.float64) - scores.max(-1, keepdims=True)
    logs: LogProbabilities = depths - np.log(np.exp(depths).sum(-1, keepdims=True))
    return logs


class EntropyStats(NamedTuple):
    """The entropy of a choice, and what it is computed from."""

    in_play: int  # how many candidates are left
    total: float  # the sum of exp(score − best)
    entropy: float  # in bits: 0 when it is certain, 1 for a toss of a coin

    @classmethod
    def of(cls, in_play: int, total: float, weighted: float) -> EntropyStats:
        """`weighted`: the sum of exp(score − best) · (score − best)."""
        return cls(in_play, total, max(0.0, (math.log(total) - weighted / total) / math.log(2)) if in_play else 0.0)


def entropy_stats(scores: npt.NDArray[np.float32]) -> EntropyStats:
    """Of a score vector; what is minus infinity is out."""
    in_play = int(np.count_nonzero(scores > -np.inf))
    if not in_play:
        return EntropyStats.of(0, 0.0, 0.0)
    depths = scores - scores.max()
    if in_play < scores.size:
        np.maximum(depths, FAR, out=depths)
    weights = np.exp(depths)
    total = float(weights.sum(dtype=np.float64))
    return EntropyStats.of(in_play, total, float(np.multiply(weights, depths, out=weights).sum(dtype=np.float64)))


def top(scores: npt.NDArray[np.float32], k: int, total: float | None = None) -> Candidates:
    """The best k of a score vector, with their softmax probabilities; `total`: the sum of exp(score − best), if known."""
    k = min(k, scores.size)
    ids = best(scores, k)
    leading = scores[ids]
    if k and not ids.size:
        raise NotNumbers("the scores are not numbers (NaN or infinite), so that none is the best. Change less.")
    if total is None:
        total = float(np.exp(scores - leading[0], dtype=np.float32).sum(dtype=np.float64))
    return Candidates(ids, leading, (np.exp(leading - leading[0]) / total).astype(np.float32))


def best(scores: npt.NDArray[Any], count: int) -> npt.NDArray[np.int64]:
    """The indices of the best `count`, best first; of equal scores, the first ones."""
    indices = leaders(scores, min(count, scores.size))
    return indices[(-scores[indices]).argsort(kind="stable")[:count]]


def leaders(scores: npt.NDArray[Any], count: int) -> npt.NDArray[np.int64]:
    """A few indices, in ascending order, among which the best `count` are, and all that tie with them.

    Selecting among a whole vocabulary is slow. So it is reshaped to a table, and the highest score of each column taken,
    which is fast. There are `count` columns that reach the `count`-th highest of these, so no better one is left below it.
    """
    if scores.size < 4 * max(count, 1):
        return np.arange(scores.size)
    rows = min(64, scores.size // (2 * count))
    columns = scores.size // rows
    table = scores[: rows * columns].reshape(rows, columns)
    highest = table.max(0)
    cut = np.partition(highest, -count)[-count]
    (few,) = (highest >= cut).nonzero()  # all that reach the cut are in these columns, or behind the table
    row, column = (table[:, few] >= cut).nonzero()
    indices: npt.NDArray[np.int64] = row * columns + few[column]
    if table.size == scores.size:
        return indices
    return np.concatenate((indices, table.size + np.flatnonzero(scores[table.size :] >= cut)))
