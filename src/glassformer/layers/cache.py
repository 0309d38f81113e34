"""The KV cache: remembered keys and values, so that each new token costs one token's work.

A cache is a value that the caller owns and hands to a pass; the model keeps none. Without gradients a layer writes
into buffers reserved in advance (amortized, no copy per token); with gradients it concatenates, so that nothing
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
        self._buffers: tuple[Tensor, Tensor] | None = None
        self.length = 0

    @property
    def keys(self) -> Tensor | None:
        return self._buffers and self._buffers[0][:, :, : self.length]

    @property
    def values(self) -> Tensor | None:
        return self._buffers and self._buffers[1][:, :, : self.length]

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        start, end = self.length, self.length + key.shape[2]
        if torch.is_grad_enabled() and (key.requires_grad or value.requires_grad):
            self._concatenate(key, value)
        else:
            self._reserve(key, value, end)
            assert self._buffers is not None
            self._buffers[0][:, :, start:end] = key
            self._buffers[1][:, :, start:end] = value
        self.length = end
        assert self._buffers is not None
        return self._buffers[0][:, :, :end], self._buffers[1][:, :, :end]

    def _concatenate(self, key: Tensor, value: Tensor) -> None:
        if self._buffers is None:
            self._buffers = key, value
        else:
            cached = (buffer[:, :, : self.length] for buffer in self._buffers)
            self._buffers = tuple(torch.cat(pair, dim=2) for pair in zip(cached, (key, value), strict=True))  # type: ignore[assignment]

    def _reserve(self, key: Tensor, value: Tensor, length: int) -> None:
        if self._buffers is not None and self._buffers[0].shape[2] >= length and not self._buffers[0].requires_grad:
            return
        capacity = -(-max(length, 2 * self.length) // self.STEP) * self.STEP
        grown = tuple(new.new_empty(*new.shape[:2], capacity, new.shape[3]) for new in (key, value))
        if self._buffers is not None:
            for new, old in zip(grown, self._buffers, strict=True):
                new[:, :, : self.length] = old[:, :, : self.length].detach()
        self._buffers = grown  # type: ignore[assignment]

    def crop(self, length: int) -> None:
        """Forget what came after so many tokens (or, if negative, the last so many)."""
        self.length = min(self.length, length) if length >= 0 else max(0, self.length + length)

    def reorder(self, rows: Tensor) -> None:
        """Take these rows of the batch, in this order: beams."""
        if self._buffers is not None:
            self._buffers = self._buffers[0].index_select(0, rows), self._buffers[1].index_select(0, rows)


class DynamicCache:
    """The cache of every layer: pass it as `past_key_values`, and again with the next token."""

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

    def cross_keys_and_values(self, layer: int, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """A layer's keys and values of the source, projected on first use."""
        if self.cross_attention_cache.get_seq_length(layer) == 0:
            self.cross_attention_cache.update(*project(), layer)
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
