"""Rules that shape the distribution: temperature, and the ways to cut off its unlikely end, or its too likely one.

Most of them keep what scores above a cut. So they find the cut first and compare scores with it, which costs a thirtieth of
a softmax. Where a softmax is needed, weights relative to the best, `exp(score − best)`, stand for probabilities with one
total for all of them.

`min_keep` is how many stay whatever the rule says. A shortlist with nothing in play passes through untouched; the policy
reports it. Scores are numbers or minus infinity; NaN and plus infinity are the caller's to refuse.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from glassformer.decoding.rules import Rule
from glassformer.decoding.shortlist import Floats, Ids, Shortlist
from glassformer.decoding.token_history import XTC, TokenHistory
from glassformer.ground.candidates import leaders

FAR = -200.0  # this far below the best a weight is 0 in float32; and 0 · FAR is 0, where 0 · -inf would be NaN
TINY = 1e-30  # a temperature that a score can be divided by
FEW = 256  # candidates that mostly have nearly all of the probability
BINS = 4096  # for a rough order


class SoftmaxTerms(NamedTuple):
    """A softmax before its division."""

    best: float  # the highest score
    depths: Floats  # how far each lies below it, as a number from FAR to 0
    exponentials: Floats  # exp(depth), so 1 for the best
    total: float

    def score(self, probability: float) -> float:
        """The score that has this probability, or would have it."""
        return self.best + math.log(self.total * probability) if probability > 0 else -math.inf

    def mean(self) -> float:
        """The depth of a drawn token on average. The entropy is log(total) minus this."""
        return float((self.exponentials * self.depths).sum(dtype=np.float64)) / self.total


def temperature(temperature: float) -> Rule:
    """Divide the scores: below 1 the best stand out more, above 1 less. Where that would be too much for a number, what
    each lies below the best is divided, which is the same to whoever draws."""

    def rule(shortlist: Shortlist, history: TokenHistory) -> Shortlist:
        if temperature == 1:
            return shortlist
        if temperature > TINY:
            return Shortlist(shortlist.scores / np.float32(temperature), shortlist.ids)
        with np.errstate(over="ignore"):
            return Shortlist(
                ((shortlist.scores - _nth_best(shortlist.scores)) / np.float64(temperature)).astype(np.float32),
                shortlist.ids,
            )

    return rule


def top_k(top_k: int, min_keep: int = 1) -> Rule:
    """Keep this many of the best, and whatever ties with the last of them."""
    kept = max(top_k, min_keep)

    def rule(shortlist: Shortlist, history: TokenHistory) -> Shortlist:
        if kept >= shortlist.scores.size:
            return shortlist
        indices = leaders(shortlist.scores, kept)
        return shortlist.select(indices[shortlist.scores[indices] >= _nth_best(shortlist.scores[indices], kept)])

    return rule


def top_p(top_p: float, min_keep: int = 1) -> Rule:
    """Keep the best that together have this probability (https://arxiv.org/abs/1904.09751).

    Of equal scores at the edge only as many stay as are needed, those with the lowest ids.
    """

    def rule(shortlist: Shortlist, history: TokenHistory) -> Shortlist:
        scores = shortlist.scores
        if top_p >= 1 or min_keep >= scores.size or (weights := _weights(scores)) is None:
            return shortlist
        indices = _most_likely(scores, weights, top_p, min_keep)
        ladder = np.sort(scores[indices])[::-1]
        upto = np.cumsum(np.exp(ladder - np.float32(weights.best)), dtype=np.float64)
        count = min(max(int(np.searchsorted(upto, top_p * weights.total)) + 1, min_keep), ladder.size)
        indices = indices[np.flatnonzero(scores[indices] >= ladder[count - 1])]
        ties = np.flatnonzero(scores[indices] == ladder[count - 1])
        return shortlist.select(np.delete(indices, ties[ties.size - (indices.size - count) :]))

    return rule


def min_p(min_p: float, min_keep: int = 1) -> Rule:
    """Keep what has at least this share of the best one's probability (https://arxiv.org/abs/2407.01082)."""
    depth = math.log(min_p) if min_p > 0 else -math.inf

    def rule(shortlist: Shortlist, history: TokenHistory) -> Shortlist:
        return _scoring_from(shortlist, _nth_best(shortlist.scores) + depth, min_keep)

    return rule


def typical_p(typical_p: float, min_keep: int = 1) -> Rule:
    """Keep the tokens whose surprise is nearest to the expected surprise, until they together have this probability
    (https://arxiv.org/abs/2202.00666). So even the best falls where it is too likely.

    A token's surprise is its score turned round and shifted, so how far its surprise is from the entropy is how far its
    score is from the mean score. What ties with the last one stays.
    """

    def rule(shortlist: Shortlist, history: TokenHistory) -> Shortlist:
        if min_keep >= shortlist.scores.size or (weights := _weights(shortlist.scores)) is None:
            return shortlist
        distances = weights.depths - np.float32(weights.mean())
        np.abs(distances, out=distances)
        indices = _most_likely(shortlist.scores, weights, typical_p)  # with the others too, the radius is not larger
        indices = np.flatnonzero(distances <= radius(distances[indices], weights.exponentials[indices], weights.total))
        furthest = radius(distances[indices], weights.exponentials[indices], weights.total)
        if min_keep > 1:
            furthest = max(furthest, -_nth_best(-distances, min_keep))
        return shortlist.select(np.flatnonzero(distances <= furthest))

    def radius(distances: Floats, exponentials: Floats, total: float) -> float:
        """The distance within which the mass lies. Bins of equal width say it roughly, and only one of them is sorted."""
        bins = (distances * np.float32(BINS / max(distances.max(), 1e-9))).astype(np.intp)
        upto = np.cumsum(np.bincount(bins, exponentials))
        edge = min(int(np.searchsorted(upto, typical_p * total)), upto.size - 1)
        indices = np.flatnonzero(bins == edge)
        nearest = indices[np.argsort(distances[indices])]
        missing = typical_p * total - (upto[edge - 1] if edge else 0)
        last = int(np.searchsorted(np.cumsum(exponentials[nearest], dtype=np.float64), missing))
        return float(distances[nearest[min(last, nearest.size - 1)]])

    return rule


def epsilon_cutoff(epsilon_cutoff: float, min_keep: int = 1) -> Rule:
    """Keep what has at least this probability (https://arxiv.org/abs/2210.15191)."""

    def rule(shortlist: Shortlist, history: TokenHistory) -> Shortlist:
        weights = _weights(shortlist.scores)
        return shortlist if weights is None else _scoring_from(shortlist, weights.score(epsilon_cutoff), min_keep)

    return rule


def eta_cutoff(eta_cutoff: float, min_keep: int = 1) -> Rule:
    """Keep what has at least the probability min(ε, √ε · exp(−entropy)), a bound that sinks where the model is undecided
    (https://arxiv.org/abs/2210.15191)."""

    def rule(shortlist: Shortlist, history: TokenHistory) -> Shortlist:
        if (weights := _weights(shortlist.scores)) is None:
            return shortlist
        undecided = math.sqrt(eta_cutoff) * math.exp(weights.mean()) / weights.total
        return _scoring_from(shortlist, weights.score(min(eta_cutoff, undecided)), min_keep)

    return rule


def top_n_sigma(top_n_sigma: float) -> Rule:
    """Keep the scores within this many standard deviations of the best (https://arxiv.org/abs/2411.07641). What it keeps is
    the same at every temperature."""

    def rule(shortlist: Shortlist, history: TokenHistory) -> Shortlist:
        best, scores = _nth_best(shortlist.scores), shortlist.scores
        if best == -math.inf:
            return shortlist
        if scores.min() == -math.inf:
            scores = scores[np.flatnonzero(scores > -math.inf)]
        return _scoring_from(shortlist, best - top_n_sigma * float(scores.std(dtype=np.float64)))

    return rule


def xtc(xtc_probability: float, xtc_threshold: float) -> Rule:
    """Exclude top choices, by p-e-w (https://github.com/oobabooga/text-generation-webui/pull/6335): with this probability,
    remove all that have at least the threshold's, but for the least likely of them. So a text leaves the beaten track, but
    only where there is another good way on."""

    def rule(shortlist: Shortlist, history: TokenHistory) -> Shortlist:
        if history.draw(XTC) >= xtc_probability or (weights := _weights(shortlist.scores)) is None:
            return shortlist
        good = np.flatnonzero(shortlist.scores >= max(weights.score(xtc_threshold), weights.best + FAR))
        if good.size < 2:
            return shortlist
        return shortlist.rescored(np.delete(good, shortlist.scores[good].argmin()), -np.inf)

    return rule


def mirostat(mirostat_tau: float, mirostat_eta: float) -> Rule:
    """Mirostat 2: keep what surprises by at most μ bits, with a μ that brings the text's mean surprise to τ
    (https://arxiv.org/abs/2007.14966). μ begins at 2τ and is made of the history's surprisals, so nothing is kept here."""

    def rule(shortlist: Shortlist, history: TokenHistory) -> Shortlist:
        if (weights := _weights(shortlist.scores)) is None:
            return shortlist
        surprisals = [surprisal for surprisal in history.surprisals if not math.isnan(surprisal)]
        mu = 2 * mirostat_tau - mirostat_eta * (math.fsum(surprisals) - mirostat_tau * len(surprisals))
        return _scoring_from(shortlist, weights.best + math.log(weights.total) - mu * math.log(2))

    return rule


def _weights(scores: Floats) -> SoftmaxTerms | None:
    """The softmax of a shortlist, or None when nothing is in play."""
    best = _nth_best(scores)
    if best == -math.inf:
        return None
    depths = scores - np.float32(best)
    if depths.min() < FAR:
        np.maximum(depths, np.float32(FAR), out=depths)
    exponentials = np.exp(depths)
    return SoftmaxTerms(best, depths, exponentials, float(exponentials.sum(dtype=np.float64)))


def _nth_best(scores: Floats, count: int = 1) -> float:
    """The best score, or the `count`-th best."""
    if count == 1 or not scores.size:
        return float(scores.max(initial=-np.inf))
    count = min(count, scores.size)
    return float(np.partition(scores[leaders(scores, count)], -count)[-count])


def _most_likely(scores: Floats, weights: SoftmaxTerms, share: float, min_keep: int = 1) -> Ids:
    """Indices of the best, `min_keep` or more, that together have at least this share; if possible, few."""
    indices = leaders(scores, max(FEW, min_keep))
    if weights.exponentials[indices].sum(dtype=np.float64) < share * weights.total:
        light = (1 - share) * weights.total / scores.size  # all below this together have less than what is not wanted
        indices = np.flatnonzero(weights.exponentials >= light / 2)  # half of it, so that rounding makes no difference
    return indices


def _scoring_from(shortlist: Shortlist, cut: float, min_keep: int = 1) -> Shortlist:
    """Those from this score on; and the best `min_keep`, with their ties, whatever they score."""
    return shortlist.select(np.flatnonzero(shortlist.scores >= min(cut, _nth_best(shortlist.scores, min_keep))))
