"""Rotary positions: each pair of a head's dimensions is turned by an angle that grows with the position.

Shapes: positions (batch, length); cosine and sine (batch, 1, length, head_size).
"""

from __future__ import annotations

import torch
from torch import Tensor

from glassformer.blueprints.rope import Rope
from glassformer.layers.part import Part
from glassformer.layers.passage import Rotary


class RotaryEmbedding(Part):
    """Positions to their turns, computed in float32 whatever the model's dtype."""

    def __init__(self, rope: Rope, size: int) -> None:
        super().__init__()
        self.rope = rope
        self.size = size
        self._frequencies: Tensor | None = None

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Rotary:
        frequencies = self.frequencies(positions)
        angles = positions[:, None, :, None].to(frequencies.dtype) * frequencies  # (batch, 1, length, size/2)
        cosine, sine = angles.cos(), angles.sin()
        if self.rope.scale != 1.0:
            cosine, sine = cosine * self.rope.scale, sine * self.rope.scale
        return Rotary(torch.cat((cosine, cosine), -1).to(dtype), torch.cat((-sine, sine), -1).to(dtype))

    def frequencies(self, positions: Tensor) -> Tensor:
        """The ladder, kept on the device; only the dynamic kind must look how far the positions reach."""
        if self.rope.kind == "dynamic":
            return torch.from_numpy(self.rope.frequencies(self.size, int(positions.max()) + 1)).to(positions.device)
        if self._frequencies is None or self._frequencies.device != positions.device:
            self._frequencies = torch.from_numpy(self.rope.frequencies(self.size)).to(positions.device)
        return self._frequencies
