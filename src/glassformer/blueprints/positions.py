"""Positions as numbers, for engines: the sinusoidal table, and T5's biases by distance. Needs no torch.

`layers/positions.py` does the same in PyTorch, for the families; the tests compare them.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def sinusoidal_positions(rows: int, size: int) -> Floats:
    """Sinusoidal positions: a sine and a cosine for each of size/2 wavelengths, (rows, size)."""
    rates = np.exp(np.arange(0, size, 2, dtype=np.float32) * np.float32(-math.log(10000.0) / size))
    angles = np.arange(rows, dtype=np.float32)[:, None] * rates
    return np.stack((np.sin(angles), np.cos(angles)), -1).reshape(rows, -1)[:, :size]


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
