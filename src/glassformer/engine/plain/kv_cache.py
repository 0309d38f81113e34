"""The plain executor's KV cache.

All rows are left-aligned in one shared buffer: column n holds token n. So a token's column is its position, one causal rule
masks rows of any lengths, and nothing after a row's end is ever seen. In an encoder-decoder a second buffer holds the keys
and values of each row's source for cross-attention, computed once, at the row's first pass.

Shapes: buffers (layers, slots, heads, capacity, head_size); a pass's keys and values (rows, heads, keys, head_size).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from glassformer.engine.protocol import NO_SOURCE, Source
from glassformer.engine.row_history import RowHistory
from glassformer.engine.row_states import RowState
from glassformer.torch.mask import Mask


@dataclass(eq=False, slots=True)
class PlainRow:
    slot: int
    length: int = 0
    open: bool = True
    source: Source = NO_SOURCE  # token ids for the encoder
    encoded: bool = False
    history: RowHistory | None = None  # where it may have to be read anew
    state: RowState | None = None  # where layers keep one: in memory a tensor for each, (1, ...)


@dataclass(frozen=True, slots=True)
class KvSnapshot:
    """A row's keys and values outside of an executor, by layer: (heads, tokens, head_size)."""

    text: Sequence[tuple[Tensor, Tensor]] = ()  # of the tokens that it has read
    source: Sequence[tuple[Tensor, Tensor]] = ()  # of its encoded source

    @property
    def length(self) -> int:
        return self.text[0][0].shape[1] if self.text else 0

    @property
    def source_length(self) -> int:
        return self.source[0][0].shape[1] if self.source else 0


