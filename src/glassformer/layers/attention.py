"""Scaled dot-product attention, grouped (https://arxiv.org/abs/2305.13245), always by torch's fast kernel.

Whoever wants to see the attention pattern has it computed beside the fast path, for the layers asked for, and the
result stays bit for bit the same. Only a changed pattern goes into the output.

Shapes: x (batch, length, hidden); query (batch, heads, length, head_size); key, value (batch, groups, keys, head_size).
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.layers.linear import Linear
from glassformer.layers.mask import Mask
from glassformer.layers.part import Part
from glassformer.layers.passage import Pass


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float, window: int | None = None, dropout: float = 0.0
) -> Tensor:
    """Each head's weighted mean of the values it looks at."""
    everything, square = mask.shortcut(window)
    added = None if everything or square else mask.added(window)
    grouped = query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(
        query, key, value, added, dropout, is_causal=square, scale=scale, enable_gqa=grouped
    )


def pattern(query: Tensor, key: Tensor, mask: Mask, scale: float, window: int | None = None) -> Tensor:
    """The weights of that mean: (batch, heads, length, keys), each row summing to one."""
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = (query.to(wide) @ key.to(wide).mT) * scale
    if mask.bias is not None:
        scores = scores + mask.bias
    return scores.masked_fill(~mask.visible(window), -torch.inf).softmax(-1).to(query.dtype)


class Attention(Part):
    """Self-attention. A family overrides `project` for other projections, `place` for what it does before the meeting."""

    where: ClassVar[str] = "attention"  # the first word of its sites
    names: ClassVar[tuple[str, str, str, str]] = ("q_proj", "k_proj", "v_proj", "o_proj")
    rotary = "default"  # which of the pass's rotary tables this layer turns by
    window: int | None = None

    def __init__(self, hidden: int, heads: int, groups: int, size: int, *, bias: bool, output_bias: bool) -> None:
        super().__init__()
        self.size = size
        self.scale = size**-0.5
        self.dropout: float | nn.Dropout = 0.0
        sizes = ((hidden, heads * size, bias), (hidden, groups * size, bias), (hidden, groups * size, bias))
        for name, shape in zip(self.names, (*sizes, (heads * size, hidden, output_bias)), strict=True):
            if name:  # an empty one is made elsewhere
                self.add_module(name, Linear(*shape))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of these tokens, split into heads."""
        query, key, value = (self.split(getattr(self, name)(x)) for name in self.names[:3])
        return query, key, value

    def place(self, query: Tensor, key: Tensor, p: Pass) -> tuple[Tensor, Tensor]:
        """Put positions into query and key, in families that turn them."""
        return query, key

    def mix(self, joined: Tensor) -> Tensor:
        """All heads' outputs to what is added to the stream."""
        return getattr(self, self.names[3])(joined)

    def forward(self, x: Tensor, p: Pass) -> Tensor:
        return self.touch(f"{self.where}.update", self.mix(self.look(x, p)), p)

    def look(self, x: Tensor, p: Pass) -> Tensor:
        """All heads' outputs, side by side: (batch, length, heads · head_size)."""
        x = self.touch(f"{self.where}.input", x, p)
        query, key, value, mask = self.meet(x, p)
        heads = attend(query, key, value, mask, self.scale, self.window, self.dropping)
        if p.tap is not None:
            heads = self.watched(heads, query, key, value, mask, p)
        return heads.transpose(1, 2).reshape(*x.shape[:-1], -1)

    def meet(self, x: Tensor, p: Pass) -> tuple[Tensor, Tensor, Tensor, Mask]:
        """Queries, the keys and values that they look at, and who may look at whom."""
        query, key, value = self.project(x)
        query, key = self.place(query, key, p)
        if p.tap is not None:
            query, key = self.touch("attention.query", query, p), self.touch("attention.key", key, p)
            value = self.touch("attention.value", value, p)
        if p.cache is not None:
            assert self.number is not None
            key, value = p.cache.update(key, value, self.number)
        return query, key, value, p.mask

    @property
    def dropping(self) -> float:
        """The share of attention weights to drop: none outside training."""
        if isinstance(self.dropout, nn.Dropout):
            return self.dropout.p if self.dropout.training else 0.0
        return self.dropout if self.training else 0.0

    def split(self, x: Tensor) -> Tensor:
        """(batch, length, heads · head_size) → (batch, heads, length, head_size)"""
        return x.view(*x.shape[:-1], -1, self.size).transpose(1, 2)

    def watched(self, heads: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Mask, p: Pass) -> Tensor:
        """Show pattern and heads; use the pattern only if somebody changed it."""
        assert p.tap is not None
        site = self.site(f"{self.where}.pattern")
        if p.tap.wants(site):
            weights = p.tap.touch(site, pattern(query, key, mask, self.scale, self.window))
            if p.tap.changes(site):
                heads = weights @ value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
        return self.touch(f"{self.where}.heads", heads, p)


class RotaryAttention(Attention):
    """Attention whose queries and keys are turned by their positions."""

    def place(self, query: Tensor, key: Tensor, p: Pass) -> tuple[Tensor, Tensor]:
        rotary = p.rotary[self.rotary]
        return rotary.turn(query), rotary.turn(key)


class CrossAttention(Attention):
    """The decoder's look at the encoder's states; a mixin, put before a family's own attention."""

    where = "cross"

    def project_source(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the encoder's states."""
        key, value = (self.split(getattr(self, name)(states)) for name in self.names[1:3])
        return key, value

    def meet(self, x: Tensor, p: Pass) -> tuple[Tensor, Tensor, Tensor, Mask]:
        assert p.source is not None
        assert self.number is not None
        query = self.split(getattr(self, self.names[0])(x))
        key, value = p.source.keys(self.number, self.project_source)
        if p.tap is not None:
            query, key = self.touch("cross.query", query, p), self.touch("cross.key", key, p)
            value = self.touch("cross.value", value, p)
        return query, key, value, p.source.mask
