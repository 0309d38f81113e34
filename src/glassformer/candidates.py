"""The best few of a score vector: what executors find, policies report and views show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


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
        found: npt.NDArray[np.float32] = self.scores - self.scores[0] + np.log(self.probabilities[0])
        return found

    def __iter__(self) -> Iterator[tuple[int, float, float]]:
        """(id, score, probability), best first."""
        return zip(self.ids.tolist(), self.scores.tolist(), self.probabilities.tolist(), strict=True)

    def __repr__(self) -> str:
        best = ", ".join(f"{token}: {probability:.1%}" for token, _, probability in list(self)[:3])
        return f"Candidates({best}{', …' if len(self) > 3 else ''})"


def top(scores: npt.NDArray[np.float32], k: int) -> Candidates:
    """The best k of a score vector, with their softmax probabilities."""
    k = min(k, scores.size)
    ids = np.argpartition(scores, -k)[-k:]
    ids = ids[np.argsort(-scores[ids], kind="stable")]
    shifted = scores - scores[ids[0]]
    total = np.exp(shifted, dtype=np.float32).sum(dtype=np.float64)
    return Candidates(ids.astype(np.int64), scores[ids], (np.exp(shifted[ids]) / total).astype(np.float32))