class LayerBuffers:
    """Keys and values of all slots, each one tensor for all layers: a pass slices it once, not once per layer.

    All slots are as long as the longest row needs. Memory that no row needs any longer is given back when rows are closed.
    """

    STEP = 64  # tokens
    SMALL = 4096  # tokens of all slots together that are not worth giving back while there are rows

    def __init__(self, layers: int, shapes: Sequence[tuple[int, int]] = ()) -> None:
        """`shapes`: how many heads each layer has, and of which size, where they differ: all have room for the largest."""
        self._layers = layers
        self._shapes = shapes
        self._capacity = 0
        self.bytes_per_token = 0  # known with the first token
        self.tensors: list[Tensor] = []  # keys and values; empty until the first ones show their shapes

    def write(self, slot: int, layers: Sequence[tuple[Tensor, Tensor]], rows: int) -> None:
        """Fill the beginning of a slot, for which there is room."""
        for layer, (key, value) in enumerate(layers):
            keys, values = self.allocated(rows, key[None], value[None])
            for cached, new in ((keys, key), (values, value)):
                self.part(cached[layer, slot], layer)[:, : new.shape[1]] = new

    def read(self, slot: int, length: int) -> list[tuple[Tensor, Tensor]]:
        """Copies of the beginning of a slot."""
        if not self.tensors or not length:
            return []
        keys, values = (cached[:, slot, :, :length].clone() for cached in self.tensors)
        pairs = enumerate(zip(keys, values, strict=True))
        return [(self.part(key, layer), self.part(value, layer)) for layer, (key, value) in pairs]

    def part(self, cached: Tensor, layer: int) -> Tensor:
        """What a layer has of its room: (…, heads, length, head_size)."""
        if not self._shapes:
            return cached
        heads, size = self._shapes[layer]
        return cached[..., :heads, :, :size]

    def select(self, targets: Sequence[int], sources: Sequence[int], length: int) -> None:
        """Copy the first tokens of some slots to others, all at once."""
        for cached in self.tensors:
            cached[:, list(targets), :, :length] = cached[:, list(sources), :, :length]

    def reserve(self, rows: int, length: int, filled: int) -> None:
        """Make room for `rows` rows of `length` tokens each; `filled`: how many tokens the longest of them has."""
        slots = self.tensors[0].shape[1] if self.tensors else 0
        if length <= self._capacity and rows <= slots:
            return
        capacity = self._capacity
        if length > capacity:
            capacity = self._rounded(max(length, capacity + capacity // 4))
        self._resize(rows if rows <= slots else max(rows, slots + slots // 2), capacity, filled)

    def shrink(self, rows: int, filled: int) -> None:
        """Give memory back that is much more than `rows` rows need, the longest of which has `filled` tokens."""
        if not self.tensors:
            return
        size, needed = self.tensors[0].shape[1] * self._capacity, rows * self._rounded(filled)
        if not rows:
            self.tensors, self._capacity = [], 0
        elif size > self.SMALL and needed * 4 <= size:
            self._resize(rows, self._rounded(filled), filled)

    def _rounded(self, length: int) -> int:
        return -(-max(1, length) // self.STEP) * self.STEP

    def _resize(self, slots: int, capacity: int, filled: int) -> None:
        """Other tensors with what is filled; what is not is not touched, so the system need not provide it yet."""
        self._capacity = capacity
        for index, old in enumerate(self.tensors):
            new = old.new_zeros(self._layers, slots, old.shape[2], capacity, old.shape[4])
            kept = min(slots, old.shape[1])
            new[:, :kept, :, :filled] = old[:, :kept, :, :filled]
            self.tensors[index] = new

    def allocated(self, rows: int, key: Tensor, value: Tensor) -> list[Tensor]:
        """All keys and values, allocated now if these are the first."""
        if not self.tensors:
            largest = [max(counts) for counts in zip(*self._shapes, strict=True)] if self._shapes else None
            heads, size = largest or (key.shape[1], key.shape[3])
            sizes = ((rows, heads, self._capacity, size if largest else new.shape[3]) for new in (key, value))
            self.tensors = [key.new_zeros(self._layers, *size) for size in sizes]
            self.bytes_per_token = sum(
                cached.shape[0] * cached.shape[2] * cached.shape[4] * cached.element_size() for cached in self.tensors
            )
        return self.tensors


class RowCache:
    """The keys and values of all rows, in slots without gaps: the last row moves to a closed row's slot."""

    def __init__(self, layers: int, shapes: Sequence[tuple[int, int]] = ()) -> None:
        self.rows: list[PlainRow] = []
        self.text = LayerBuffers(layers, shapes)
        self.source = LayerBuffers(layers)

    def add(self, source: Sequence[int] = ()) -> PlainRow:
        self.rows.append(PlainRow(len(self.rows), source=Source.of(source)))
        return self.rows[-1]

    def remove(self, row: PlainRow) -> None:
        row.open = False
        last = self.rows.pop()
        if last is not row:
            self.copy([row.slot], [last])
            last.slot = row.slot
            self.rows[row.slot] = last
        for buffers, filled in zip((self.text, self.source), self._filled(), strict=True):
            buffers.shrink(len(self.rows), filled)

    def import_kv(self, snapshot: KvSnapshot, source: Sequence[int] = ()) -> PlainRow:
        """A new row with these keys and values."""
        row = self.add([0] * snapshot.source_length or source)  # the ids of a source that is encoded are not read
        if snapshot.text:
            self.reserve(snapshot.length)
            self.text.write(row.slot, snapshot.text, len(self.rows))
            row.length = snapshot.length
        if snapshot.source:
            self.reserve_sources(snapshot.source_length)
            self.source.write(row.slot, snapshot.source, len(self.rows))
            row.encoded = True
        return row

    def export_kv(self, row: PlainRow, length: int) -> KvSnapshot:
        """A copy of the keys and values of a row's first `length` tokens, and of its source."""
        source_length = len(row.source) if row.encoded else 0
        return KvSnapshot(self.text.read(row.slot, min(length, row.length)), self.source.read(row.slot, source_length))

    def copy(self, slots: Sequence[int], sources: Sequence[PlainRow]) -> None:
        """Copy some rows to some slots, all at once; of a row that never ran there is nothing to copy."""
        lengths = [row.length for row in sources], [len(row.source) if row.encoded else 0 for row in sources]
        for buffers, counts, filled in zip((self.text, self.source), lengths, self._filled(), strict=True):
            pairs = [(slot, row.slot) for slot, row, length in zip(slots, sources, counts, strict=True) if length]
            if pairs:
                buffers.reserve(len(self.rows), max(counts), filled)
                buffers.select([target for target, _ in pairs], [source for _, source in pairs], max(counts))

    def reserve(self, length: int) -> None:
        """Make room for every open row to hold `length` tokens."""
        self.text.reserve(len(self.rows), length, self._filled()[0])

    def reserve_sources(self, length: int) -> None:
        """Make room for the source of every open row, of `length` tokens."""
        self.source.reserve(len(self.rows), length, self._filled()[1])

    def _filled(self) -> tuple[int, int]:
        """How many tokens the longest row has, and the longest source that is encoded."""
        text = max((row.length for row in self.rows), default=0)
        return text, max((len(row.source) for row in self.rows if row.encoded), default=0)


class CacheWindow:
    """The cache of one pass: a few rows, each written from the column where it ends."""

    def __init__(self, cache: RowCache, rows: Sequence[PlainRow], starts: Sequence[int], length: int, device: Any) -> None:
        slots = [row.slot for row in rows]
        self.cache = cache
        self._states = [row.state for row in rows if row.state is not None]
        self.length = length
        self.keys = max(starts) + length
        self.aligned = len(set(starts)) == 1
        self.columns = torch.tensor(starts, device=device)[:, None] + torch.arange(length, device=device)
        self._slots = torch.tensor(slots, device=device)
        self._contiguous = list(slots) == list(range(slots[0], slots[0] + len(slots)))
        self._first, self._last = slots[0], slots[-1] + 1
        self._layers: list[tuple[Tensor, ...]] = []  # per layer: keys and values to write to, keys and values to read

    def get_seq_length(self, layer: int = 0) -> int:
        return self.keys - self.length

    def load_state(self, index: int) -> Tensor | None:
        """The states of all rows, one after another; zeros for a row that has read nothing."""
        states = [None if state.memory is None else state.memory.get(index) for state in self._states]
        known = next((state for state in states if state is not None), None)
        if known is None:
            return None
        return torch.cat([torch.zeros_like(known) if state is None else state for state in states])

    def keep_state(self, index: int, state: Tensor, length: int) -> None:
        for number, row in enumerate(self._states):
            row.memory = {**(row.memory or {}), index: state[number : number + 1]}

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        if not self._layers:
            self._layers = self._slice_layers(*self.cache.text.allocated(len(self.cache.rows), key, value))
        key_slots, value_slots, keys, values = (self.cache.text.part(cached, layer) for cached in self._layers[layer])
        if self._contiguous and self.aligned:
            key_slots.copy_(key)
            value_slots.copy_(value)
            return keys, values
        rows = self._slots[:, None]
        key_slots[rows, :, self.columns] = key.transpose(1, 2)  # indexed: (rows, length, heads, head_size)
        value_slots[rows, :, self.columns] = value.transpose(1, 2)
        if self._contiguous:
            return keys, values
        return keys.index_select(0, self._slots), values.index_select(0, self._slots)

    def _slice_layers(self, keys: Tensor, values: Tensor) -> list[tuple[Tensor, ...]]:
        """Each layer's part, sliced from all layers at once."""
        readable = [cached[..., : self.keys, :] for cached in (keys, values)]
        writable = [keys, values]
        if self._contiguous:
            readable = [cached[:, self._first : self._last] for cached in readable]
            if self.aligned:
                writable = [cached[..., self.keys - self.length :, :] for cached in readable]
        return list(zip(*(cached.unbind(0) for cached in (*writable, *readable)), strict=True))


class SourceCache:
    """The sources of a pass's rows for cross-attention: their keys and values were projected when they were encoded."""

    def __init__(self, buffers: LayerBuffers, rows: Sequence[PlainRow], device: Any) -> None:
        lengths = [len(row.source) for row in rows]
        slots = [row.slot for row in rows]
        longest = max(lengths)
        present = torch.arange(longest, device=device) < torch.tensor(lengths, device=device)[:, None]
        self.mask = Mask(
            torch.zeros(1, 1, dtype=torch.long, device=device),
            longest,
            causal=False,
            real_tokens=None if min(lengths) == longest else present,
            self_attention=False,
        )
        contiguous = slots == list(range(slots[0], slots[0] + len(slots)))
        chosen = slice(slots[0], slots[-1] + 1) if contiguous else torch.tensor(slots, device=device)
        tensors = (cached[:, chosen, :, :longest] for cached in buffers.tensors)
        self._layers = list(zip(*(cached.unbind(0) for cached in tensors), strict=True))

    def keys_and_values(self, layer: int, project: Any) -> tuple[Tensor, Tensor]:
        key, value = self._layers[layer]
        return key, value
