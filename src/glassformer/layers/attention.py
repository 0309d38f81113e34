"""Scaled dot-product attention, grouped (https://arxiv.org/abs/2305.13245), by torch's fast kernel wherever it can.

A watched attention pattern is computed in addition to the fast path, for the watched layers only, so that the result
stays bit for bit the same. Only a changed pattern goes into the output.

Shapes: x (batch, length, hidden); query (batch, heads, length, head_size); key, value (batch, groups, keys, head_size).
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.layers.family_module import FamilyModule
from glassformer.layers.forward_pass import ForwardPass
from glassformer.layers.linear import Linear
from glassformer.layers.mask import Mask


def soft_cap(scores: Tensor, cap: float | None) -> Tensor:
    """Scores squeezed smoothly between -cap and cap (https://arxiv.org/abs/2408.00118); None: as they are."""
    return scores if cap is None else cap * torch.tanh(scores / cap)


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float, window: int | None = None, dropout: float = 0.0,
    softcap: float | None = None, sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Each head's weighted mean of the values it looks at; with sinks, what they take is missing from it."""
    if softcap is not None or sinks is not None:  # which torch's kernel does not have
        weights = pattern(query, key, mask, scale, window, softcap, sinks)
        return F.dropout(weights, dropout) @ value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
    unmasked, plain_causal = mask.fast_path(window)
    attn_mask = None if unmasked or plain_causal else mask.attn_mask(window)
    grouped = query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout, is_causal=plain_causal, scale=scale, enable_gqa=grouped
    )


