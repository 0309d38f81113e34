"""What the plain executor remembers of its rows.

Every row's memory is left-aligned in one shared buffer: column n holds token n. So a token's column is its position, one
causal rule masks rows of any lengths, and whatever lies behind a row's end is never seen. In an encoder-decoder a second
buffer holds what each layer made of a row's source, computed once, at the row's first pass.

Shapes: buffers (layers, slots, heads, capacity, head_size); a pass's keys and values (rows, heads, keys, head_size).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from glassformer.layers import Mask


@dataclass(eq=False, slots=True)
class PlainRow:
    slot: int
    length: int = 0
    open: bool = True
    source: tuple[int, ...] = ()  # what an encoder is to read
    encoded: bool = False


class Track:
    """Keys and values of all slots, each one tensor for all layers: a pass cuts its window out once, not once per layer."""

    STEP = 64

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._capacity = 0
        self.both: list[Tensor] = []  # keys and values; none before the first ones come and show their shapes

    @property
    def bytes_each(self) -> int:
        """What one token takes; 0 before the first one came."""
        return sum(held.shape[0] * held.shape[2] * held.shape[4] * held.element_size() for held in self.both)

    def select(self, targets: Sequence[int], sources: Sequence[int], length: int) -> None:
        """Copy the first tokens of some slots to others, all at once."""
        for held in self.both:
            held[:, list(targets), :, :length] = held[:, list(sources), :, :length]

    def reserve(self, rows: int, length: int) -> None:
        """Make room for so many rows to hold so many tokens."""
        slots = self.both[0].shape[1] if self.both else 0
        if length <= self._capacity and rows <= slots:
            return
        if length > self._capacity:
            self._capacity = -(-max(length, 2 * self._capacity) // self.STEP) * self.STEP
        if rows > slots:
            slots = max(rows, slots + slots // 2)
        for number, old in enumerate(self.both):
            new = old.new_zeros(self._layers, slots, old.shape[2], self._capacity, old.shape[4])
            new[:, : old.shape[1], :, : old.shape[3]] = old
            self.both[number] = new

    def shaped(self, rows: int, key: Tensor, value: Tensor) -> list[Tensor]:
        """All keys and values, made now if these are the first."""
        if not self.both:
            sizes = ((rows, one.shape[1], self._capacity, one.shape[3]) for one in (key, value))
            self.both = [key.new_zeros(self._layers, *size) for size in sizes]
        return self.both


class Memory:
    """What is remembered of all rows, in slots kept dense: a closed row's place is taken by the last one."""

    def __init__(self, layers: int) -> None:
        self.rows: list[PlainRow] = []
        self.own = Track(layers)
        self.source = Track(layers)

    def add(self, source: Sequence[int] = ()) -> PlainRow:
        self.rows.append(PlainRow(len(self.rows), source=tuple(source)))
        return self.rows[-1]

    def remove(self, row: PlainRow) -> None:
        row.open = False
        last = self.rows.pop()
        if last is not row:
            self.copy([row.slot], [last])
            last.slot = row.slot
            self.rows[row.slot] = last

    def copy(self, slots: Sequence[int], sources: Sequence[PlainRow]) -> None:
        """Copy what is remembered of some rows to some slots, all at once; of a row that never ran there is nothing."""
        lengths = [row.length for row in sources], [len(row.source) if row.encoded else 0 for row in sources]
        for track, held in zip((self.own, self.source), lengths, strict=True):
            pairs = [(slot, row.slot) for slot, row, length in zip(slots, sources, held, strict=True) if length]
            if pairs:
                track.reserve(len(self.rows), max(held))
                track.select([slot for slot, _ in pairs], [place for _, place in pairs], max(held))

    def reserve(self, length: int) -> None:
        """Make room for every open row to hold so many tokens."""
        self.own.reserve(len(self.rows), length)


class Window:
    """The memory as one pass sees it: a few rows, each from its own column on. This is the pass's cache."""

    def __init__(self, memory: Memory, slots: Sequence[int], starts: Sequence[int], length: int, device: Any) -> None:
        self.memory = memory
        self.length = length
        self.keys = max(starts) + length
        self.level = len(set(starts)) == 1
        self.columns = torch.tensor(starts, device=device)[:, None] + torch.arange(length, device=device)
        self._slots = torch.tensor(slots, device=device)
        self._dense = list(slots) == list(range(slots[0], slots[0] + len(slots)))
        self._first, self._last = slots[0], slots[-1] + 1
        self._layers: list[tuple[Tensor, ...]] = []  # per layer: where to write and what to read, of keys and of values

    def get_seq_length(self, layer: int = 0) -> int:
        return self.keys - self.length

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        if not self._layers:
            self._layers = self._cut(*self.memory.own.shaped(len(self.memory.rows), key, value))
        into_keys, into_values, keys, values = self._layers[layer]
        if self._dense and self.level:
            into_keys.copy_(key)
            into_values.copy_(value)
            return keys, values
        rows = self._slots[:, None]
        into_keys[rows, :, self.columns] = key.transpose(1, 2)  # indexed: (rows, length, heads, head_size)
        into_values[rows, :, self.columns] = value.transpose(1, 2)
        if self._dense:
            return keys, values
        return keys.index_select(0, self._slots), values.index_select(0, self._slots)

    def _cut(self, keys: Tensor, values: Tensor) -> list[tuple[Tensor, ...]]:
        """The window into each layer, cut out of all layers at once."""
        both = [one[..., : self.keys, :] for one in (keys, values)]
        into = [keys, values]
        if self._dense:
            both = [one[:, self._first : self._last] for one in both]
            if self.level:
                into = [one[..., self.keys - self.length :, :] for one in both]
        return list(zip(*(one.unbind(0) for one in (*into, *both)), strict=True))


class Sources:
    """The sources of a pass's rows, as cross-attention sees them: everything was projected when they were encoded."""

    def __init__(self, track: Track, rows: Sequence[PlainRow], device: Any) -> None:
        lengths = [len(row.source) for row in rows]
        slots = [row.slot for row in rows]
        longest = max(lengths)
        there = torch.arange(longest, device=device) < torch.tensor(lengths, device=device)[:, None]
        self.mask = Mask(
            torch.zeros(1, 1, dtype=torch.long, device=device),
            longest,
            causal=False,
            present=None if min(lengths) == longest else there,
            own=False,
        )
        dense = slots == list(range(slots[0], slots[0] + len(slots)))
        chosen = slice(slots[0], slots[-1] + 1) if dense else torch.tensor(slots, device=device)
        both = (one[:, chosen, :, :longest] for one in track.both)
        self._layers = list(zip(*(one.unbind(0) for one in both), strict=True))

    def keys(self, layer: int, project: Any) -> tuple[Tensor, Tensor]:
        key, value = self._layers[layer]
        return key, value
