"""Random models for decode.cu, and a plain statement of its order of sums: see engine/gpu/order.py."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from glassformer.engine.gpu.order import SEGMENT
from glassformer.engine.gpu.persistent.row_decoder import RowWeights
from tests.engine.gpu.reference import Floats, RandomModel, rotation_table

COLUMNS_OF_16 = (
    0,
    1,
    4,
    5,
    8,
    9,
    12,
    13,
    2,
    3,
    6,
    7,
    10,
    11,
    14,
    15,
)  # as the simulated instruction walks four lanes' fours


def row_weights(model: RandomModel, positions: int, dtype: torch.dtype = torch.bfloat16) -> RowWeights:
    """The weights of a model as the kernel reads them; of shapes without head norms or biases none."""
    shape = model.shape

    def joined(name: str, layer: int) -> Tensor:
        return torch.cat([part.data for part in model.matrices(name, layer)]).contiguous().to(dtype)

    layers = [
        (joined("qkv", layer), joined("output", layer), joined("gate_up", layer), joined("down", layer))
        for layer in range(shape.layers)
    ]
    return RowWeights(
        layers,
        joined("head", shape.layers),
        model.stored["embedding", 0].data.to(dtype),
        torch.from_numpy(model.norms),
        torch.from_numpy(rotation_table(positions, shape.head_size)),
        torch.from_numpy(model.head_norms) if shape.head_norms else None,
        torch.from_numpy(model.qkv_bias) if shape.qkv_bias else None,
    )


def product(weights: Floats, x: Floats) -> Floats:
    """(rows): a sum over segments, each one chain from zero; the numbers are those of the weights' type already."""
    total = np.zeros(len(weights), np.float32)
    padded = -len(x) % 16
    weights, x = np.pad(weights, ((0, 0), (0, padded))), np.pad(x, (0, padded))
    for first in range(0, len(x), SEGMENT):
        chain = np.zeros(len(weights), np.float32)
        for start in range(first, min(first + SEGMENT, len(x)), 16):
            for column in COLUMNS_OF_16:
                chain = chain + weights[:, start + column] * x[start + column]
        total = total + chain
    return total


def squares(x: Floats) -> np.float32:
    """The tree: four neighbours, a segment's eight sixteens, a sixteen's four fours, segments."""
    segments = np.pad(x * x, (0, -len(x) % SEGMENT)).reshape(-1, SEGMENT // 16, 4, 4)
    fours = _tree(segments, 3)  # (segments, sixteens, fours)
    sums = _tree(_tree(fours, 1), 1)
    width = 1 << (len(sums) - 1).bit_length()
    total: np.float32 = _tree(np.pad(sums, (0, width - len(sums))), 0)[()]
    return total


def _tree(values: Floats, axis: int) -> Floats:
    """Sums of neighbours, until one is left."""
    while values.shape[axis] > 1:
        even, odd = (np.take(values, range(first, values.shape[axis], 2), axis) for first in (0, 1))
        values = even + odd
    return values.squeeze(axis)
