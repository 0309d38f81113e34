"""What the layers of a forward pass share: mask, positions, cache, tap.

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


class RotaryTables(NamedTuple):
    """Cosines and sines of one pass's positions, for every layer's queries and keys."""

    cosine: Tensor
    sine: Tensor  # its first half negated, so that rotating is two products and a sum

    def rotate(self, x: Tensor) -> Tensor:
        """(batch, heads, length, head_size), rotated. Pairs are half a head apart."""
        return torch.addcmul(x * self.cosine, x.roll(x.shape[-1] // 2, -1), self.sine)


class CrossAttentionSource(Protocol):
    """The encoder's side of a decoder's pass: what cross-attention looks at."""

    @property
    def mask(self) -> Mask:
        """Which of the source's tokens are there."""

    def keys_and_values(self, layer: int, project: Project) -> tuple[Tensor, Tensor]:
        """A layer's keys and values of the source, projected on first use."""


class EncodedSource(NamedTuple):
    """The encoder's states, and a cache of the keys and values projected from them."""

    states: Tensor
    mask: Mask
    cache: EncoderDecoderCache | None = None

    def keys_and_values(self, layer: int, project: Project) -> tuple[Tensor, Tensor]:
        if self.cache is None:
            return project(self.states)
        return self.cache.cross_keys_and_values(layer, lambda: project(self.states))


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """One forward pass, `p` in every layer: all that layers need to know, so that nothing is global."""

    mask: Mask
    positions: Tensor
    rotary: Mapping[str, RotaryTables] = field(default_factory=dict)
    cache: Cache | None = None
    tap: Tap | None = None  # None when nobody watches
    source: CrossAttentionSource | None = None  # in the decoder of an encoder-decoder
    segments: Tensor | None = None  # token types, in encoders that were trained on pairs of texts
