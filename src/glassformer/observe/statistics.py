"""What a tensor's numbers are like: where they lie, how far they spread, and which are out of line.

Numbers come piece by piece, so that a large table is never in memory whole; the result is what the whole tensor would
give. Pieces are summed in float64 and joined as Chan, Golub and LeVeque do it ("Updating Formulae and a Pairwise Algorithm
for Computing Sample Variances", 1979), which loses nothing where a mean is large and a spread is small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.views.parameters import OUTLIER, Histogram, Statistics

Numbers: TypeAlias = npt.NDArray[Any]
Pieces: TypeAlias = Callable[[], Iterable[Numbers]]  # from the beginning each time: numbers are read once or twice
BINS = 21


def statistics(pieces: Pieces, histogram: bool = False) -> Statistics:
    """Of numbers that come in pieces; they are read a second time only where something lies far out, or must be counted."""
    moments = RunningMoments()
    for piece in pieces():
        moments.add(piece.reshape(-1))
    total = moments.count + moments.nans + moments.infinite
    if not moments.count:
        return Statistics(None, None, None, None, 0.0, 0.0, moments.nans, moments.infinite)
    deviation = math.sqrt(moments.squares / (moments.count - 1)) if moments.count > 1 else None
    far = OUTLIER * (deviation or 0.0)
    reach = max(float(moments.maximum) - moments.mean, moments.mean - float(moments.minimum))
    outliers, bins = 0, None
    if histogram or (deviation and reach > far):
        edges, counts = _edges(moments), np.zeros(BINS, np.int64)
        for piece in pieces():
            flat = _finite(piece.reshape(-1))
            outliers += int((np.abs(flat.astype(np.float64) - moments.mean) > far).sum()) if deviation else 0
            if histogram:
                counts += np.histogram(flat, BINS, (moments.minimum, moments.maximum))[0]
        bins = Histogram(tuple(edges.tolist()), tuple(counts.tolist())) if histogram else None
    return Statistics(
        moments.mean, deviation, float(moments.minimum), float(moments.maximum), moments.zeros / total, outliers / total,
        moments.nans, moments.infinite, bins,
    )  # fmt: skip


class RunningMoments:
    """Of the pieces so far."""

    def __init__(self) -> None:
        self.count = self.zeros = self.nans = self.infinite = 0
        self.mean = self.squares = 0.0  # squares: summed distances from the mean, squared
        self.minimum: Any = None  # of the numbers' own type, for numpy's edges depend on it
        self.maximum: Any = None

    def add(self, flat: Numbers) -> None:
        finite = _finite(flat)
        if lost := flat.size - finite.size:
            nans = int(np.isnan(flat).sum())
            self.nans, self.infinite = self.nans + nans, self.infinite + lost - nans
        if not finite.size:
            return
        self.zeros += finite.size - int(np.count_nonzero(finite))
        minimum, maximum = finite.min(), finite.max()
        self.minimum = minimum if self.minimum is None else min(self.minimum, minimum)
        self.maximum = maximum if self.maximum is None else max(self.maximum, maximum)
        wide = finite.astype(np.float64)
        mean = float(wide.mean())
        wide -= mean
        total, shift = self.count + finite.size, mean - self.mean
        self.squares += float(np.square(wide, out=wide).sum()) + shift**2 * self.count * finite.size / total
        self.mean += shift * finite.size / total
        self.count = total


def _finite(flat: Numbers) -> Numbers:
    if flat.dtype.kind != "f":
        return flat
    fine = np.isfinite(flat)
    return flat if fine.all() else flat[fine]


def _edges(moments: RunningMoments) -> Numbers:
    ends = np.array([moments.minimum, moments.maximum])
    return np.histogram_bin_edges(ends, BINS, (moments.minimum, moments.maximum))
