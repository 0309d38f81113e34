"""Positions as numbers, for engines: the sinusoidal table, biases by distance (T5, ALiBi), DeBERTa's buckets, scores that
grow with the position. Needs no torch.

`torch/positions.py` does the first two in PyTorch, for the families; the tests compare them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class DistanceBuckets:
    """Which of 2 · `span` vectors stands for a distance from key to query (https://arxiv.org/abs/2006.03654).

    Without `logarithmic`, each distance has its own. With it, so have the nearer half, and further ones share vectors up to
    `max_distance`. Beyond it, all have the outermost ones.
    """

    span: int
    max_distance: int
    logarithmic: bool

    def numbers(self) -> npt.NDArray[np.int32]:
        """The vector of each distance, query minus key, from -max_distance to max_distance."""
        distances = np.arange(-self.max_distance, self.max_distance + 1)
        buckets = self._logarithmic(distances) if self.logarithmic else distances
        return np.clip(buckets + self.span, 0, 2 * self.span - 1).astype(np.int32)

    def _logarithmic(self, distances: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        middle = self.span // 2
        far = np.abs(distances) >= middle
        ratios = np.where(far, np.abs(distances), middle).astype(np.float32) / np.float32(middle)
        steps = np.log(ratios) / np.log(np.float32((self.max_distance - 1) / middle)) * np.float32(middle - 1)
        return np.where(np.abs(distances) <= middle, distances, np.sign(distances) * (np.ceil(steps) + middle)).astype(
            np.int64
        )


@dataclass(frozen=True)
class PositionScale:
    """Scores times 1 + beta · ln(1 + ⌊position ÷ length⌋), by the position of the query (Llama 4); `first`: that of the
    first token."""

    beta: float
    length: int
    first: int = 0

    def at(self, position: Any) -> Any:
        return 1 + self.beta * np.log1p(np.floor((np.asarray(position) + self.first) / self.length))


def sinusoidal_positions(rows: int, size: int, halves: bool = False, first: int = 0, inclusive: bool = False) -> Floats:
    """Sinusoidal positions from the first one on: a sine and a cosine for each of size/2 wavelengths, (rows, size).

    `halves`: all sines come first, and then all cosines, as Marian has them; otherwise in turn. `inclusive`: the last of
    the wavelengths is the longest itself, in float32, as fairseq has them.
    """
    if inclusive:
        count = size // 2
        rates = np.exp(np.arange(count, dtype=np.float32) * np.float32(-math.log(10000.0) / (count - 1)))
        angles = np.arange(first, first + rows, dtype=np.float32)[:, None] * rates
        return np.concatenate((np.sin(angles), np.cos(angles), np.zeros((rows, size % 2), np.float32)), -1)
    if halves:
        exact = np.arange(rows)[:, None] / 10000.0 ** (np.arange(0, size, 2) / size)
        return np.concatenate((np.sin(exact), np.cos(exact[:, : size // 2])), -1).astype(np.float32)
    rates = np.exp(np.arange(0, size, 2, dtype=np.float32) * np.float32(-math.log(10000.0) / size))
    angles = np.arange(rows, dtype=np.float32)[:, None] * rates
    return np.stack((np.sin(angles), np.cos(angles)), -1).reshape(rows, -1)[:, :size]


class SinusoidTable(NamedTuple):
    """A table of positions that a checkpoint need not hold."""

    shape: tuple[int, int]  # (positions, hidden)
    halves: bool = False  # all sines before all cosines
    stored: str = ""  # the name of a tensor that is taken in its place, where a file has it
    first: int = 0  # the position of its first row
    inclusive: bool = False  # the last wavelength is the longest itself

    def values(self) -> Floats:
        return sinusoidal_positions(*self.shape, self.halves, self.first, self.inclusive)


def alibi_slopes(heads: int, largest: float = 8.0) -> tuple[float, ...]:
    """What each head takes off a score for each token between the two (https://arxiv.org/abs/2108.12409).

    A geometric series down to 2 to the -`largest`; where heads are no power of two, the one of the power below is followed
    by every other number of the next one.
    """
    power = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-largest * (head + 1) / power) for head in range(power)]
    return (*slopes, *(2 ** (-largest * (head + 0.5) / power) for head in range(heads - power)))


def distance_biases(table: Floats, max_distance: int, bidirectional: bool) -> Floats:
    """The bias of each head for each distance from -max_distance to max_distance: (heads, 2 · max_distance + 1).

    `table`: (buckets, heads). Distances beyond share the last bucket. `bidirectional`: half of the buckets
    are for what comes after.
    """
    distances = np.arange(-max_distance, max_distance + 1)
    count = len(table) // 2 if bidirectional else len(table)
    after = (distances > 0) * count if bidirectional else 0
    magnitudes = np.abs(distances) if bidirectional else np.maximum(-distances, 0)
    exact = count // 2
    growth = np.log(np.maximum(magnitudes, 1).astype(np.float32) / exact) / math.log(max_distance / exact) * (count - exact)
    far = np.minimum(exact + growth.astype(np.int64), count - 1)
    numbers = after + np.where(magnitudes < exact, magnitudes, far)
    return np.ascontiguousarray(table[numbers].T, np.float32)
