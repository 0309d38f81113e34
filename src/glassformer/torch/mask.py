"""The attention mask: who may look at whom.

Keys stand in columns; each query stands on one of them. A query sees the columns up to its own (causal) or all of them, not
further away than a layer's window, and no padding; but itself where it would see nothing else, so that there is always
something to average and never a NaN. Where several sequences share a row, none sees another. A caller's own mask takes the
place of all of this.

Shapes: columns (batch or 1, length); real_tokens (batch, keys), False for padding; sequences (batch, keys); the mask itself
(batch or 1, 1, length, keys); a bias (batch or 1, heads, length, keys).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from glassformer.ground.errors import InputError


def chosen_tokens(mask: Tensor, shape: Sequence[int]) -> Tensor:
    """A caller's `global_attention_mask`, checked: True for global tokens; `shape`: (batch, source)."""
    if not isinstance(mask, Tensor) or mask.shape != tuple(shape):
        what = f"has shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else f"is a {type(mask).__name__}"
        raise InputError(f"global_attention_mask {what}; it must be a tensor of {tuple(shape)}, as the source's tokens are.")
    if not torch.compiler.is_compiling() and bool(((mask != 0) & (mask != 1)).any()):
        raise InputError("global_attention_mask must hold 1 for global tokens and 0 for all others.")
    return mask.bool()


