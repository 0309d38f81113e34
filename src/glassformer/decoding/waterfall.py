"""What the rules did at one step: every candidate's score after each of them, and which rule took it out.

Shapes: scores (stages, candidates); the first stage has the model's logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from glassformer.decoding.shortlist import Floats, Ids, Shortlist
from glassformer.ground.candidates import EntropyStats, best
from glassformer.ground.errors import InputError

MODEL = "model"  # the name of the first stage
TAIL_WIDTH = 0.25  # of a bin of the tail's histogram, in units of score: small, so that any temperature can be applied to it
TAIL_BINS = 512  # what is further below is counted in the last one


@dataclass(frozen=True, slots=True)
class Fate:
    """One candidate's way through the rules."""

    id: int
    scores: tuple[float, ...]  # after each stage; minus infinity when it is out
    probability: float  # at the end; 0 when it is out
    removed_by: str | None  # the rule that took it out


class Tail(NamedTuple):
    """The tokens that are not among the candidates, as a histogram of the model's logits."""

    top: float  # the best of them
    counts: tuple[int, ...]  # in bins of TAIL_WIDTH, from the top downwards


@dataclass(frozen=True, slots=True)
class Waterfall:
    """Candidates by their logits, best first."""

    stages: tuple[str, ...]  # 'model', then the rules in their order
    ids: Ids
    scores: npt.NDArray[np.float32]
    counts: tuple[int, ...]  # how many of the whole vocabulary are in play after each stage
    entropies: tuple[float, ...]  # of what is in play after each stage, in bits
    probabilities: npt.NDArray[np.float64]  # of the candidates at the end
    tail: Tail | None = None  # all others; None: there are none

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
    first: Ids | None,
    chosen: int,
) -> Waterfall:
    """Of the candidates after each stage: the model's own best (`first`), as many at the end, and the chosen; None: all."""
    model, last = shortlists[0].scores, shortlists[-1]
    if first is None:
        ids = best(model, model.size)
    else:
        left = first if last is shortlists[0] else last.ids_at(best(last.scores, first.size))
        ids, shown = first, {*first.tolist(), *left.tolist(), chosen}
        if len(shown) > first.size:
            ids = np.array(sorted(shown))
            ids = ids[(-model[ids]).argsort(kind="stable")]
    scores = np.full((len(shortlists), ids.size), -np.inf, np.float32)
    for row, shortlist in enumerate(shortlists):
        if shortlist.ids is None:
            scores[row] = shortlist.scores[ids]
        else:
            indices, present = shortlist.indices_of(ids)
            scores[row, present] = shortlist.scores[indices]
    ends = np.exp(scores[-1] - scores[-1].max(), dtype=np.float64) / stats[-1].total  # the best of all is among them
    counts, _, entropies = zip(*stats, strict=True)
    tail = None if first is None else _tail(model, ids, stats[0].in_play)
    return Waterfall(tuple(names), ids, scores, counts, entropies, ends, tail)


def _tail(logits: Floats, listed: Ids, in_play: int) -> Tail | None:
    """The logits that are not listed, as far as they are in play: above minus infinity. Few passes over the vocabulary."""
    depths = logits.copy()
    depths[listed] = -np.inf
    top = depths.max()
    if not np.isfinite(top):
        return None
    np.subtract(top, depths, out=depths)
    depths *= 1 / TAIL_WIDTH
    np.minimum(depths, TAIL_BINS, out=depths)  # infinite ones too, in a bin of their own
    counts = np.bincount(depths.astype(np.intp), minlength=TAIL_BINS + 1)
    out = logits.size - in_play + len(listed)
    counts[TAIL_BINS - 1] += counts[TAIL_BINS] - out
    (filled,) = counts[:TAIL_BINS].nonzero()
    return Tail(float(top), tuple(counts[: filled[-1] + 1].tolist()))
