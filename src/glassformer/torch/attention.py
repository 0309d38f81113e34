"""Scaled dot-product attention, grouped (https://arxiv.org/abs/2305.13245), by torch's fast kernel wherever it can.

A watched attention pattern is computed in addition to the fast path, for the watched layers only, so that the result
stays bit for bit the same. Only a changed pattern goes into the output.

Shapes: x (batch, length, hidden); query (batch, heads, length, head_size); key, value (batch, groups, keys, head_size).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.ops.module_steps import Path, part
from glassformer.ops.positions import PositionScale
from glassformer.torch.container import Container, ContainerPlan
from glassformer.torch.forward_pass import ForwardPass
from glassformer.torch.layers import Linear
from glassformer.torch.mask import Mask


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


class TokenSubset(NamedTuple):
    """Some tokens of each row: where they stand, with others behind them where a row has fewer than another."""

    columns: Tensor  # (batch, 1, most, 1)
    present: Tensor  # the same, False where it is another one

    @classmethod
    def of(cls, tokens: Tensor) -> TokenSubset:
        """`tokens`: (batch, length), True for those that are chosen."""
        columns = tokens.int().argsort(dim=-1, descending=True, stable=True)[:, : int(tokens.sum(-1).max())]
        return cls(columns[:, None, :, None], tokens.gather(1, columns)[:, None, :, None])

    def taken(self, heads: Tensor) -> Tensor:
        """Theirs alone, of (batch, heads, length, size)."""
        return heads.gather(2, self.columns.expand(-1, heads.shape[1], -1, heads.shape[3]))

    def put(self, theirs: Tensor, heads: Tensor) -> Tensor:
        """All tokens' heads, with theirs in place."""
        theirs = theirs.where(self.present, self.taken(heads))
        return heads.scatter(2, self.columns.expand_as(theirs), theirs)


def is_hooked(layer: nn.Module) -> bool:
    """Whether a product is more than its matrix: somebody looks on, or adds to it."""
    plain = type(layer) is Linear and layer.product is None
    return not plain or bool(layer._forward_hooks or layer._forward_pre_hooks)


