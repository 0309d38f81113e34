"""Attention as a container: projections, norms and positions are its parts and steps; here is what happens between them.

Shapes: query (batch, heads, length, head_size); key, value (batch, groups, keys, head_size); states (batch, source, hidden).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from glassformer.layers.attention import attend, pattern
from glassformer.layers.container import Container, Path, Plan, part
from glassformer.layers.forward_pass import ForwardPass
from glassformer.layers.mask import Mask


class AttentionContainer(Container):
    site_prefix = "attention"  # the first word of its site names
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks_name: str = ""  # a parameter: a score for each head that takes its part of the attention weights
    dropout_path: Path = ()  # the module that drops out attention weights; without one, `dropout` is the rate
    dropout: Any

    @property
    def sink_scores(self) -> Tensor | None:
        return getattr(self, self.sinks_name) if self.sinks_name else None

    @property
    def dropout_rate(self) -> float:
        """The share of attention weights to drop; 0 outside training."""
        if self.dropout_path:
            module = part(self, self.dropout_path)
            return module.p if module.training else 0.0
        return self.dropout if self.training else 0.0

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, p: ForwardPass, distance_key: Tensor | None = None,
        distance_query: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """All heads' outputs, side by side: (batch, length, heads · head_size)."""
        mask = p.mask
        if p.cache is not None:
            assert self.block_index is not None
            key, value = p.cache.update(key, value, self.block_index)
        if p.distances is not None:
            mask = mask.with_bias(self._distance_bias(query, key, p, distance_key, distance_query))
        return self._joined_heads(query, key, value, mask, p)

    def _distance_bias(
        self, query: Tensor, key: Tensor, p: ForwardPass, distance_key: Tensor | None, distance_query: Tensor | None
    ) -> Tensor:
        """A query meets the key of each distance, and a key the query of it (https://arxiv.org/abs/2006.03654)."""
        assert p.distances is not None
        shape = (*query.shape[:3], key.shape[2])
        numbers = p.distances.numbers.expand(shape)
        bias = query.new_zeros(shape)
        if distance_key is not None:
            bias = bias + (query @ distance_key.mT).gather(-1, numbers)
        if distance_query is not None:
            bias = bias + (key @ distance_query.mT).gather(-1, numbers.mT).mT
        return bias * self.scale

    def _joined_heads(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, p: ForwardPass) -> Tensor:
        heads = attend(query, key, value, mask, self.scale, self.window, self.dropout_rate, self.softcap, self.sink_scores)
        if p.tap is not None:
            heads = self._seen_heads(heads, query, key, value, mask, p)
        return heads.transpose(1, 2).reshape(len(query), query.shape[2], -1)

    def _seen_heads(self, heads: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Mask, p: ForwardPass) -> Tensor:
        """The sites of pattern and heads; the heads are computed from the pattern only where it is changed."""
        assert p.tap is not None
        site = self.site(f"{self.site_prefix}.pattern", p)
        if p.tap.wants(site):
            weights = pattern(query, key, mask, self.scale, self.window, self.softcap, self.sink_scores)
            weights = p.tap.apply(site, weights)
            if p.tap.changes(site):
                heads = weights @ value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
        return self.at_site(f"{self.site_prefix}.heads", heads, p)


class CrossAttentionContainer(AttentionContainer):
    """A decoder's attention to the encoder's states."""

    site_prefix = "cross"
    key_plan: Plan
    value_plan: Plan

    def project_source(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the encoder's states."""
        return self.key_plan.run(self, states), self.value_plan.run(self, states)

    def attend_source(self, query: Tensor, p: ForwardPass) -> Tensor:
        assert p.source is not None
        assert self.block_index is not None
        key, value = p.source.keys_and_values(self.block_index, self.project_source)
        if p.tap is not None:
            key, value = self.at_site("cross.key", key, p), self.at_site("cross.value", value, p)
        return self._joined_heads(query, key, value, p.source.mask, p)
