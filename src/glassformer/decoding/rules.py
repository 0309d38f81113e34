"""Rules: small pure functions from the candidates in play to the candidates left in play.

A `Shortlist` begins as the whole vocabulary and shrinks. It keeps its ids in ascending order whatever the rules did,
so that a rule which removes nothing changes no draw.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt


class Shortlist(NamedTuple):
    scores: npt.NDArray[np.float32]
    ids: npt.NDArray[np.int64] | None = None  # None: all of them

    def keep(self, which: npt.NDArray[np.bool_]) -> Shortlist:
        if which.all():
            return self
        ids = np.flatnonzero(which) if self.ids is None else self.ids[which]
        return Shortlist(self.scores[which], ids)

    def id(self, index: int) -> int:
        return index if self.ids is None else int(self.ids[index])

    def probabilities(self) -> npt.NDArray[np.float64]:
        """Softmax over what is in play."""
        weights: npt.NDArray[np.float64] = np.exp(self.scores - self.scores.max(), dtype=np.float64)
        weights /= weights.sum()
        return weights


Rule: TypeAlias = Callable[[Shortlist], Shortlist]


def temperature(value: float) -> Rule:
    """Divide the scores: below 1 the best stand out more, above 1 less."""
    return lambda field: Shortlist(field.scores / np.float32(value), field.ids)


def top_k(count: int) -> Rule:
    """Keep the best so many, and whatever ties with the last of them."""

    def rule(field: Shortlist) -> Shortlist:
        if count >= field.scores.size:
            return field
        least = np.partition(field.scores, -count)[-count]
        return field.keep(field.scores >= least)

    return rule


def top_p(share: float) -> Rule:
    """Keep the best that together have this probability (https://arxiv.org/abs/1904.09751); always at least one."""

    def rule(field: Shortlist) -> Shortlist:
        probabilities = field.probabilities()
        best_first = np.argsort(-probabilities, kind="stable")
        before = np.cumsum(probabilities[best_first]) - probabilities[best_first]
        kept = np.zeros(probabilities.size, bool)
        kept[best_first[before < share]] = True
        return field.keep(kept)

    return rule
