"""Positions as numbers, for engines: the sinusoid's table, and T5's biases laid out by distance. Needs no torch.

`layers/positions.py` says the same in PyTorch, for the families; the tests hold them together.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def waves(rows: int, size: int) -> Floats:
    """Sinusoidal positions: a sine and a cosine for each of size/2 wavelengths, (rows, size)."""
    rates = np.exp(np.arange(0, size, 2, dtype=np.float32) * np.float32(-math.log(10000.0) / size))
    angles = np.arange(rows, dtype=np.float32)[:, None] * rates
    return np.stack((np.sin(angles), np.cos(angles)), -1).reshape(rows, -1)[:, :size]


def bucket_table(table: Floats, furthest: int, both: bool) -> Floats:
    """The bias of each head for each distance from -furthest to furthest: (heads, 2 · furthest + 1).

    `table`: (buckets, heads). Distances beyond share the last bucket. `both`: half of the buckets are for what comes after.
    """
    distances = np.arange(-furthest, furthest + 1)
    count = len(table) // 2 if both else len(table)
    after = (distances > 0) * count if both else 0
    away = np.abs(distances) if both else np.maximum(-distances, 0)
    exact = count // 2
    growth = np.log(np.maximum(away, 1).astype(np.float32) / exact) / math.log(furthest / exact) * (count - exact)
    far = np.minimum(exact + growth.astype(np.int64), count - 1)
    numbers = after + np.where(away < exact, away, far)
    return np.ascontiguousarray(table[numbers].T, np.float32)
