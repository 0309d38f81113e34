"""The CPU executor: a blueprint's steps in native code, over packed weights, without torch.

A run is one or a few passes: long prompts go through in pieces, so that what a pass needs stays small. Rows of different
lengths, prompts and single tokens go together, and what one row gets never depends on its company.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from glassformer.candidates import Candidates, top
from glassformer.engine import checks as checking
from glassformer.engine.cpu.library import PAGE
from glassformer.engine.cpu.pages import CpuRow, Pages
from glassformer.engine.cpu.passes import STORES, Floats, Found, Laid, Native, Share, in_numpy, usual_store
from glassformer.engine.protocol import ACTIVATIONS, Description, Feed, Row, Want
from glassformer.errors import ExecutorError
from glassformer.sites import ENCODER, Watch, axes

KEPT = {store: name for name, store in STORES.items()}
PIECE = 256  # tokens of a long prompt that go through together
SCORED = 64  # the same, where each of them is scored


class CpuScores:
    def __init__(self, scores: Floats, sites: Mapping[str, Any]) -> None:
        self._scores = scores  # (wanted positions, vocabulary)
        self.sites = sites

    def host(self, index: int = -1) -> Floats:
        if not len(self._scores):
            raise ExecutorError(checking.UNSCORED)
        found: Floats = self._scores[index]
        return found

    def top(self, k: int, index: int = -1) -> Candidates:
        return top(self.host(index), k)


class Cpu(Native):
    """An `Executor` over a blueprint and stored tensors."""

    # Rows -------------------------------------------------------------------------------------------------------

    def open(self, source: Sequence[int] | None = None) -> CpuRow:
        read = self._checks.source(source)
        return CpuRow(Pages(self._format), Pages(self._format) if read else None, source=read)

    @checking.in_turn
    def fork(self, row: Row, length: int | None = None) -> CpuRow:
        mine = self._mine(row)
        return mine.fork(mine.length if length is None else max(0, min(length, mine.length)))

    @checking.in_turn
    def select(self, rows: Sequence[Row], parents: Sequence[int]) -> None:
        mine = [self._mine(row) for row in rows]
        chosen = [mine[parent].fork(mine[parent].length) for parent in parents]
        for row, other in zip(mine, chosen, strict=True):
            row.release()
            row.own, row.source_pages = other.own, other.source_pages
            row.length, row.source, row.encoded = other.length, other.source, other.encoded

    @checking.in_turn
    def rewind(self, row: Row, length: int) -> int:
        mine = self._mine(row)
        mine.length = max(0, min(mine.length, length))
        mine.own.keep(mine.length)
        return mine.length

    @checking.in_turn
    def close(self, row: Row) -> None:
        mine = self._mine(row)
        mine.open = False
        mine.release()

    @checking.in_turn
    def unembed(self, states: Floats) -> Floats:
        """The program whose last stream can be changed, from there on, over that many tokens which nobody computed."""
        site = f"blocks.{self.blueprint.blocks - 1}.residual"
        ready = self._ready("", frozenset(), frozenset({site}))
        (begin,) = (step for step, changed in ready.program.breaks.items() if site in changed)
        states = checking.stream(states, self.config.hidden_size)
        found = [np.empty((0, self.config.vocab_size), np.float32)]
        for at in range(0, len(states), SCORED):
            part = states[at : at + SCORED]
            row = CpuRow(Pages(self._format))
            share = Share(0, Feed(row, [0] * len(part), Want.ALL), row, 0, len(part))
            laid = Laid(ready, [share], len(part))
            laid.value(site, share)[...] = part
            self._engine.run(laid.upto(begin, len(ready.program.steps)))
            found.append(laid.results()[0][0])
        return np.concatenate(found)

    def describe(self) -> Description:
        kept, usual = (KEPT[store] for store in (self._store, usual_store(self._kind)))
        threads = f"{self._engine.threads} thread{'' if self._engine.threads == 1 else 's'}"
        options = {"cache": (kept, usual), "activations": (self._activations, ACTIVATIONS[0])}
        notes = (f"{self._engine.level}, {threads}", f"keys and values in {kept}")
        each = self._format.bytes // PAGE
        asked = {name: own for name, (own, other) in options.items() if own != other}
        return Description("cpu", "cpu", self._kind, self._engine.threads, each, notes, asked)

    def _mine(self, row: Row) -> CpuRow:
        if not isinstance(row, CpuRow) or not row.open:
            raise ExecutorError(checking.STRANGE)
        return row

    # Passes -----------------------------------------------------------------------------------------------------

    @checking.in_turn
    def run(self, feeds: Sequence[Feed]) -> list[CpuScores]:
        rows = [self._mine(feed.row) for feed in feeds]
        feeds = [self._checks.feed(feed, row.length) for feed, row in zip(feeds, rows, strict=True)]
        checking.once(rows)
        if not feeds:
            return []
        seen = self._encode([(feed, row) for feed, row in zip(feeds, rows, strict=True) if row.source and not row.encoded])
        reads, changes = _sites(feeds)
        ready = self._ready("", reads, changes)
        whole = [Share(number, feed, rows[number], 0, len(feed.ids)) for number, feed in enumerate(feeds)]
        for share in whole:
            share.row.own.reserve(share.start, share.start + share.count)
        keys = max(share.start + share.count for share in whole)
        found: list[list[Found]] = [[] for _ in feeds]
        passes = _pieces(whole)
        for shares in passes:
            for share, one in zip(shares, self._pass(ready, shares, keys), strict=True):
                found[share.number].append(one)
        for share in whole:
            share.row.length += share.count
        return [
            _scores(feed, _joined(parts), seen.get(id(row), {}), row.length - len(feed.ids))
            for feed, row, parts in zip(feeds, rows, found, strict=True)
        ]

    def _encode(self, fresh: Sequence[tuple[Feed, CpuRow]]) -> dict[int, dict[str, Any]]:
        """Read the sources of rows that run for the first time; what their watches saw there, by row."""
        seen: dict[int, dict[str, Any]] = {}
        for feed, row in fresh:
            assert row.source_pages is not None
            ready = self._ready(ENCODER, *_sites([feed]))
            length = len(row.source)
            form = self._form(ENCODER, self.blueprint.encoder)
            reading = CpuRow(Pages(form), row.source_pages, source=row.source)
            for pages in (reading.own, row.source_pages):
                pages.reserve(0, length)
            share = Share(0, Feed(reading, row.source, Want.NONE, watch=feed.watch), reading, 0, length)
            ((_, seen[id(row)]),) = self._pass(ready, [share], length)
            reading.own.keep(0)
            row.encoded = True
        return seen


def _sites(feeds: Sequence[Feed]) -> tuple[frozenset[str], frozenset[str]]:
    """The sites that any of the feeds reads, and those that any changes; of the scores, see to them at the end."""
    watches = [feed.watch for feed in feeds if feed.watch is not None]
    if not watches:
        return frozenset(), frozenset()
    reads = frozenset().union(*(watch.reads for watch in watches))
    changes = frozenset().union(*(watch.changes for watch in watches))
    return reads - {"scores"}, changes - {"scores"}


def _pieces(whole: Sequence[Share]) -> list[list[Share]]:
    """Shares cut into passes that are not too large."""
    passes: list[list[Share]] = [[]]
    room = PIECE
    for share in whole:
        most = SCORED if share.feed.want is Want.ALL else PIECE
        offset = 0
        while offset < share.count:
            if room <= 0:
                passes.append([])
                room = PIECE
            count = share.count if _entire(share.feed) else min(share.count - offset, room, most)
            passes[-1].append(Share(share.number, share.feed, share.row, offset, count))
            offset += count
            room -= count * (PIECE // most)
    return passes


def _entire(feed: Feed) -> bool:
    """Whether a feed cannot be cut: a changed pattern may look ahead."""
    return feed.watch is not None and any(site.endswith(".attention.pattern") for site in feed.watch.changes)


def _joined(parts: Sequence[Found]) -> Found:
    """The pieces of one feed as one."""
    if len(parts) == 1:
        return parts[0]
    scores = np.concatenate([scores for scores, _ in parts])
    seen = {site: _lengthened([part[site] for _, part in parts], site) for site in parts[0][1]}
    return scores, seen


def _lengthened(parts: Sequence[Floats], site: str) -> Floats:
    """One site's values of all pieces; what belongs to the source is the same in each."""
    return np.concatenate(parts, axes(site).index("length")) if "length" in axes(site) else parts[-1]


def _scores(feed: Feed, found: Found, encoded: dict[str, Any], start: int) -> CpuScores:
    """One feed's scores, changed and recorded if its watch asks for the site `scores`."""
    scores, seen = found
    watch: Watch | None = feed.watch
    if watch is None:
        return CpuScores(scores, {})
    columns = checking.wanted(feed)
    if (change := watch.changes.get("scores")) is not None and columns:
        scores = in_numpy(change).apply(scores[None], axes("scores"), start + columns.start)[0]
    if "scores" in watch.reads:
        seen["scores"] = scores[None].copy()
    return CpuScores(scores, {**encoded, **seen})
