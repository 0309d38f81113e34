"""Remembered keys and values, so that each new token costs one token's work.

A cache is a value that the caller owns and hands to a pass; the model keeps none. Without gradients a layer writes
into room that it has made in advance (amortised, no copy per token); with gradients it concatenates, so that nothing
a backward pass needs is overwritten.

Shapes: keys and values are (batch, heads, length, head_size).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor


class Cache(Protocol):
    """What attention needs of a cache."""

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Remember this pass's keys and values of one layer; give back all that the layer now attends to."""

    def get_seq_length(self, layer: int = 0) -> int:
        """How many tokens are remembered."""


class DynamicLayer:
    """One layer's memory, growing by doubling."""

    STEP = 64

    def __init__(self) -> None:
        self._room: tuple[Tensor, Tensor] | None = None
        self.length = 0

    @property
    def keys(self) -> Tensor | None:
        return self._room and self._room[0][:, :, : self.length]

    @property
    def values(self) -> Tensor | None:
        return self._room and self._room[1][:, :, : self.length]

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        start, end = self.length, self.length + key.shape[2]
        if torch.is_grad_enabled() and (key.requires_grad or value.requires_grad):
            self._concatenate(key, value)
        else:
            self._make_room(key, value, end)
            assert self._room is not None
            self._room[0][:, :, start:end] = key
            self._room[1][:, :, start:end] = value
        self.length = end
        assert self._room is not None
        return self._room[0][:, :, :end], self._room[1][:, :, :end]

    def _concatenate(self, key: Tensor, value: Tensor) -> None:
        if self._room is None:
            self._room = key, value
        else:
            held = (one[:, :, : self.length] for one in self._room)
            self._room = tuple(torch.cat(pair, dim=2) for pair in zip(held, (key, value), strict=True))  # type: ignore[assignment]

    def _make_room(self, key: Tensor, value: Tensor, length: int) -> None:
        if self._room is not None and self._room[0].shape[2] >= length and not self._room[0].requires_grad:
            return
        capacity = -(-max(length, 2 * self.length) // self.STEP) * self.STEP
        roomier = tuple(one.new_empty(*one.shape[:2], capacity, one.shape[3]) for one in (key, value))
        if self._room is not None:
            for new, old in zip(roomier, self._room, strict=True):
                new[:, :, : self.length] = old[:, :, : self.length].detach()
        self._room = roomier  # type: ignore[assignment]

    def crop(self, length: int) -> None:
        """Forget what came after so many tokens (or, if negative, the last so many)."""
        self.length = min(self.length, length) if length >= 0 else max(0, self.length + length)

    def reorder(self, rows: Tensor) -> None:
        """Take these rows of the batch, in this order: beams."""
        if self._room is not None:
            self._room = self._room[0].index_select(0, rows), self._room[1].index_select(0, rows)


class DynamicCache:
    """A memory for each layer, made as the layers ask: pass it as `past_key_values`, and again with the next token."""

    def __init__(self) -> None:
        self.layers: list[DynamicLayer] = []

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        while len(self.layers) <= layer:
            self.layers.append(DynamicLayer())
        return self.layers[layer].update(key, value)

    def get_seq_length(self, layer: int = 0) -> int:
        return self.layers[layer].length if layer < len(self.layers) else 0

    def crop(self, length: int) -> None:
        for layer in self.layers:
            layer.crop(length)

    def reorder_cache(self, rows: Tensor) -> None:
        for layer in self.layers:
            layer.reorder(rows)

    def __len__(self) -> int:
        return len(self.layers)

    def __bool__(self) -> bool:  # an empty cache is still a cache
        return True

    def __getitem__(self, layer: int) -> tuple[Tensor | None, Tensor | None]:
        return self.layers[layer].keys, self.layers[layer].values

    def __iter__(self) -> Iterator[tuple[Tensor | None, Tensor | None]]:
        return (self[number] for number in range(len(self)))

    def __repr__(self) -> str:
        return f"DynamicCache(layers=[{', '.join(type(layer).__name__ for layer in self.layers)}])"


class EncoderDecoderCache:
    """A decoder's memory of its own tokens, and of the keys and values that each layer made of the source, once."""

    def __init__(self) -> None:
        self.self_attention_cache = DynamicCache()
        self.cross_attention_cache = DynamicCache()

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        return self.self_attention_cache.update(key, value, layer)

    def crossing(self, layer: int, make: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """A layer's keys and values of the source, made when first asked for."""
        if self.cross_attention_cache.get_seq_length(layer) == 0:
            self.cross_attention_cache.update(*make(), layer)
        key, value = self.cross_attention_cache[layer]
        assert key is not None
        assert value is not None
        return key, value

    def get_seq_length(self, layer: int = 0) -> int:
        return self.self_attention_cache.get_seq_length(layer)

    def crop(self, length: int) -> None:
        self.self_attention_cache.crop(length)

    def reorder_cache(self, rows: Tensor) -> None:
        self.self_attention_cache.reorder_cache(rows)
        self.cross_attention_cache.reorder_cache(rows)

    def __len__(self) -> int:
        return len(self.self_attention_cache)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"EncoderDecoderCache({self.self_attention_cache!r}, {self.cross_attention_cache!r})"
