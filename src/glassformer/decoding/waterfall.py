"""What the rules did at one step: every candidate's score after each of them, and which rule took it out.

Shapes: scores (stages, candidates); the first stage is the model's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from glassformer.candidates import leaders
from glassformer.decoding.shortlist import Ids, Scores, Shortlist
from glassformer.errors import InputError

FAR = np.float32(-200)  # so far below the best a weight is 0; and 0 · FAR is 0, where 0 · -inf would be no number
MODEL = "model"  # the name of the first stage


@dataclass(frozen=True, slots=True)
class Fate:
    """One candidate's way through the rules."""

    id: int
    scores: tuple[float, ...]  # after each stage; minus infinity when it is out
    probability: float  # at the end; 0 when it is out
    removed_by: str | None  # the rule that took it out


@dataclass(frozen=True, slots=True)
class Waterfall:
    """Candidates by their score under the model, best first."""

    stages: tuple[str, ...]  # 'model', then the rules in their order
    ids: Ids
    scores: npt.NDArray[np.float32]
    counts: tuple[int, ...]  # how many of the whole vocabulary are in play after each stage
    entropies: tuple[float, ...]  # of what is in play after each stage, in bits
    probabilities: npt.NDArray[np.float64]  # of the candidates at the end

    def __iter__(self) -> Iterator[Fate]:
        for column, token in enumerate(self.ids.tolist()):
            scores = self.scores[:, column].tolist()
            yield Fate(token, tuple(scores), float(self.probabilities[column]), self.removed_by(token))

    def __len__(self) -> int:
        return len(self.ids)

    def removed_by(self, token: int) -> str | None:
        """The rule that took a candidate out, or None when it stayed to the end."""
        if token not in self.ids:
            raise InputError(f"no account was kept of token {token}. Look at more candidates, or at 'all'.")
        (column,) = np.flatnonzero(self.ids == token)
        out = np.flatnonzero(np.isneginf(self.scores[:, column]))
        return self.stages[int(out[0])] if out.size else None

    def __repr__(self) -> str:
        steps = " → ".join(f"{name} {count:,}" for name, count in zip(self.stages, self.counts, strict=True))
        return f"Waterfall({steps})"


def waterfall(
    names: Sequence[str],
    shortlists: Sequence[Shortlist],
    stats: Sequence[EntropyStats],
    size: int,
    look: int | None,
    chosen: int,
) -> Waterfall:
    """Of the candidates after each stage: the best so many at the start and at the end, and the chosen; None: all."""
    model, last = shortlists[0].scores, shortlists[-1]
    if look is None:
        ids = np.arange(size)
    else:
        first = best(model, look)
        left = first if last is shortlists[0] else best(last.scores, look)
        ids = np.unique((*first, *(left if last.ids is None else last.ids[left]), chosen))
    ids = ids[np.argsort(-model[ids], kind="stable")]
    scores = np.full((len(shortlists), ids.size), -np.inf, np.float32)
    for row, shortlist in enumerate(shortlists):
        indices, present = shortlist.indices_of(ids)
        scores[row, present] = shortlist.scores[indices]
    ends = np.exp(scores[-1] - last.scores.max(), dtype=np.float64) / stats[-1].total
    return Waterfall(
        tuple(names), ids, scores, tuple(stage.in_play for stage in stats), tuple(stage.entropy for stage in stats), ends
    )


def best(scores: Scores, count: int) -> Ids:
    """The indices of the best so many."""
    indices = leaders(scores, min(count, scores.size))
    return indices[np.argsort(-scores[indices], kind="stable")[:count]]


class EntropyStats(NamedTuple):
    """The entropy of a choice, and what it is computed from."""

    in_play: int  # how many candidates are left
    total: float  # the sum of exp(score − best)
    entropy: float  # in bits: 0 when it is certain, 1 for a toss of a coin


def entropy_stats(scores: Scores) -> EntropyStats:
    depths = scores - scores.max()
    weights = np.exp(depths)
    total = float(weights.sum(dtype=np.float64))
    mean = float((weights * np.maximum(depths, FAR)).sum(dtype=np.float64)) / total
    return EntropyStats(int(np.count_nonzero(scores > -np.inf)), total, max(0.0, (np.log(total) - mean) / np.log(2)))
