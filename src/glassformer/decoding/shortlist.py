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

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


def log_softmax(scores: Floats) -> Floats:
    """Log-probabilities of scores."""
    shifted = scores - scores.max()
    log_probabilities: Floats = shifted - np.float32(np.log(np.exp(shifted).sum(dtype=np.float64)))
    return log_probabilities


class Shortlist(NamedTuple):
    scores: Floats
    ids: Ids | None = None  # None: the whole vocabulary

    def id_at(self, index: int) -> int:
        """The token at an index of the list."""
        return index if self.ids is None else int(self.ids[index])

    def ids_at(self, indices: Ids) -> Ids:
        """The tokens at some indices of the list."""
        return indices if self.ids is None else self.ids[indices]

    def indices_of(self, tokens: Ids | Sequence[int]) -> tuple[Ids, npt.NDArray[np.bool_]]:
        """The indices of those of these tokens that are on the list, and which of them are."""
        token_ids = np.asarray(tokens, np.int64)
        if self.ids is None:
            present = (token_ids >= 0) & (token_ids < self.scores.size)
            return token_ids[present], present
        indices = np.searchsorted(self.ids, token_ids)
        indices[indices == self.ids.size] = 0
        present = self.ids[indices] == token_ids if self.ids.size else np.zeros(token_ids.size, bool)
        return indices[present], present

    def select(self, indices: Ids) -> Shortlist:
        """Those at these indices, which are in ascending order; the list itself when that is all of them."""
        if indices.size == self.scores.size:
            return self
        return Shortlist(self.scores[indices], indices if self.ids is None else self.ids[indices])

    def keep(self, which: npt.NDArray[np.bool_]) -> Shortlist:
        """Those that are marked."""
        return self.select(np.flatnonzero(which))

    def rescored(self, indices: Ids, scores: npt.ArrayLike) -> Shortlist:
        """These candidates, some of them with other scores."""
        changed = self.scores.copy()
        changed[indices] = scores
        return Shortlist(changed, self.ids)

    def full_scores(self, size: int) -> Floats:
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
