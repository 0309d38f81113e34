"""Scaled dot-product attention, grouped (https://arxiv.org/abs/2305.13245), always by torch's fast kernel.

Whoever wants to see the attention pattern has it computed beside the fast path, for the layers asked for, and the
result stays bit for bit the same. Only a changed pattern goes into the output.

Shapes: x (batch, length, hidden); query (batch, heads, length, head_size); key, value (batch, groups, keys, head_size).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.layers.linear import Linear
from glassformer.layers.mask import Mask
from glassformer.layers.part import Part
from glassformer.layers.passage import Pass


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float, window: int | None = None, dropout: float = 0.0
) -> Tensor:
    """Each head's weighted mean of the values it looks at."""
    everything, square = mask.shortcut(window)
    visible = None if everything or square else mask.visible(window)
    grouped = query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(
        query, key, value, visible, dropout, is_causal=square, scale=scale, enable_gqa=grouped
    )


def pattern(query: Tensor, key: Tensor, mask: Mask, scale: float, window: int | None = None) -> Tensor:
    """The weights of that mean: (batch, heads, length, keys), each row summing to one."""
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scores = (query.float() @ key.float().mT) * scale
    return scores.masked_fill(~mask.visible(window), -torch.inf).softmax(-1).to(query.dtype)


class Attention(Part):
    """Self-attention with separate projections. A family overrides `place` for what it does before the meeting."""

    rotary = "default"  # which of the pass's rotary tables this layer turns by

    def __init__(
        self,
        hidden: int,
        heads: int,
        groups: int,
        size: int,
        *,
        bias: bool = False,
        output_bias: bool = False,
        window: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.size = size
        self.scale = size**-0.5
        self.window = window
        self.dropout = dropout
        self.q_proj = Linear(hidden, heads * size, bias)
        self.k_proj = Linear(hidden, groups * size, bias)
        self.v_proj = Linear(hidden, groups * size, bias)
        self.o_proj = Linear(heads * size, hidden, output_bias)

    def place(self, query: Tensor, key: Tensor, p: Pass) -> tuple[Tensor, Tensor]:
        """Put positions into query and key."""
        rotary = p.rotary[self.rotary]
        return rotary.turn(query), rotary.turn(key)

    def forward(self, x: Tensor, p: Pass) -> Tensor:
        x = self.touch("attention.input", x, p)
        query, key, value = self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))
        query, key = self.place(query, key, p)
        if p.tap is not None:
            query, key = self.touch("attention.query", query, p), self.touch("attention.key", key, p)
            value = self.touch("attention.value", value, p)
        if p.cache is not None:
            assert self.block is not None
            key, value = p.cache.update(key, value, self.block)
        heads = attend(query, key, value, p.mask, self.scale, self.window, self.dropout if self.training else 0.0)
        if p.tap is not None:
            heads = self.watched(heads, query, key, value, p)
        joined = heads.transpose(1, 2).reshape(*x.shape[:-1], -1)  # (batch, length, heads · head_size)
        return self.touch("attention.update", self.o_proj(joined), p)

    def split(self, x: Tensor) -> Tensor:
        """(batch, length, heads · head_size) → (batch, heads, length, head_size)"""
        return x.view(*x.shape[:-1], -1, self.size).transpose(1, 2)

    def watched(self, heads: Tensor, query: Tensor, key: Tensor, value: Tensor, p: Pass) -> Tensor:
        """Show pattern and heads; use the pattern only if somebody changed it."""
        assert p.tap is not None
        site = self.site("attention.pattern")
        if p.tap.wants(site):
            weights = p.tap.touch(site, pattern(query, key, p.mask, self.scale, self.window))
            if p.tap.changes(site):
                heads = weights @ value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
        return self.touch("attention.heads", heads, p)
