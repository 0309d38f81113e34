"""The plain executor: the families' own PyTorch, run over ragged rows. It works everywhere and defines what is right.

Shapes: ids (rows, length), short rows filled up at the end; logits (wanted positions, vocabulary).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from glassformer.candidates import Candidates, top
from glassformer.engine import checks as checking
from glassformer.engine.plain.kv_cache import Memory, PlainRow, Sources, Window
from glassformer.engine.protocol import Description, Feed, Row
from glassformer.errors import ExecutorError
from glassformer.families.shared.heads import CausalLM, Seq2SeqLM
from glassformer.families.shared.outputs import CausalLMOutputWithPast, Seq2SeqLMOutput
from glassformer.families.shared.seq2seq import EncoderDecoder
from glassformer.layers import Mask
from glassformer.sites import Observer, Tap, axes

FILL = 0  # an id for the positions behind a short row's end; nobody sees what becomes of it


class PlainScores:
    def __init__(self, logits: Tensor, sites: Mapping[str, Any]) -> None:
        self._logits = logits  # (wanted positions, vocabulary)
        self.sites = sites

    def host(self, index: int = -1) -> npt.NDArray[np.float32]:
        if not len(self._logits):
            raise ExecutorError(checking.UNSCORED)
        scores: npt.NDArray[np.float32] = self._logits[index].float().cpu().numpy()
        return scores

    def top(self, k: int, index: int = -1) -> Candidates:
        return top(self.host(index), k)


class Plain:
    """An `Executor` over any model that scores the next token."""

    def __init__(self, model: CausalLM | Seq2SeqLM) -> None:
        self.model = model
        self.base = model.base_model
        self.context: int = model.config.context
        config = model.config
        self._checks = checking.Checks(
            config.context, self.base.table.num_embeddings, config.num_hidden_layers, config.encoder_layers
        )
        self._memory = Memory(config.num_hidden_layers)
        self._turn = threading.Lock()

    @checking.in_turn
    def open(self, source: Sequence[int] | None = None) -> PlainRow:
        return self._memory.add(self._checks.source(source))

    @checking.in_turn
    @torch.inference_mode()
    def run(self, feeds: Sequence[Feed]) -> list[PlainScores]:
        rows = [self._mine(feed.row) for feed in feeds]
        feeds = [self._checks.feed(feed, row.length) for feed, row in zip(feeds, rows, strict=True)]
        checking.once(rows)
        if not feeds:
            return []
        order = sorted(range(len(feeds)), key=lambda at: rows[at].slot)
        read = self._encode([(feed, row) for feed, row in zip(feeds, rows, strict=True) if row.source and not row.encoded])
        found = self._pass([feeds[at] for at in order], [rows[at] for at in order], read)
        scores: list[PlainScores | None] = [None] * len(feeds)
        for at, one in zip(order, found, strict=True):
            rows[at].length += len(feeds[at].ids)
            scores[at] = one
        return [one for one in scores if one is not None]

    def _mine(self, row: Row) -> PlainRow:
        if not isinstance(row, PlainRow) or not row.open:
            raise ExecutorError(checking.STRANGE)
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
        observers = {
            row.slot: Observer(feed.watch, at, source=len(row.source))
            for at, (feed, row) in enumerate(fresh)
            if feed.watch is not None
        }
        tap = Tap(list(observers.values())) if observers else None
        states = base.encode(base.embed_source(ids), base.begin(positions, mask, tap=tap))
        track, slots = self._memory.source, [row.slot for row in rows]
        track.reserve(len(self._memory.rows), longest)
        for layer, crossing in enumerate(base.crossings):
            key, value = crossing.project_source(states)
            keys, values = track.shaped(len(self._memory.rows), key, value)
            keys[layer, slots, :, :longest] = key
            values[layer, slots, :, :longest] = value
        for row in rows:
            row.encoded = True
        return {slot: observer.record for slot, observer in observers.items()}

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
        observers = [
            Observer(
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
        tap = Tap([observer for observer in observers if observer is not None]) if any(observers) else None
        coded = isinstance(self.base, EncoderDecoder)
        source = Sources(self._memory.source, rows, device) if coded else None
        p = self.base.begin(positions, mask, window, tap, source)
        wanted = [checking.wanted(feed) for feed in feeds]
        keep = (
            torch.tensor([at for at, columns in enumerate(wanted) for _ in columns], dtype=torch.long, device=device),
            torch.tensor([column for columns in wanted for column in columns], dtype=torch.long, device=device),
        )
        tokens = {"decoder_input_ids" if coded else "input_ids": ids}
        found: CausalLMOutputWithPast | Seq2SeqLMOutput = self.model(**tokens, p=p, logits_to_keep=keep)
        assert found.logits is not None
        parts = torch.split(found.logits, [len(columns) for columns in wanted])
        return [_scores(*each) for each in zip(feeds, parts, observers, starts, wanted, strict=True)]

    def _plant(self, feeds: Sequence[Feed], starts: Sequence[int], mask: Mask, positions: Tensor) -> Tensor:
        """Trees: let each token see only its own ancestors, and stand one step behind its parent."""
        positions = positions.clone()
        seen = mask.visible().clone()
        for at, (feed, start) in enumerate(zip(feeds, starts, strict=True)):
            if feed.parents is None:
                continue
            for number, parent in enumerate(feed.parents):
                line = seen[at, 0, number]
                line[start:] = False if parent < 0 else seen[at, 0, parent, start:]
                line[start + number] = True
                positions[at, number] = start if parent < 0 else positions[at, parent] + 1
        places = torch.arange(mask.keys, device=seen.device).repeat(len(feeds), 1)
        places.scatter_(1, mask.columns, positions)
        mask.given(seen, places, positions)
        return positions

    @checking.in_turn
    @torch.inference_mode()
    def fork(self, row: Row, length: int | None = None) -> PlainRow:
        mine = self._mine(row)
        new = self._memory.add(mine.source)
        new.length = mine.length if length is None else max(0, min(length, mine.length))
        new.encoded = mine.encoded
        self._memory.copy([new.slot], [mine])
        return new

    @checking.in_turn
    @torch.inference_mode()
    def select(self, rows: Sequence[Row], parents: Sequence[int]) -> None:
        mine = [self._mine(row) for row in rows]
        chosen = [mine[parent] for parent in parents]
        states = [(row.length, row.source, row.encoded) for row in chosen]
        self._memory.copy([row.slot for row in mine], chosen)
        for row, state in zip(mine, states, strict=True):
            row.length, row.source, row.encoded = state

    @checking.in_turn
    def rewind(self, row: Row, length: int) -> int:
        mine = self._mine(row)
        mine.length = max(0, min(mine.length, length))
        return mine.length

    @checking.in_turn
    @torch.inference_mode()
    def close(self, row: Row) -> None:
        self._memory.remove(self._mine(row))

    @torch.inference_mode()
    def unembed(self, states: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        weight = self.base.table.weight
        given = torch.from_numpy(checking.stream(states, self.model.config.hidden_size)).to(weight.device, weight.dtype)
        found: npt.NDArray[np.float32] = self.model.head_part(self.base.finish(given)).float().cpu().numpy()
        return found

    def describe(self) -> Description:
        weight = self.base.table.weight
        dtype = str(weight.dtype).removeprefix("torch.")
        return Description("plain", str(weight.device), dtype, torch.get_num_threads(), self._memory.own.bytes_each)


def _scores(feed: Feed, logits: Tensor, observer: Observer | None, start: int, columns: range) -> PlainScores:
    """One feed's scores, changed and recorded if its watch asks for the site `scores`."""
    if feed.watch is None or observer is None:
        return PlainScores(logits, {})
    if (change := feed.watch.changes.get("scores")) is not None and columns:
        logits = change.apply(logits[None], axes("scores"), start + columns.start)[0]
    if "scores" in feed.watch.reads:
        observer.record["scores"] = logits[None]
    return PlainScores(logits, observer.record)
