"""The best few of a score vector: what executors find, policies report and views show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Candidates:
    """The best few ids, best first."""

    ids: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float32]
    probabilities: npt.NDArray[np.float32]  # among the whole vocabulary


def top(scores: npt.NDArray[np.float32], k: int) -> Candidates:
    """The best k of a score vector, with their softmax probabilities."""
    k = min(k, scores.size)
    ids = np.argpartition(scores, -k)[-k:]
    ids = ids[np.argsort(-scores[ids], kind="stable")]
    shifted = scores - scores[ids[0]]
    total = np.exp(shifted, dtype=np.float32).sum(dtype=np.float64)
    return Candidates(ids.astype(np.int64), scores[ids], (np.exp(shifted[ids]) / total).astype(np.float32))
