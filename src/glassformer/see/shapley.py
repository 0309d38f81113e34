"""Shapley values (Shapley 1953): what each player of a game adds, on average over all orders in which they could join.

A game is a function of coalitions. Up to a few players all 2^n of them are taken and the values are exact. Of more, orders
are drawn, each with its reverse: what one player adds early in one, it adds late in the other, so a pair's mean varies less
than two orders by themselves (antithetic sampling, https://arxiv.org/abs/2104.12199). Each order's contributions telescope,
so the values sum to the whole less the empty coalition whatever is drawn. Standard errors and intervals are those of the
pairs.

Shapes: contributions (pairs, players); coalitions are bit masks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.ground.progress import Progress

Numbers: TypeAlias = npt.NDArray[np.float64]
Coalition: TypeAlias = int  # bit i: player i has joined
Worth: TypeAlias = Callable[[Sequence[Coalition]], Sequence[float]]
MAX_PAIRS = 32  # of orders that are drawn unless told
MIN_PAIRS = 4  # before their spread says when to stop
PRECISE = 0.1  # of the greatest value: where all standard errors are below, no more orders are drawn
Z = 1.959964  # of the normal distribution, for 95%


@dataclass(frozen=True)
class ShapleyValues:
    """Each player's value; where orders were drawn, its standard error and half of its 95% interval's width."""

    values: Numbers
    errors: Numbers | None  # None: exact
    half_widths: Numbers | None
    empty: float  # the worth of nobody
    whole: float
    permutations: int  # orders that were drawn; 0: exact
    coalitions: int  # whose worth was computed


class Game:
    """Players, and what each coalition is worth: computed once, and all that a step needs at once."""

    def __init__(self, players: int, worth: Worth) -> None:
        self.players, self._worth = players, worth
        self._known: dict[Coalition, float] = {}

    @property
    def everybody(self) -> Coalition:
        return (1 << self.players) - 1

    def worth(self, coalitions: Sequence[Coalition]) -> Numbers:
        new = list(dict.fromkeys(coalition for coalition in coalitions if coalition not in self._known))
        self._known.update(zip(new, self._worth(new), strict=True))
        return np.array([self._known[coalition] for coalition in coalitions])

    @property
    def coalitions(self) -> int:
        return len(self._known)


def shapley_values(
    players: int, worth: Worth, pairs: int, seed: int, *, precise: bool, progress: Progress | None = None
) -> ShapleyValues:
    """The values of a game, exactly where that takes no more coalitions than drawing pairs of orders.

    `precise`: whether fewer pairs are drawn where the values are precise before.
    """
    game = Game(players, worth)
    return _exact(game) if is_exact(players, pairs) else _sampled(game, pairs, precise, seed, progress)


def is_exact(players: int, pairs: int = MAX_PAIRS) -> bool:
    """Whether all coalitions are fewer than those on the way of some pairs of orders."""
    return players < 64 and 2**players <= 2 + 2 * pairs * max(0, players - 1)


def _exact(game: Game) -> ShapleyValues:
    """The sum over all coalitions without a player of what it adds there, by the share of orders that pass through."""
    players, masks = game.players, np.arange(2**game.players)
    worth = game.worth(masks.tolist())
    sizes = np.array([mask.bit_count() for mask in masks.tolist()])
    weights = np.array([1 / (players * math.comb(players - 1, size)) for size in range(players)])
    values = np.zeros(players)
    for player in range(players):
        without = masks[masks >> player & 1 == 0]
        values[player] = weights[sizes[without]] @ (worth[without | 1 << player] - worth[without])
    return ShapleyValues(values, None, None, float(worth[0]), float(worth[-1]), 0, game.coalitions)


def _sampled(game: Game, most: int, precise: bool, seed: int, progress: Progress | None) -> ShapleyValues:
    pairs: list[Numbers] = []
    while len(pairs) < most and not (precise and _is_precise(pairs)):
        pairs.append(_contributions(game, _order(game.players, seed, len(pairs))))
        if progress is not None:
            progress(len(pairs), most)
    contributions = np.array(pairs)
    count = len(contributions)
    errors = contributions.std(0, ddof=1) / math.sqrt(count)
    empty, whole = game.worth([0, game.everybody]).tolist()
    return ShapleyValues(
        contributions.mean(0), errors, student_quantile(count - 1) * errors, empty, whole, 2 * count, game.coalitions
    )


def _is_precise(pairs: Sequence[Numbers]) -> bool:
    if len(pairs) < MIN_PAIRS:
        return False
    errors = np.std(pairs, 0, ddof=1) / math.sqrt(len(pairs))
    return bool(errors.max() <= PRECISE * np.abs(np.mean(pairs, 0)).max())


def _order(players: int, seed: int, index: int) -> npt.NDArray[np.int64]:
    """The order of a pair: it depends on the seed and the pair's index alone."""
    return np.random.Generator(np.random.Philox(key=[seed, index])).permutation(players)


def _contributions(game: Game, order: npt.NDArray[np.int64]) -> Numbers:
    """What each player adds where it joins, on average over an order and its reverse."""
    orders = (order.tolist(), order[::-1].tolist())
    ways = [[0, *np.bitwise_or.accumulate(np.array([1 << player for player in one], object)).tolist()] for one in orders]
    worth = game.worth([coalition for way in ways for coalition in way]).reshape(2, -1)
    added = np.zeros((2, game.players))
    for row, one in enumerate(orders):
        added[row, one] = np.diff(worth[row])
    mean: Numbers = added.mean(0)
    return mean


def student_quantile(freedom: int) -> float:
    """The 97.5% quantile of Student's t distribution, by Cornish and Fisher's expansion; exact for one and two."""
    if freedom <= 2:
        return (12.7062, 4.30265)[freedom - 1]
    powers: dict[int, float] = {power: math.pow(Z, power) for power in (1, 3, 5, 7, 9)}
    terms = (
        powers[1],
        (powers[3] + powers[1]) / 4,
        (5 * powers[5] + 16 * powers[3] + 3 * powers[1]) / 96,
        (3 * powers[7] + 19 * powers[5] + 17 * powers[3] - 15 * powers[1]) / 384,
        (79 * powers[9] + 776 * powers[7] + 1482 * powers[5] - 1920 * powers[3] - 945 * powers[1]) / 92160,
    )
    return math.fsum(term / math.pow(freedom, index) for index, term in enumerate(terms))
