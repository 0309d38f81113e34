"""The plain executor: the families' own PyTorch, run over ragged rows. It works everywhere and defines what is right.

Every row's memory is left-aligned in one shared buffer: column n holds token n. So a token's column is its
position, one causal rule masks rows of any lengths, and whatever lies behind a row's end is never seen. In an
encoder-decoder a second buffer holds what each layer made of a row's source, computed once, at the row's first pass.

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
from glassformer.families.seq2seq import EncoderDecoder
from glassformer.heads import CausalLM, Seq2SeqLM
from glassformer.layers import Mask
from glassformer.outputs import CausalLMOutputWithPast, Seq2SeqLMOutput
from glassformer.sites import Tap, View, Watch, axes

FILL = 0  # an id for the positions behind a short row's end; nobody sees what becomes of it


@dataclass(eq=False, slots=True)
class PlainRow:
    slot: int
    length: int = 0
    open: bool = True
    source: tuple[int, ...] = ()  # what an encoder is to read
    encoded: bool = False


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


class Track:
    """Keys and values of all slots, each one tensor for all layers: a pass cuts its window out once, not once per layer."""

    STEP = 64

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._capacity = 0
        self._held: list[Tensor] = []  # keys, values: (layers, slots, heads, capacity, head_size)

    def select(self, targets: Sequence[int], sources: Sequence[int], length: int) -> None:
        """Copy the first tokens of some slots to others, all at once."""
        for held in self._held:
            held[:, list(targets), :, :length] = held[:, list(sources), :, :length]

    def reserve(self, rows: int, length: int) -> None:
        """Make room for so many rows to hold so many tokens."""
        slots = self._held[0].shape[1] if self._held else 0
        if length <= self._capacity and rows <= slots:
            return
        if length > self._capacity:
            self._capacity = -(-max(length, 2 * self._capacity) // self.STEP) * self.STEP
        if rows > slots:
            slots = max(rows, slots + slots // 2)
        for number, old in enumerate(self._held):
            new = old.new_zeros(self._layers, slots, old.shape[2], self._capacity, old.shape[4])
            new[:, : old.shape[1], :, : old.shape[3]] = old
            self._held[number] = new

    def held(self, rows: int, key: Tensor, value: Tensor) -> list[Tensor]:
        """All keys and values; made when the first ones come and show their shapes."""
        if not self._held:
            sizes = ((rows, one.shape[1], self._capacity, one.shape[3]) for one in (key, value))
            self._held = [key.new_zeros(self._layers, *size) for size in sizes]
        return self._held

    @property
    def both(self) -> list[Tensor]:
        return self._held


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
            self._layers = self._cut(*self.memory.own.held(len(self.memory.rows), key, value))
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


class Plain:
    """An `Executor` over any model that scores the next token."""

    def __init__(self, model: CausalLM | Seq2SeqLM) -> None:
        self.model = model
        self.base = model.base_model
        self.context: int = model.config.context
        self._memory = Memory(model.config.num_hidden_layers)

    def open(self, source: Sequence[int] | None = None) -> PlainRow:
        if isinstance(self.base, EncoderDecoder) and not source:
            raise ExecutorError("this model has an encoder, so a row needs a source of at least one token.")
        if source is not None and not isinstance(self.base, EncoderDecoder):
            raise ExecutorError("this model has no encoder, so a row takes no source.")
        self._check_ids(source or ())
        return self._memory.add(source or ())

    @torch.inference_mode()
    def run(self, feeds: Sequence[Feed]) -> list[PlainScores]:
        rows = [self._check(feed) for feed in feeds]
        if len({row.slot for row in rows}) < len(rows):
            raise ExecutorError("a row was fed twice in one pass. Feed it once, with all its tokens.")
        if not feeds:
            return []
        feeds = [feed if feed.watch is None else self._spelt(feed, feed.watch) for feed in feeds]
        order = sorted(range(len(feeds)), key=lambda at: rows[at].slot)
        read = self._encode([(feed, row) for feed, row in zip(feeds, rows, strict=True) if row.source and not row.encoded])
        found = self._pass([feeds[at] for at in order], [rows[at] for at in order], read)
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
        self._check_ids(feed.ids)
        return row

    def _check_ids(self, ids: Sequence[int]) -> None:
        vocabulary = self.base.table.num_embeddings
        for token in ids:
            if not 0 <= token < vocabulary:
                raise InputError(f"token id {token} is outside the vocabulary of {vocabulary}.")

    def _spelt(self, feed: Feed, watch: Watch) -> Feed:
        """The feed with its watch's patterns spelt out, refused if it names a site that is not there."""
        config = self.model.config
        return replace(feed, watch=watch.checked(config.num_hidden_layers, config.encoder_layers))

    def _mine(self, row: Row) -> PlainRow:
        if not isinstance(row, PlainRow) or not row.open:
            raise ExecutorError("the row is closed, or belongs to another executor.")
        return row

    def _encode(self, fresh: Sequence[tuple[Feed, PlainRow]]) -> dict[int, dict[str, Any]]:
        """Read the sources of rows that run for the first time; what their watches saw there, by slot."""
        if not fresh:
            return {}
        base = self.base
        assert isinstance(base, EncoderDecoder)
        device = base.table.weight.device
        rows = [row for _, row in fresh]
        longest = max(len(row.source) for row in rows)
        ids = torch.tensor([[*row.source, *[FILL] * (longest - len(row.source))] for row in rows], device=device)
        there = torch.tensor([[n < len(row.source) for n in range(longest)] for row in rows], device=device)
        positions, mask = base.lay(ids, there, causal=False)
        views = {
            row.slot: View(feed.watch, at, source=len(row.source))
            for at, (feed, row) in enumerate(fresh)
            if feed.watch is not None
        }
        tap = Tap(list(views.values())) if views else None
        states = base.encode(base.embed_source(ids), base.begin(positions, mask, tap=tap))
        track, slots = self._memory.source, [row.slot for row in rows]
        track.reserve(len(self._memory.rows), longest)
        for layer, crossing in enumerate(base.crossings):
            key, value = crossing.project_source(states)
            keys, values = track.held(len(self._memory.rows), key, value)
            keys[layer, slots, :, :longest] = key
            values[layer, slots, :, :longest] = value
        for row in rows:
            row.encoded = True
        return {slot: view.record for slot, view in views.items()}

    def _pass(
        self, feeds: Sequence[Feed], rows: Sequence[PlainRow], read: Mapping[int, dict[str, Any]]
    ) -> list[PlainScores]:
        device = self.base.table.weight.device
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
            View(
                replace(feed.watch, reads=feed.watch.reads - {"scores"}),
                at,
                row.length,
                length,
                row.length + length,
                len(row.source),
                read.get(row.slot, {}),
            )
            if feed.watch is not None
            else None
            for at, (feed, row, length) in enumerate(zip(feeds, rows, lengths, strict=True))
        ]
        tap = Tap([view for view in views if view is not None]) if any(views) else None
        coded = isinstance(self.base, EncoderDecoder)
        source = Sources(self._memory.source, rows, device) if coded else None
        p = self.base.begin(positions, mask, window, tap, source)
        wanted = [_wanted(feed) for feed in feeds]
        keep = (
            torch.tensor([at for at, columns in enumerate(wanted) for _ in columns], dtype=torch.long, device=device),
            torch.tensor([column for columns in wanted for column in columns], dtype=torch.long, device=device),
        )
        tokens = {"decoder_input_ids" if coded else "input_ids": ids}
        found: CausalLMOutputWithPast | Seq2SeqLMOutput = self.model(**tokens, p=p, logits_to_keep=keep)
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
        new = self._memory.add(mine.source)
        new.length = mine.length if length is None else max(0, min(length, mine.length))
        new.encoded = mine.encoded
        self._memory.copy([new.slot], [mine])
        return new

    @torch.inference_mode()
    def select(self, rows: Sequence[Row], parents: Sequence[int]) -> None:
        mine = [self._mine(row) for row in rows]
        chosen = [mine[parent] for parent in parents]
        states = [(row.length, row.source, row.encoded) for row in chosen]
        self._memory.copy([row.slot for row in mine], chosen)
        for row, state in zip(mine, states, strict=True):
            row.length, row.source, row.encoded = state

    def rewind(self, row: Row, length: int) -> int:
        mine = self._mine(row)
        mine.length = max(0, min(mine.length, length))
        return mine.length

    @torch.inference_mode()
    def close(self, row: Row) -> None:
        self._memory.remove(self._mine(row))

    def describe(self) -> Description:
        weight = self.base.table.weight
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
