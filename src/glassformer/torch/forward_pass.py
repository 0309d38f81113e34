"""What the layers of a forward pass share: mask, positions, cache, tap.

Shapes: cosine and sine (batch, 1, length, rotated numbers of a head); positions and segments (batch or 1, length); the
encoder's states (batch, source, hidden).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from glassformer.ground.sites import Tap
from glassformer.torch.cache import Cache, EncoderDecoderCache
from glassformer.torch.mask import Mask

Project = Callable[[Tensor], tuple[Tensor, Tensor]]  # states to keys and values


class RotaryTables(NamedTuple):
    """Cosines and sines of one pass's positions, for every layer's queries and keys."""

    cosine: Tensor
    sine: Tensor  # negated for the first number of each pair, so that rotating is two products and a sum
    interleaved: bool = False  # whether pairs are neighbors; else they are half of what is rotated apart

    def rotate(self, x: Tensor) -> Tensor:
        """(batch, heads, length, head_size), its first numbers rotated: as many as there are cosines."""
        if (size := self.cosine.shape[-1]) < x.shape[-1]:
            return torch.cat((self.rotate(x[..., :size]), x[..., size:]), -1)
        partners = x.reshape(*x.shape[:-1], -1, 2).flip(-1).flatten(-2) if self.interleaved else x.roll(size // 2, -1)
        return torch.addcmul(x * self.cosine, partners, self.sine)


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


class DistanceVectors(NamedTuple):
    """A vector for each bucket of distances between tokens, and which of them stands for two tokens' distance."""

    vectors: Tensor  # (buckets, hidden)
    numbers: Tensor  # (batch or 1, 1, length, keys)


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
    distances: DistanceVectors | None = None  # in families whose attention weighs distances apart from content
    block_index: int | None = None  # which block this is, where several blocks are one module
    present: Tensor | None = None  # (batch, length), False for padding, where layers keep a state; None: there is none
    ids: Tensor | None = None  # of the tokens, where blocks have vectors of them beside what enters them
    embedded: Tensor | None = None  # what enters the first block, for the same
    layer_inputs: Tensor | None = None  # these vectors, those of all blocks side by side
    shared: dict[int, tuple[Tensor, Tensor]] | None = None  # keys and values that later blocks share, by block
    begin: tuple[int, Tensor] | None = None  # the first block that is computed, and what enters it; None: all are