class Attention(Container):
    """Projections, norms and positions are its parts and steps; here is what happens between them."""

    site_prefix = "attention"  # the first word of its site names
    cache_layer: int  # its place among those whose keys and values are remembered
    scale: float
    window: int | None = None
    chunk: int | None = None  # tokens see none of another chunk of so many
    softcap: float | None = None
    position_scale: PositionScale | None = None
    slopes: tuple[float, ...] | None = None
    shares: int | None = None  # the block whose keys and values these heads attend to
    shared: bool | None = None  # whether later blocks share this one's
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
            key, value = p.cache.update(key, value, self.cache_layer)
        if self.shared:
            assert p.shared is not None
            assert self.block_index is not None
            p.shared[self.block_index] = key, value
        if self.chunk is not None:
            mask = mask.in_chunks(self.chunk)
        if self.slopes is not None:
            mask = mask.with_slopes(self.slopes, query.dtype)
        if self.position_scale is not None:
            query = query * self._growth(self.position_scale, p.positions, query)
        if p.distances is not None:
            mask = mask.with_bias(self._distance_bias(query, key, p, distance_key, distance_query))
        return self._joined_heads(query, key, value, mask, p)

    def attend_shared(self, query: Tensor, p: ForwardPass) -> Tensor:
        """The same with the keys and values that an earlier block has made in this pass, and remembers of others."""
        assert p.shared is not None
        assert self.shares is not None
        return self._joined_heads(query, *p.shared[self.shares], p.mask, p)

    def attend_global(
        self, query: Tensor, key: Tensor, value: Tensor, global_query: Tensor | None, global_key: Tensor | None,
        global_value: Tensor | None, p: ForwardPass,
    ) -> Tensor:  # fmt: skip
        """The same within a window, but for global tokens, which all see and which see all; without any, the last three are
        None."""
        if global_query is None or global_key is None or global_value is None:
            return self.attend(query, key, value, p)
        assert p.mask.global_tokens is not None
        chosen = TokenSubset.of(p.mask.global_tokens)
        queries, every = chosen.taken(global_query), p.mask.without_order()
        heads = attend(query, key, value, p.mask, self.scale, self.window, self.dropout_rate)
        heads = chosen.put(attend(queries, global_key, global_value, every, self.scale, None, self.dropout_rate), heads)
        if p.tap is not None:
            site = self.site(f"{self.site_prefix}.pattern", p)
            if p.tap.wants(site):
                weights = pattern(query, key, p.mask, self.scale, self.window)
                weights = p.tap.apply(site, chosen.put(pattern(queries, global_key, every, self.scale), weights))
                if p.tap.changes(site):
                    heads = chosen.put(chosen.taken(weights) @ global_value, weights @ value)
            heads = self.at_site(f"{self.site_prefix}.heads", heads, p)
        return heads.transpose(1, 2).flatten(2)

    @staticmethod
    def _growth(scale: PositionScale, positions: Tensor, query: Tensor) -> Tensor:
        """By what scores grow with the position of their query: (batch or 1, 1, length, 1)."""
        grown = 1 + scale.beta * torch.log1p(torch.floor((positions + scale.first) / scale.length))
        return grown[:, None, :, None].to(query.dtype)

    def attend_latent(
        self, query: Tensor, key: Tensor, value: Tensor, latent: Tensor, shared: Tensor, expanded: Path, p: ForwardPass
    ) -> Tensor:
        """The same, where latents are remembered, and the part of the keys that all heads share; `expanded`: the module
        that makes keys and values of latents."""
        if p.cache is None:
            return self._joined_heads(query, key, value, p.mask, p)
        latent, shared = p.cache.update(latent, shared, self.cache_layer)
        if latent.shape[2] == query.shape[2]:  # nothing comes before
            return self._joined_heads(query, key, value, p.mask, p)
        layer, split = part(self, expanded), (key.shape[3] - shared.shape[3], value.shape[3])
        if is_hooked(layer):  # all keys and values are to be seen
            made = layer(latent.squeeze(1)).unflatten(-1, (query.shape[1], -1)).transpose(1, 2)
            untouched, value = made.split(split, -1)
            key = torch.cat((untouched, shared.expand(-1, query.shape[1], -1, -1)), -1)
            return self._joined_heads(query, key, value, p.mask, p)
        weights = layer.weight.unflatten(0, (query.shape[1], -1))
        to_key, to_value = weights[:, : split[0]], weights[:, split[0] :]
        untouched, turned = query[..., : split[0]], query[..., split[0] :]
        query, key = torch.cat((untouched @ to_key, turned), -1), torch.cat((latent, shared), -1)
        return self._joined_heads(query, key, latent, p.mask, p, to_value.mT)

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

    def _joined_heads(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, p: ForwardPass, after: Tensor | None = None
    ) -> Tensor:
        """`after`: what each head's weighted mean of values is multiplied with, (heads, value size, head_size)."""
        heads = attend(query, key, value, mask, self.scale, self.window, self.dropout_rate, self.softcap, self.sink_scores)
        if after is not None:
            heads = heads @ after
        if p.tap is not None:
            heads = self._seen_heads(heads, query, key, value, mask, p, after)
        return heads.transpose(1, 2).reshape(len(query), query.shape[2], -1)

    def _seen_heads(
        self, heads: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Mask, p: ForwardPass, after: Tensor | None
    ) -> Tensor:
        """The sites of pattern and heads; the heads are computed from the pattern only where it is changed."""
        assert p.tap is not None
        site = self.site(f"{self.site_prefix}.pattern", p)
        if p.tap.wants(site):
            weights = pattern(query, key, mask, self.scale, self.window, self.softcap, self.sink_scores)
            weights = p.tap.apply(site, weights)
            if p.tap.changes(site):
                heads = weights @ value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
                heads = heads if after is None else heads @ after
        return self.at_site(f"{self.site_prefix}.heads", heads, p)


class CrossAttention(Attention):
    """A decoder's attention to the encoder's states."""

    site_prefix = "cross"
    key_plan: ContainerPlan
    value_plan: ContainerPlan

    def project_source(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the encoder's states."""
        return self.key_plan.run(self, states), self.value_plan.run(self, states)

    def attend_source(self, query: Tensor, p: ForwardPass) -> Tensor:
        assert p.source is not None
        key, value = p.source.keys_and_values(self.cache_layer, self.project_source)
        if p.tap is not None:
            key, value = self.at_site("cross.key", key, p), self.at_site("cross.value", value, p)
        return self._joined_heads(query, key, value, p.source.mask, p)