def pattern(
    query: Tensor, key: Tensor, mask: Mask, scale: float, window: int | None = None, softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The attention weights: (batch, heads, length, keys), each row summing to one, or to less where a sink takes a part.

    `sinks`: (heads,), a score beside those of the keys.
    """
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    dtype = torch.promote_types(query.dtype, torch.float32)
    scores = soft_cap((query.to(dtype) @ key.to(dtype).mT) * scale, softcap)
    if mask.bias is not None:
        scores = scores + mask.bias
    scores = scores.masked_fill(~mask.visible(window), -torch.inf)
    if sinks is not None:
        column = sinks.to(dtype)[None, :, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat((scores, column), -1).softmax(-1)[..., :-1].to(query.dtype)
    return scores.softmax(-1).to(query.dtype)


class Attention(FamilyModule):
    """Self-attention. A family overrides `project` for other projections, `prepare_query_key` for norms and positions."""

    site_prefix: ClassVar[str] = "attention"  # the first word of its site names
    projection_names: ClassVar[tuple[str, str, str, str]] = ("q_proj", "k_proj", "v_proj", "o_proj")
    rotary_name = "default"  # which of the pass's rotary tables this layer uses
    window: int | None = None
    softcap: float | None = None

    def __init__(self, hidden: int, heads: int, groups: int, size: int, *, bias: bool, output_bias: bool) -> None:
        super().__init__()
        self.head_size = size
        self.scale = size**-0.5
        self.dropout: float | nn.Dropout = 0.0
        sizes = ((hidden, heads * size, bias), (hidden, groups * size, bias), (hidden, groups * size, bias))
        for name, shape in zip(self.projection_names, (*sizes, (heads * size, hidden, output_bias)), strict=True):
            if name:  # the family makes the others itself
                self.add_module(name, Linear(*shape))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of these tokens, split into heads."""
        query, key, value = (self.split_heads(getattr(self, name)(x)) for name in self.projection_names[:3])
        return query, key, value

    def prepare_query_key(self, query: Tensor, key: Tensor, p: ForwardPass) -> tuple[Tensor, Tensor]:
        """What happens to query and key before attention: rotary positions, norms; nothing here."""
        return query, key

    def sink_scores(self) -> Tensor | None:
        """A score for each head that takes its part of the attention weights, in families that have sinks."""
        return None

    def project_output(self, joined: Tensor) -> Tensor:
        """All heads' outputs to what is added to the residual stream."""
        return getattr(self, self.projection_names[3])(joined)

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        return self.at_site(f"{self.site_prefix}.update", self.project_output(self.joined_heads(x, p)), p)

    def joined_heads(self, x: Tensor, p: ForwardPass) -> Tensor:
        """All heads' outputs, side by side: (batch, length, heads · head_size)."""
        x = self.at_site(f"{self.site_prefix}.input", x, p)
        query, key, value, mask = self.attention_inputs(x, p)
        heads = attend(query, key, value, mask, self.scale, self.window, self.dropout_rate, self.softcap, self.sink_scores())
        if p.tap is not None:
            heads = self.observe_heads(heads, query, key, value, mask, p)
        return heads.transpose(1, 2).reshape(*x.shape[:-1], -1)

    def attention_inputs(self, x: Tensor, p: ForwardPass) -> tuple[Tensor, Tensor, Tensor, Mask]:
        """Queries, the keys and values that they look at, and the mask between them."""
        query, key, value = self.project(x)
        query, key = self.prepare_query_key(query, key, p)
        if p.tap is not None:
            query, key = self.at_site("attention.query", query, p), self.at_site("attention.key", key, p)
            value = self.at_site("attention.value", value, p)
        if p.cache is not None:
            assert self.block_index is not None
            key, value = p.cache.update(key, value, self.block_index)
        return query, key, value, p.mask

    @property
    def dropout_rate(self) -> float:
        """The share of attention weights to drop; 0 outside training."""
        if isinstance(self.dropout, nn.Dropout):
            return self.dropout.p if self.dropout.training else 0.0
        return self.dropout if self.training else 0.0

    def split_heads(self, x: Tensor) -> Tensor:
        """(batch, length, heads · head_size) → (batch, heads, length, head_size)"""
        return x.view(*x.shape[:-1], -1, self.head_size).transpose(1, 2)

    def observe_heads(self, heads: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Mask, p: ForwardPass) -> Tensor:
        """The sites of pattern and heads; the heads are computed from the pattern only where it is changed."""
        assert p.tap is not None
        site = self.site(f"{self.site_prefix}.pattern", p)
        if p.tap.wants(site):
            sinks = self.sink_scores()
            weights = p.tap.apply(site, pattern(query, key, mask, self.scale, self.window, self.softcap, sinks))
            if p.tap.changes(site):
                heads = weights @ value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
        return self.at_site(f"{self.site_prefix}.heads", heads, p)


class RotaryAttention(Attention):
    """Attention with rotary positions: queries and keys are rotated by them."""

    def prepare_query_key(self, query: Tensor, key: Tensor, p: ForwardPass) -> tuple[Tensor, Tensor]:
        rotary = p.rotary[self.rotary_name]
        return rotary.rotate(query), rotary.rotate(key)


class DisentangledAttention(Attention):
    """Attention whose scores weigh content and distance apart (https://arxiv.org/abs/2006.03654): a query meets each key and
    the key of its distance; each key meets the query of its distance too."""

    def distance_heads(self, vectors: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Keys and queries of the distances' vectors, (1, heads, buckets, head_size); None for a term that is not there."""
        raise NotImplementedError

    def attention_inputs(self, x: Tensor, p: ForwardPass) -> tuple[Tensor, Tensor, Tensor, Mask]:
        query, key, value, mask = super().attention_inputs(x, p)
        if p.distances is None:
            return query, key, value, mask
        shape = (*query.shape[:3], key.shape[2])
        numbers = p.distances.numbers.expand(shape)
        distance_key, distance_query = self.distance_heads(p.distances.vectors[None])
        bias = query.new_zeros(shape)
        if distance_key is not None:
            bias = bias + (query @ distance_key.mT).gather(-1, numbers)
        if distance_query is not None:
            bias = bias + (key @ distance_query.mT).gather(-1, numbers.mT).mT
        return query, key, value, mask.with_bias(bias * self.scale)


class CrossAttention(Attention):
    """A decoder's attention to the encoder's states; a mixin, put before a family's own attention."""

    site_prefix = "cross"

    def project_source(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the encoder's states."""
        key, value = (self.split_heads(getattr(self, name)(states)) for name in self.projection_names[1:3])
        return key, value

    def attention_inputs(self, x: Tensor, p: ForwardPass) -> tuple[Tensor, Tensor, Tensor, Mask]:
        assert p.source is not None
        assert self.block_index is not None
        query = self.split_heads(getattr(self, self.projection_names[0])(x))
        key, value = p.source.keys_and_values(self.block_index, self.project_source)
        if p.tap is not None:
            query, key = self.at_site("cross.query", query, p), self.at_site("cross.key", key, p)
            value = self.at_site("cross.value", value, p)
        return query, key, value, p.source.mask
