"""Three kinds of positions; the fourth, a learned table, is an Embedding.

    rotary       each pair of a head's dimensions is rotated by an angle that grows with the position (Llama and others)
    sinusoidal   sines and cosines of the position are added to the vectors (the from-scratch model)
    relative     distances fall into buckets, each of which has a learned bias on the attention scores (T5)

Shapes: positions (batch, length); cosine and sine (batch, 1, length, rotated numbers of a head); distances (batch, length,
keys).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from glassformer.ops.module_steps import Path, Values, part
from glassformer.ops.positions import DistanceBuckets, SinusoidTable
from glassformer.ops.rope import Rope
from glassformer.torch.container import FamilyModule
from glassformer.torch.forward_pass import DistanceVectors, ForwardPass, RotaryTables


class RotaryPositions(NamedTuple):
    """The positions of a pass's tokens, and how long each row's text is: some kinds of RoPE depend on it."""

    positions: Tensor
    real_tokens: Tensor | None = None  # (batch, keys), False for padding; None: there is none
    row_lengths: Sequence[int] | None = None  # where texts do not end with these tokens

    def lengths(self) -> list[int]:
        """The length of each row's text, by itself or, if it is not known, by how far its positions reach."""
        if self.row_lengths is not None:
            return list(self.row_lengths)
        positions = self.positions
        if self.real_tokens is not None:
            positions = positions.where(self.real_tokens[:, -positions.shape[1] :], 0)
        lengths: list[int] = (positions.amax(-1) + 1).tolist()
        return lengths


class RotaryEmbedding(FamilyModule):
    """Positions to rotary tables, computed in float32 whatever the model's dtype."""

    def __init__(self, rope: Rope, size: int) -> None:
        super().__init__()
        self.rope = rope
        self.size = size
        self._frequencies: Tensor | None = None

    def forward(self, rows: RotaryPositions, dtype: torch.dtype) -> RotaryTables:
        frequencies = self.frequencies(rows)
        angles = rows.positions[:, None, :, None].to(frequencies.dtype) * frequencies  # (batch, 1, length, size/2)
        cosine, sine = angles.cos(), angles.sin()
        if self.rope.scale != 1.0:
            cosine, sine = cosine * self.rope.scale, sine * self.rope.scale
        cosine, sine = self.in_place(cosine, cosine), self.in_place(-sine, sine)
        return RotaryTables(cosine.to(dtype), sine.to(dtype), self.rope.interleaved)

    def in_place(self, first: Tensor, second: Tensor) -> Tensor:
        """Values for the first and for the second number of each pair, where these stand in a head."""
        return torch.stack((first, second), -1).flatten(-2) if self.rope.interleaved else torch.cat((first, second), -1)

    def frequencies(self, rows: RotaryPositions) -> Tensor:
        """RoPE's frequencies, kept on the device, (size/2); of kinds that depend on the length (batch, 1, 1, size/2)."""
        device = rows.positions.device
        if self.rope.depends_on_length:
            by_row = np.stack([self.rope.frequencies(self.size, length) for length in rows.lengths()])
            return torch.from_numpy(by_row).to(device)[:, None, None]
        if self._frequencies is None or self._frequencies.device != device:
            self._frequencies = torch.from_numpy(self.rope.frequencies(self.size)).to(device)
        return self._frequencies


class SinusoidalEmbedding(FamilyModule):
    """A table of sinusoids, all sines before all cosines; some checkpoints hold it."""

    weight: Tensor

    def __init__(self, table: SinusoidTable) -> None:
        super().__init__()
        self.register_buffer("weight", torch.from_numpy(table.values()), persistent=bool(table.stored))

    def forward(self, positions: Tensor) -> Tensor:
        return self.weight[positions]


def sinusoidal_positions(positions: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Sinusoidal positions (https://arxiv.org/abs/1706.03762): a sine and a cosine for each of size/2 wavelengths."""
    rates = torch.exp(torch.arange(0, size, 2, device=positions.device).float() * (-math.log(10000.0) / size))
    angles = positions[..., None] * rates
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)[..., :size].to(dtype)


def add_sinusoids(read: int, write: int, m: Any, values: Values, p: ForwardPass) -> None:
    x = values[read]
    values[write] = x + sinusoidal_positions(p.positions, x.shape[-1], x.dtype)


def relative_buckets(distances: Tensor, count: int, max_distance: int, bidirectional: bool) -> Tensor:
    """Distances to bucket numbers: near ones have a bucket each, far ones share buckets of growing width.

    `bidirectional`: half of the buckets are for what comes after; otherwise that is never seen.
    """
    after = torch.zeros_like(distances)
    if bidirectional:
        count //= 2
        after = (distances > 0) * count
    magnitudes = distances.abs() if bidirectional else (-distances).clamp(min=0)
    exact = count // 2
    growth = torch.log(magnitudes.clamp(min=1).float() / exact) / math.log(max_distance / exact) * (count - exact)
    far = (exact + growth.long()).clamp(max=count - 1)
    return after + torch.where(magnitudes < exact, magnitudes, far)


# What every block of a stack reads: put into the pass before its first one


def with_distance_biases(path: Path, max_distance: int, bidirectional: bool, m: Any, p: ForwardPass) -> ForwardPass:
    """A bias of each head for each distance, added to the scores."""
    table = part(m, path)
    distances = p.mask.distances()[:, 0]  # (1 or batch, length, keys)
    buckets = relative_buckets(distances, table.num_embeddings, max_distance, bidirectional)
    return replace(p, mask=p.mask.with_bias(table(buckets).permute(0, 3, 1, 2)))


def with_distance_vectors(path: Path, norm: Path | None, distances: DistanceBuckets, m: Any, p: ForwardPass) -> ForwardPass:
    """A vector for each bucket of distances."""
    vectors: Tensor = part(m, path).weight
    furthest = distances.max_distance
    places = (-p.mask.distances()).clamp(-furthest, furthest) + furthest
    buckets = torch.from_numpy(distances.numbers()).to(vectors.device, torch.long)[places]
    return replace(p, distances=DistanceVectors(vectors if norm is None else part(m, norm)(vectors), buckets))


def distance_vectors(path: Path, write: int, m: Any, values: Values, p: ForwardPass) -> None:
    """The vectors of distances as an attention reads them."""
    assert p.distances is not None
    values[write] = part(m, path)(p.distances.vectors[None])
