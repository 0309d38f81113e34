"""The KV cache: remembered keys and values, so that each new token costs one token's work.

A cache is a value that the caller owns and hands to a pass; the model keeps none. Without gradients a layer writes
into buffers reserved in advance (amortized, no copy per token); with gradients it concatenates, so that nothing
a backward pass needs is overwritten. A static cache reserves all that it will ever hold with the first tokens, at addresses
that stay the same.

Shapes: keys and values are (batch, heads, length, head_size).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from glassformer.ground.errors import InputError


class Cache(Protocol):
    """What attention needs of a cache."""

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Remember this pass's keys and values of one layer; give back all that the layer now attends to."""

    def get_seq_length(self, layer: int = 0) -> int:
        """How many tokens are remembered."""

    def load_state(self, index: int) -> Tensor | None:
        """What a layer that keeps a state had after the last pass, by the state's index; None before the first."""

    def keep_state(self, index: int, state: Tensor, length: int) -> None:
        """Remember it as it is after this pass; `length`: of the text by then."""


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
        """Keep the first `length` tokens (or, if negative, all but the last -`length`)."""
        self.length = min(self.length, length) if length >= 0 else max(0, self.length + length)

    def reorder(self, rows: Tensor) -> None:
        """Take these rows of the batch, in this order: beams."""
        if self._buffers is not None:
            self._buffers = self._buffers[0].index_select(0, rows), self._buffers[1].index_select(0, rows)


AnyLayer = TypeVar("AnyLayer", "DynamicLayer", "StaticLayer")


class LayeredCache(Generic[AnyLayer]):
    """What all caches share: a memory for each layer that attends, and the states of those that keep one."""

    layers: list[AnyLayer]
    states: dict[int, Tensor]
    state_length: int  # of the text that they belong to

    def get_seq_length(self, layer: int = 0) -> int:
        return self.layers[layer].length if layer < len(self.layers) else self.state_length

    def load_state(self, index: int) -> Tensor | None:
        return self.states.get(index)

    def keep_state(self, index: int, state: Tensor, length: int) -> None:
        self.states[index], self.state_length = state, length

    def forget_states(self) -> None:
        self.states, self.state_length = {}, 0

    def crop(self, length: int) -> None:
        kept = min(length, self.get_seq_length()) if length >= 0 else max(0, self.get_seq_length() + length)
        if self.states and kept != self.get_seq_length():
            raise InputError(
                f"this cache holds states of layers that keep no tokens, so it cannot be cropped to {kept} of "
                f"{self.get_seq_length()}. Read the text again, or copy the cache before tokens that may be dropped."
            )
        for layer in self.layers:
            layer.crop(length)

    def reorder_cache(self, rows: Tensor) -> None:
        for layer in self.layers:
            layer.reorder(rows)
        self.states = {index: state.index_select(0, rows.to(state.device)) for index, state in self.states.items()}

    def filled(self, layer: int) -> tuple[Tensor, Tensor]:
        """The keys and values that a layer remembers, without room for more."""
        key, value = self[layer]
        assert key is not None
        assert value is not None
        length = self.get_seq_length(layer)
        return key[:, :, :length], value[:, :, :length]

    def __len__(self) -> int:
        return len(self.layers)

    def __bool__(self) -> bool:  # an empty cache is still a cache
        return True

    def __getitem__(self, layer: int) -> tuple[Tensor | None, Tensor | None]:
        return self.layers[layer].keys, self.layers[layer].values

    def __iter__(self) -> Iterator[tuple[Tensor | None, Tensor | None]]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(layers=[{', '.join(type(layer).__name__ for layer in self.layers)}])"


