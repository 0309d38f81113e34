"""What goes through a forward pass.

Shapes: cosine and sine (batch, 1, length, head_size).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.cache import Cache
from glassformer.layers.mask import Mask
from glassformer.sites import Tap


class Rotary(NamedTuple):
    """The turns of one pass's positions, ready to apply to any layer's queries and keys."""

    cosine: Tensor
    sine: Tensor  # its first half negated, so that turning is two products and a sum

    def turn(self, x: Tensor) -> Tensor:
        """(batch, heads, length, head_size), turned. Pairs are half a head apart."""
        return torch.addcmul(x * self.cosine, x.roll(x.shape[-1] // 2, -1), self.sine)


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass: everything that its layers need to know, and nothing ambient."""

    mask: Mask
    rotary: Mapping[str, Rotary] = field(default_factory=dict)
    cache: Cache | None = None
    tap: Tap | None = None  # None when nobody watches
