"""What a tensor's numbers are like: where they lie, how far they spread, and which are out of line.

Numbers come piece by piece, so that a large table never stands in memory whole; what is told is what the whole tensor would
give. Pieces are summed in float64 and joined as Chan, Golub and LeVeque do it ("Updating Formulae and a Pairwise Algorithm
for Computing Sample Variances", 1979), which loses nothing where a mean is large and a spread is small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.views.parameters import FAR, Histogram, Statistics

Numbers: TypeAlias = npt.NDArray[Any]
Pieces: TypeAlias = Callable[[], Iterable[Numbers]]  # from the beginning each time: numbers are read once or twice
BINS = 21


def statistics(pieces: Pieces, histogram: bool = False) -> Statistics:
    """Of numbers that come in pieces; they are read a second time only where something lies far out, or must be counted."""
    sums = _Sums()
    for piece in pieces():
        sums.take(piece.reshape(-1))
    total = sums.count + sums.nans + sums.infinite
    if not sums.count:
        return Statistics(None, None, None, None, 0.0, 0.0, sums.nans, sums.infinite)
    deviation = math.sqrt(sums.squares / (sums.count - 1)) if sums.count > 1 else None
    far = FAR * (deviation or 0.0)
    reach = max(float(sums.most) - sums.mean, sums.mean - float(sums.least))
    beyond, counted = 0, None
    if histogram or (deviation and reach > far):
        edges, counts = _edges(sums), np.zeros(BINS, np.int64)
        for piece in pieces():
            flat = _finite(piece.reshape(-1))
            beyond += int((np.abs(flat.astype(np.float64) - sums.mean) > far).sum()) if deviation else 0
            if histogram:
                counts += np.histogram(flat, BINS, (sums.least, sums.most))[0]
        counted = Histogram(tuple(edges.tolist()), tuple(counts.tolist())) if histogram else None
    return Statistics(
        sums.mean, deviation, float(sums.least), float(sums.most), sums.zeros / total, beyond / total, sums.nans,
        sums.infinite, counted,
    )  # fmt: skip


class _Sums:
    """What is known of the pieces so far."""

    def __init__(self) -> None:
        self.count = self.zeros = self.nans = self.infinite = 0
        self.mean = self.squares = 0.0  # squares: summed distances from the mean, squared
        self.least: Any = None  # of the numbers' own type, for numpy's edges depend on it
        self.most: Any = None

    def take(self, flat: Numbers) -> None:
        finite = _finite(flat)
        if lost := flat.size - finite.size:
            nans = int(np.isnan(flat).sum())
            self.nans, self.infinite = self.nans + nans, self.infinite + lost - nans
        if not finite.size:
            return
        self.zeros += finite.size - int(np.count_nonzero(finite))
        least, most = finite.min(), finite.max()
        self.least = least if self.least is None else min(self.least, least)
        self.most = most if self.most is None else max(self.most, most)
        wide = finite.astype(np.float64)
        mean = float(wide.mean())
        wide -= mean
        together, apart = self.count + finite.size, mean - self.mean
        self.squares += float(np.square(wide, out=wide).sum()) + apart**2 * self.count * finite.size / together
        self.mean += apart * finite.size / together
        self.count = together


def _finite(flat: Numbers) -> Numbers:
    if flat.dtype.kind != "f":
        return flat
    fine = np.isfinite(flat)
    return flat if fine.all() else flat[fine]


def _edges(sums: _Sums) -> Numbers:
    ends = np.array([sums.least, sums.most])
    return np.histogram_bin_edges(ends, BINS, (sums.least, sums.most))