class DynamicCache(LayeredCache[DynamicLayer]):
    """The cache of every layer: pass it as `past_key_values`, and again with the next token."""

    def __init__(self) -> None:
        self.layers: list[DynamicLayer] = []
        self.forget_states()

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        while len(self.layers) <= layer:
            self.layers.append(DynamicLayer())
        return self.layers[layer].update(key, value)

    def refill(self, layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Hold these keys and values, of any batch, in place of all others."""
        self.layers = []
        self.forget_states()
        for index, (key, value) in enumerate(layers):
            self.update(key, value, index)


class StaticLayer:
    """One layer's memory, of a fixed size."""

    def __init__(self, max_cache_len: int) -> None:
        self.max_cache_len = max_cache_len
        self.length = 0
        self.keys: Tensor | None = None  # (batch, heads, max_cache_len, head_size), zeros after what is remembered
        self.values: Tensor | None = None

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """With gradients, they flow to this pass's keys and values, and not into earlier passes."""
        start, end = self.length, self.length + key.shape[2]
        self._check_room(key, end)
        if self.keys is None or self.values is None:
            with torch.inference_mode(False):  # so that passes with and without it can write to them
                shapes = ((*new.shape[:2], self.max_cache_len, new.shape[3]) for new in (key, value))
                self.keys, self.values = (
                    torch.zeros(shape, dtype=new.dtype, device=new.device)
                    for shape, new in zip(shapes, (key, value), strict=True)
                )
        self.length = end
        both = []
        for buffer, new in ((self.keys, key), (self.values, value)):
            buffer[:, :, start:end] = new.detach()
            with_gradients = torch.is_grad_enabled() and new.requires_grad
            both.append(torch.cat((buffer[:, :, :start].clone(), new), 2) if with_gradients else buffer[:, :, :end])
        return both[0], both[1]

    def _check_room(self, key: Tensor, end: int) -> None:
        if end > self.max_cache_len:
            raise InputError(
                f"the static cache has room for {self.max_cache_len} tokens: {self.length} are in it, and {key.shape[2]} "
                "more do not fit. Take a larger max_cache_len, or reset() it."
            )
        if self.keys is not None and self.keys.shape[0] != key.shape[0]:
            raise InputError(
                f"the static cache was first used for a batch of {self.keys.shape[0]}, and cannot hold one of "
                f"{key.shape[0]}. Make another."
            )

    def reset(self) -> None:
        self.length = 0
        for buffer in (self.keys, self.values):
            if buffer is not None:
                buffer.zero_()

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens (or, if negative, all but the last -`length`)."""
        self.length = min(self.length, length) if length >= 0 else max(0, self.length + length)
        for buffer in (self.keys, self.values):
            if buffer is not None:
                buffer[:, :, self.length :] = 0

    def reorder(self, rows: Tensor) -> None:
        """Take these rows of the batch, in this order: beams. They stay where they are in memory."""
        for buffer in (self.keys, self.values):
            if buffer is not None:
                buffer.copy_(buffer.index_select(0, rows.to(buffer.device)))


class StaticCache(LayeredCache[StaticLayer]):
    """The cache of every layer, of a fixed size: pass it as `past_key_values`, and again with the next token.

    Example:
        cache = StaticCache(model.config, max_cache_len=64)
        output = model(**tokens, past_key_values=cache)

    Args:
        config: the model's.
        max_cache_len: how many tokens it can hold; more are an error.
        max_batch_size, device, dtype: accepted for familiarity: the first tokens decide them.
    """

    def __init__(
        self, config: Any, max_cache_len: int, max_batch_size: int | None = None, device: Any = None, dtype: Any = None
    ) -> None:
        if isinstance(max_cache_len, bool) or not isinstance(max_cache_len, int) or max_cache_len < 1:
            raise InputError(f"max_cache_len is {max_cache_len!r}; it must be a number of tokens, from 1 on.")
        self.max_cache_len = max_cache_len
        self.layers = [StaticLayer(max_cache_len) for _ in range(config.num_hidden_layers)]
        self.forget_states()

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        return self.layers[layer].update(key, value)

    def get_max_length(self) -> int:
        return self.max_cache_len

    get_max_cache_shape = get_max_length  # its older name

    def reset(self) -> None:
        """Forget everything, and keep the memory for the next text."""
        for layer in self.layers:
            layer.reset()
        self.forget_states()

    def refill(self, layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Hold these keys and values, of the same batch, in place of all others."""
        self.reset()
        for index, (key, value) in enumerate(layers):
            self.update(key, value, index)


class EncoderDecoderCache:
    """A decoder's memory of its own tokens, and of the keys and values that each layer made of the source, once."""

    def __init__(
        self,
        self_attention_cache: DynamicCache | StaticCache | None = None,
        cross_attention_cache: DynamicCache | StaticCache | None = None,
    ) -> None:
        self.self_attention_cache = DynamicCache() if self_attention_cache is None else self_attention_cache
        self.cross_attention_cache = DynamicCache() if cross_attention_cache is None else cross_attention_cache

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        return self.self_attention_cache.update(key, value, layer)

    def cross_keys_and_values(self, layer: int, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """A layer's keys and values of the source, projected on first use."""
        if self.cross_attention_cache.get_seq_length(layer) == 0:
            return self.cross_attention_cache.update(*project(), layer)
        return self.cross_attention_cache.filled(layer)

    def get_seq_length(self, layer: int = 0) -> int:
        return self.self_attention_cache.get_seq_length(layer)

    def load_state(self, index: int) -> Tensor | None:
        return self.self_attention_cache.load_state(index)

    def keep_state(self, index: int, state: Tensor, length: int) -> None:
        self.self_attention_cache.keep_state(index, state, length)

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
