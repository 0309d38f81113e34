"""What goes through a forward pass.

Shapes: cosine and sine (batch, 1, length, head_size); positions and segments (batch or 1, length); the encoder's states
(batch, source, hidden).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from glassformer.layers.cache import Cache, EncoderDecoderCache
from glassformer.layers.mask import Mask
from glassformer.sites import Tap

Project = Callable[[Tensor], tuple[Tensor, Tensor]]  # states to keys and values


class Rotary(NamedTuple):
    """The turns of one pass's positions, ready to apply to any layer's queries and keys."""

    cosine: Tensor
    sine: Tensor  # its first half negated, so that turning is two products and a sum

    def turn(self, x: Tensor) -> Tensor:
        """(batch, heads, length, head_size), turned. Pairs are half a head apart."""
        return torch.addcmul(x * self.cosine, x.roll(x.shape[-1] // 2, -1), self.sine)


class Source(Protocol):
    """The encoder's side of a decoder's pass: what cross-attention looks at."""

    @property
    def mask(self) -> Mask:
        """Which of the source's tokens are there."""

    def keys(self, layer: int, project: Project) -> tuple[Tensor, Tensor]:
        """A layer's keys and values of the source, projected when first asked for."""


class Encoded(NamedTuple):
    """A `Source` in hand: the encoder's states, and a cache that keeps what is made of them."""

    states: Tensor
    mask: Mask
    cache: EncoderDecoderCache | None = None

    def keys(self, layer: int, project: Project) -> tuple[Tensor, Tensor]:
        if self.cache is None:
            return project(self.states)
        return self.cache.crossing(layer, lambda: project(self.states))


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass: everything that its layers need to know, and nothing ambient."""

    mask: Mask
    positions: Tensor
    rotary: Mapping[str, Rotary] = field(default_factory=dict)
    cache: Cache | None = None
    tap: Tap | None = None  # None when nobody watches
    source: Source | None = None  # in the decoder of an encoder-decoder
    segments: Tensor | None = None  # token types, in encoders that were trained on pairs of texts