class Mask:
    """The mask of one pass, computed for each window on first use, then shared by all layers with that window."""

    __slots__ = (
        "_attn_masks", "_chunked", "_explicit", "_sloped", "_tree", "_visible", "bias", "causal", "chunk", "columns",
        "global_tokens", "keys", "plain_causal", "real_tokens", "self_attention", "sequences", "unmasked",
    )  # fmt: skip

    def __init__(
        self,
        columns: Tensor,
        keys: int,
        *,
        causal: bool = True,
        real_tokens: Tensor | None = None,
        aligned: bool = True,
        self_attention: bool = True,
        explicit: Tensor | None = None,
        sequences: Tensor | None = None,
    ) -> None:
        """`aligned`: all rows' queries stand on the same, last columns, so that common cases need no tensor at all.
        `self_attention`: queries and keys are the same tokens, so that each may see itself, unlike in cross-attention.
        `explicit`: the caller's own mask, (batch or 1, heads or 1, length, keys), in every layer whatever its window: True
        where a query sees a key, or numbers to be added to the scores.
        `sequences`: which of several sequences each token of a row belongs to; queries and keys are the same tokens."""
        self.columns = columns
        self.keys = keys
        self.causal = causal
        self.real_tokens = real_tokens
        self.self_attention = self_attention
        self.sequences = sequences
        self.bias: Tensor | None = None
        self.chunk: int | None = None  # no query sees a key of another chunk of so many tokens
        self.global_tokens: Tensor | None = None  # (batch, keys), True for those that every query sees, whatever its window
        self._explicit: Tensor | None = None
        if explicit is not None:
            is_bool = explicit.dtype == torch.bool
            self.bias = None if is_bool else explicit
            seen = explicit | ~explicit.any(-1, keepdim=True) if is_bool else explicit.new_ones((), dtype=torch.bool)
            self._explicit = seen.expand(explicit.shape)
        length = columns.shape[1]
        unpadded = aligned and real_tokens is None and explicit is None and sequences is None
        self.unmasked = unpadded and (length == 1 or not causal)  # each query sees every key
        self.plain_causal = unpadded and causal and 1 < length == keys  # the plain triangle
        self._visible: dict[int | None, Tensor] = {}
        self._attn_masks: dict[int | None, Tensor] = {}
        self._sloped: dict[tuple[Any, ...], Mask] = {}
        self._chunked: dict[int, Mask] = {}
        self._tree: tuple[Tensor, Tensor, Tensor] | None = None

    @property
    def present(self) -> Tensor | None:
        """Which of the queries' tokens are no padding; None: all."""
        return None if self.real_tokens is None else self.real_tokens[:, self.keys - self.columns.shape[1] :]

    def fast_path(self, window: int | None) -> tuple[bool, bool]:
        """Whether nothing is hidden, and whether this is the plain causal triangle: torch needs no mask for either."""
        if self.bias is not None or min(window or self.keys, self.chunk or self.keys) < self.keys:
            return False, False
        return self.unmasked, self.plain_causal

    def visible(self, window: int | None = None) -> Tensor:
        """True where a query sees a key."""
        if self._explicit is not None:
            return self._explicit
        if window is not None and window >= self.keys:
            window = None
        if window not in self._visible:
            self._visible[window] = self._compute_visible(window)
        return self._visible[window]

    def __copy__(self) -> Mask:
        """Written out, since torch cannot compile the general way."""
        mask = object.__new__(Mask)
        for name in self.__slots__:
            setattr(mask, name, getattr(self, name))
        return mask

    def with_bias(self, bias: Tensor) -> Mask:
        """This mask with a bias added to the scores, as for relative positions."""
        mask = copy(self)
        mask._sloped, mask._chunked = {}, {}
        mask.bias, mask._attn_masks = bias if self.bias is None else bias + self.bias, {}
        return mask

    def with_slopes(self, slopes: tuple[float, ...], dtype: torch.dtype) -> Mask:
        """This mask with what each head takes off a score for each token between the two (ALiBi)."""
        if (slopes, dtype) not in self._sloped:
            by_head = torch.tensor(slopes, device=self.columns.device)[:, None, None]
            self._sloped[slopes, dtype] = self.with_bias((by_head * self.distances()).to(dtype))
        return self._sloped[slopes, dtype]

    def in_chunks(self, chunk: int) -> Mask:
        """This mask within chunks of so many tokens, which begin with a text."""
        if chunk not in self._chunked:
            mask = copy(self)
            mask.chunk, mask._visible, mask._attn_masks, mask._sloped = chunk, {}, {}, {}
            self._chunked[chunk] = mask
        return self._chunked[chunk]

    def with_global_tokens(self, tokens: Tensor) -> Mask:
        """This mask with some tokens, True in (batch, keys), that every query sees, whatever its window."""
        mask = copy(self)
        mask.global_tokens = tokens if self.real_tokens is None else tokens & self.real_tokens
        mask._visible, mask._attn_masks, mask._sloped, mask._chunked = {}, {}, {}, {}
        return mask

    def without_order(self) -> Mask:
        """The same keys for one query of each row, which sees all that are no padding."""
        return Mask(self.columns[:, :1], self.keys, causal=False, real_tokens=self.real_tokens, self_attention=False)

    def attn_mask(self, window: int | None = None) -> Tensor:
        """As torch's attention takes it: True where visible; with a bias, that bias, and minus infinity where hidden."""
        if self.bias is None:
            return self.visible(window)
        if window not in self._attn_masks:
            self._attn_masks[window] = self.bias.masked_fill(~self.visible(window), -torch.inf)
        return self._attn_masks[window]

    def distances(self) -> Tensor:
        """How far each key stands from each query, (batch or 1, 1, length, keys); what came before is negative."""
        if self._tree is not None:
            _, key_positions, query_positions = self._tree
            return key_positions[:, None, None, :] - query_positions[:, None, :, None]
        return torch.arange(self.keys, device=self.columns.device) - self.columns[:, None, :, None]

    def _places(self) -> tuple[Tensor, Tensor]:
        """Where keys (batch or 1, keys) and queries (batch or 1, length) stand in their texts, which begin after padding."""
        if self._tree is not None:
            return self._tree[1], self._tree[2]
        keys, queries = torch.arange(self.keys, device=self.columns.device)[None], self.columns
        if self.real_tokens is None:
            return keys, queries
        padding = self.real_tokens.int().argmax(1, keepdim=True)  # before the first token
        return keys - padding, queries - padding

    def use_tree(self, visible_keys: Tensor, key_positions: Tensor, query_positions: Tensor) -> None:
        """Replace the causal rule by the ancestors in a tree of tokens.

        `visible_keys` is (batch, 1, length, keys); `key_positions` (batch, keys) and `query_positions` (batch, length) say
        how far along its branch each key and each query stands, which is what a window counts.
        """
        self._tree = visible_keys, key_positions, query_positions
        self._visible, self._sloped, self._chunked = {}, {}, {}

    def _compute_visible(self, window: int | None) -> Tensor:
        distances = self.distances()
        if self._tree is not None:
            visible_keys = self._tree[0]
        else:
            visible_keys = distances <= 0 if self.causal else torch.ones_like(distances, dtype=torch.bool)
        if window is not None:
            seen = distances.abs() < window
            visible_keys = visible_keys & (seen if self.global_tokens is None else seen | self.global_tokens[:, None, None])
        if self.chunk is not None:
            keys, queries = (places.div(self.chunk, rounding_mode="floor") for places in self._places())
            visible_keys = visible_keys & (keys[:, None, None, :] == queries[:, None, :, None])
        if self.sequences is not None:
            visible_keys = visible_keys & (self.sequences[:, None, :, None] == self.sequences[:, None, None, :])
        if self.real_tokens is not None:
            visible_keys = visible_keys & self.real_tokens[:, None, None, :]
            if self.self_attention and self.causal:
                visible_keys = visible_keys | (distances == 0)
            elif self.self_attention:  # without an order, padding sees what is there; only where nothing is, itself
                visible_keys = visible_keys | ((distances == 0) & ~visible_keys.any(-1, keepdim=True))
        return visible_keys
