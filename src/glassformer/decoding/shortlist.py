"""The candidates in play, as rules pass them on. It begins as the whole vocabulary and shrinks.

Its ids stay in ascending order whatever the rules did, so that a rule which removes nothing changes no draw. A candidate
is out when it is not on the list any more, or when its score is minus infinity; both mean the same to whoever comes next.

Shapes: all arrays are (candidates,).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


class Shortlist(NamedTuple):
    scores: Scores
    ids: Ids | None = None  # None: the whole vocabulary

    def id(self, place: int) -> int:
        """The token at a place of the list."""
        return place if self.ids is None else int(self.ids[place])

    def places(self, tokens: Ids | Sequence[int]) -> tuple[Ids, npt.NDArray[np.bool_]]:
        """Where these tokens stand, and which of them are on the list at all; the places are of those that are."""
        wanted = np.asarray(tokens, np.int64)
        if self.ids is None:
            there = (wanted >= 0) & (wanted < self.scores.size)
            return wanted[there], there
        found = np.searchsorted(self.ids, wanted)
        found[found == self.ids.size] = 0
        there = self.ids[found] == wanted if self.ids.size else np.zeros(wanted.size, bool)
        return found[there], there

    def at(self, places: Ids) -> Shortlist:
        """Those at these places, which are in ascending order; the list itself when that is all of them."""
        if places.size == self.scores.size:
            return self
        return Shortlist(self.scores[places], places if self.ids is None else self.ids[places])

    def keep(self, which: npt.NDArray[np.bool_]) -> Shortlist:
        """Those that are marked."""
        return self.at(np.flatnonzero(which))

    def rescored(self, places: Ids, scores: npt.ArrayLike) -> Shortlist:
        """The same candidates, some of them with other scores."""
        changed = self.scores.copy()
        changed[places] = scores
        return Shortlist(changed, self.ids)

    def full_scores(self, size: int) -> Scores:
        """The scores of the whole vocabulary, minus infinity for what is out."""
        if self.ids is None:
            return self.scores
        scores = np.full(size, -np.inf, np.float32)
        scores[self.ids] = self.scores
        return scores

    def probabilities(self) -> npt.NDArray[np.float64]:
        """Softmax over what is in play."""
        weights: npt.NDArray[np.float64] = np.exp(self.scores - self.scores.max(), dtype=np.float64)
        weights /= weights.sum()
        return weights
