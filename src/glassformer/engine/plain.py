"""The plain executor: the families' own PyTorch, run over ragged rows. It works everywhere and defines what is right.

Every row's memory is left-aligned in one shared buffer: column n holds token n. So a token's column is its
position, one causal rule masks rows of any lengths, and whatever lies behind a row's end is never seen.

Shapes: buffers (layers, slots, heads, capacity, head_size); ids (rows, length), short rows filled up at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from glassformer.candidates import Candidates, top
from glassformer.engine.protocol import Description, Feed, Row, Want
from glassformer.errors import ExecutorError, InputError
from glassformer.heads import CausalLM
from glassformer.layers import Mask
from glassformer.outputs import CausalLMOutputWithPast
from glassformer.sites import Tap, View, Watch, axes

FILL = 0  # an id for the positions behind a short row's end; nobody sees what becomes of it


@dataclass(eq=False, slots=True)
class PlainRow:
    slot: int
    length: int = 0
    open: bool = True


class PlainScores:
    def __init__(self, logits: Tensor, sites: Mapping[str, Any]) -> None:
        self._logits = logits  # (wanted positions, vocabulary)
        self.sites = sites

    def host(self, index: int = -1) -> npt.NDArray[np.float32]:
        if not len(self._logits):
            raise ExecutorError("no position of this feed was scored: it was fed with Want.NONE.")
        scores: npt.NDArray[np.float32] = self._logits[index].float().cpu().numpy()
        return scores

    def top(self, k: int, index: int = -1) -> Candidates:
        return top(self.host(index), k)


class Memory:
    """The keys and values of all rows, in slots kept dense: a closed row's place is taken by the last one.

    Both are one tensor for all layers, so that a pass cuts its window out once and not once per layer.
    """

    STEP = 64

    def __init__(self, layers: int) -> None:
        self.rows: list[PlainRow] = []
        self._layers = layers
        self._capacity = 0
        self._held: list[Tensor] = []  # keys, values: (layers, slots, heads, capacity, head_size)

    def add(self) -> PlainRow:
        self.rows.append(PlainRow(len(self.rows)))
        return self.rows[-1]

    def remove(self, row: PlainRow) -> None:
        row.open = False
        last = self.rows.pop()
        if last is not row:
            self.select([row.slot], [last.slot], last.length)
            last.slot = row.slot
            self.rows[row.slot] = last

    def select(self, targets: Sequence[int], sources: Sequence[int], length: int) -> None:
        """Copy the first tokens of some slots to others, all at once."""
        for held in self._held:
            held[:, list(targets), :, :length] = held[:, list(sources), :, :length]

    def reserve(self, length: int) -> None:
        """Make room for every open row to hold so many tokens."""
        slots = self._held[0].shape[1] if self._held else 0
        if length <= self._capacity and len(self.rows) <= slots:
            return
        if length > self._capacity:
            self._capacity = -(-max(length, 2 * self._capacity) // self.STEP) * self.STEP
        if len(self.rows) > slots:
            slots = max(len(self.rows), slots + slots // 2)
        for number, old in enumerate(self._held):
            new = old.new_zeros(self._layers, slots, old.shape[2], self._capacity, old.shape[4])
            new[:, : old.shape[1], :, : old.shape[3]] = old
            self._held[number] = new

    def held(self, key: Tensor, value: Tensor) -> list[Tensor]:
        """All keys and values; made when the first ones come and show their shapes."""
        if not self._held:
            sizes = ((len(self.rows), one.shape[1], self._capacity, one.shape[3]) for one in (key, value))
            self._held = [key.new_zeros(self._layers, *size) for size in sizes]
        return self._held


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
            self._layers = self._cut(*self.memory.held(key, value))
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


class Plain:
    """An `Executor` over any model with a causal head."""

    def __init__(self, model: CausalLM) -> None:
        self.model = model
        self.base = model.base_model
        self.context: int = model.config.max_position_embeddings
        self._memory = Memory(model.config.num_hidden_layers)

    def open(self, source: Sequence[int] | None = None) -> PlainRow:
        if source is not None:
            raise ExecutorError("this model has no encoder, so a row takes no source.")
        return self._memory.add()

    @torch.inference_mode()
    def run(self, feeds: Sequence[Feed]) -> list[PlainScores]:
        rows = [self._check(feed) for feed in feeds]
        feeds = [feed if feed.watch is None else self._spelt(feed, feed.watch) for feed in feeds]
        order = sorted(range(len(feeds)), key=lambda at: rows[at].slot)
        found = self._pass([feeds[at] for at in order], [rows[at] for at in order])
        scores: list[PlainScores | None] = [None] * len(feeds)
        for at, one in zip(order, found, strict=True):
            rows[at].length += len(feeds[at].ids)
            scores[at] = one
        return [one for one in scores if one is not None]

    def _check(self, feed: Feed) -> PlainRow:
        row = self._mine(feed.row)
        if not len(feed.ids):
            raise InputError("a row was fed no tokens. Give at least one.")
        if row.length + len(feed.ids) > self.context:
            raise InputError(
                f"{row.length + len(feed.ids)} tokens do not fit into the model's context of "
                f"{self.context}. Shorten the prompt."
            )
        vocabulary = self.model.config.vocab_size
        for token in feed.ids:
            if not 0 <= token < vocabulary:
                raise InputError(f"token id {token} is outside the vocabulary of {vocabulary}.")
        return row

    def _spelt(self, feed: Feed, watch: Watch) -> Feed:
        """The feed with its watch's patterns spelt out, refused if it names a site that is not there."""
        return replace(feed, watch=watch.checked(self.model.config.num_hidden_layers))

    def _mine(self, row: Row) -> PlainRow:
        if not isinstance(row, PlainRow) or not row.open:
            raise ExecutorError("the row is closed, or belongs to another executor.")
        return row

    def _pass(self, feeds: Sequence[Feed], rows: Sequence[PlainRow]) -> list[PlainScores]:
        device = self.base.embeddings.weight.device
        lengths = [len(feed.ids) for feed in feeds]
        longest = max(lengths)
        ids = torch.tensor([[*feed.ids, *[FILL] * (longest - len(feed.ids))] for feed in feeds], device=device)
        starts = [row.length for row in rows]
        self._memory.reserve(max(starts) + longest)
        window = Window(self._memory, [row.slot for row in rows], starts, longest, device)
        trees = any(feed.parents is not None for feed in feeds)
        mask = Mask(window.columns, window.keys, level=window.level and not trees)
        positions = window.columns
        if trees:
            positions = self._plant(feeds, starts, mask, positions)
        views = [
            View(replace(feed.watch, reads=feed.watch.reads - {"scores"}), at, start, length, start + length)
            if feed.watch is not None
            else None
            for at, (feed, start, length) in enumerate(zip(feeds, starts, lengths, strict=True))
        ]
        tap = Tap([view for view in views if view is not None]) if any(views) else None
        p = self.base.begin(positions, mask, window, tap)
        wanted = [_wanted(feed) for feed in feeds]
        keep = (
            torch.tensor([at for at, columns in enumerate(wanted) for _ in columns], dtype=torch.long, device=device),
            torch.tensor([column for columns in wanted for column in columns], dtype=torch.long, device=device),
        )
        found: CausalLMOutputWithPast = self.model(ids, p=p, logits_to_keep=keep)
        assert found.logits is not None
        parts = torch.split(found.logits, [len(columns) for columns in wanted])
        return [_scores(*each) for each in zip(feeds, parts, views, starts, wanted, strict=True)]

    def _plant(self, feeds: Sequence[Feed], starts: Sequence[int], mask: Mask, positions: Tensor) -> Tensor:
        """Trees: let each token see only its own ancestors, and stand one step behind its parent."""
        positions = positions.clone()
        seen = mask.visible().clone()
        for at, (feed, start) in enumerate(zip(feeds, starts, strict=True)):
            if feed.parents is None:
                continue
            if len(feed.parents) != len(feed.ids) or not all(-1 <= p < n for n, p in enumerate(feed.parents)):
                raise InputError("in a tree, each token's parent must come before it (-1: the row so far).")
            for number, parent in enumerate(feed.parents):
                line = seen[at, 0, number]
                line[start:] = False if parent < 0 else seen[at, 0, parent, start:]
                line[start + number] = True
                positions[at, number] = start if parent < 0 else positions[at, parent] + 1
        places = torch.arange(mask.keys, device=seen.device).repeat(len(feeds), 1)
        places.scatter_(1, mask.columns, positions)
        mask.given(seen, places, positions)
        return positions

    @torch.inference_mode()
    def fork(self, row: Row, length: int | None = None) -> PlainRow:
        mine = self._mine(row)
        new = self._memory.add()
        new.length = mine.length if length is None else min(length, mine.length)
        self._memory.reserve(new.length)
        self._memory.select([new.slot], [mine.slot], new.length)
        return new

    @torch.inference_mode()
    def select(self, rows: Sequence[Row], parents: Sequence[int]) -> None:
        mine = [self._mine(row) for row in rows]
        sources = [mine[parent] for parent in parents]
        lengths = [source.length for source in sources]
        self._memory.select([row.slot for row in mine], [source.slot for source in sources], max(lengths, default=0))
        for row, length in zip(mine, lengths, strict=True):
            row.length = length

    def rewind(self, row: Row, length: int) -> int:
        mine = self._mine(row)
        mine.length = max(0, min(mine.length, length))
        return mine.length

    @torch.inference_mode()
    def close(self, row: Row) -> None:
        self._memory.remove(self._mine(row))

    def describe(self) -> Description:
        weight = self.base.embeddings.weight
        return Description("plain", str(weight.device), str(weight.dtype).removeprefix("torch."), torch.get_num_threads())


def _wanted(feed: Feed) -> range:
    """The columns of a feed that are to be scored."""
    length = len(feed.ids)
    return {Want.NONE: range(0), Want.LAST: range(length - 1, length), Want.ALL: range(length)}[feed.want]


def _scores(feed: Feed, logits: Tensor, view: View | None, start: int, columns: range) -> PlainScores:
    """One feed's scores, changed and recorded if its watch asks for the site `scores`."""
    if feed.watch is None or view is None:
        return PlainScores(logits, {})
    if (change := feed.watch.changes.get("scores")) is not None and columns:
        logits = change.apply(logits[None], axes("scores"), start + columns.start)[0]
    if "scores" in feed.watch.reads:
        view.record["scores"] = logits[None]
    return PlainScores(logits, view.record)
