"""Passes of the CPU engine: some tokens of some rows, laid out for one native call, and what comes back.

`Native` is a model in the engine: weights, one program for each set of sites that is looked at, and passes over them. The
executor and the reader are two ways to use it.

Shapes: buffers (tokens, width); scores (wanted positions, vocabulary).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.blueprints import Blueprint, Config
from glassformer.checkpoint import Stored
from glassformer.checkpoint.stored import main_kind
from glassformer.engine import rows as checking
from glassformer.engine.cpu import library
from glassformer.engine.cpu.library import Engine, Pass, Store, Turns
from glassformer.engine.cpu.lowering import Lowering, Place, Program, matrices
from glassformer.engine.cpu.pages import CpuRow, Format, Pages, addresses
from glassformer.engine.cpu.weights import Weights
from glassformer.engine.protocol import CACHES, Feed
from glassformer.sites import ENCODER, Change, axes

Floats = npt.NDArray[np.float32]
Found = tuple[Floats, dict[str, Any]]  # scores, and what a watch saw
SOURCED = (".cross.key", ".cross.value")  # sites that lie in a row's memory of its source
STORES: Mapping[str, Store] = dict(zip(CACHES, Store, strict=True))


class Native:
    """A model in the engine."""

    def __init__(
        self, config: Config, blueprint: Blueprint, tensors: Mapping[str, Stored], *, cache: str | None = None,
        engine: Engine | None = None,
    ) -> None:  # fmt: skip
        self.config = config
        self.blueprint = blueprint
        self.context: int = config.context
        self._checks = checking.Checks(config.context, config.vocab_size, blueprint.blocks, blueprint.encoder)
        self._kind = main_kind(tensors.values())
        self._store = _store(cache, self._kind)
        self._engine = engine or Engine()
        self._turn = threading.Lock()  # buffers are taken again by each pass, so one runs at a time
        self._weights = Weights(tensors, {weight.name: weight.shape for weight in blueprint.weights}, self._engine)
        for names, shape, across in matrices(blueprint):
            self._weights.expect(names, shape, across)
        self._weights.prepare()
        self._programs: dict[tuple[str, frozenset[str], frozenset[str]], Ready] = {}
        self._format = self._form("", blueprint.blocks)

    def _form(self, stack: str, layers: int) -> Format:
        """What a page holds of a stack's tokens; an encoder's heads may be others than its decoder's."""
        ops = self.blueprint.ops
        attention = next(op for op in ops if op.kind == "attend" and op.stack == stack)
        key = ops[attention.reads[1]].shape
        return Format(layers, int(key[1]), int(key[3]), self._store)

    def _ready(self, stack: str, reads: frozenset[str], changes: frozenset[str]) -> Ready:
        """The program of a stack for these sites, made once."""
        key = (stack, _belonging(reads, stack), _belonging(changes, stack))
        if key not in self._programs:
            program = Lowering(self.blueprint, self._weights, *key, self.config).lower()
            self._programs[key] = Ready(program, self._store)
        return self._programs[key]

    def _pass(self, ready: Ready, shares: Sequence[Share], keys: int) -> list[Found]:
        """One pass over some tokens of some rows: each share's scores, and what its watch saw."""
        at = 0
        for share in shares:
            share.first = at
            at += share.count
        laid = Laid(ready, shares, keys)
        begin = 0
        breaks, mixed = ready.program.breaks, ready.program.mixed
        for step in sorted({*breaks, *mixed}):
            self._engine.run(laid.upto(begin, step))
            begin = step
            for mix in mixed.get(step, ()):
                laid.mix(*mix)
            for site in breaks.get(step, ()):
                laid.change(site)
        self._engine.run(laid.upto(begin, len(ready.program.steps)))
        return laid.results()


@dataclass(slots=True)
class Share:
    """A piece of a feed that goes through one pass."""

    number: int  # of the feed
    feed: Feed
    row: CpuRow
    offset: int  # tokens of the feed in earlier passes
    count: int
    first: int = 0  # its first token's number in the pass
    types: Sequence[int] | None = None  # which of an encoder's two texts each token belongs to

    @property
    def start(self) -> int:
        return self.row.length

    def wanted(self) -> list[int]:
        """Its tokens that are scored, by their number in the pass."""
        columns = checking.wanted(self.feed)
        return [self.first + column - self.offset for column in columns if 0 <= column - self.offset < self.count]


class Ready:
    """A program and the memory that its passes use, taken again by each."""

    def __init__(self, program: Program, store: Store) -> None:
        self.program = program
        self.store = store
        self.turns = (Turns * max(1, len(program.ropes)))()
        self.frequencies: list[Floats] = []
        self.tables: list[Floats] = []
        for rope, size in program.ropes:
            self.frequencies.append(np.ascontiguousarray(rope.frequencies(size)))
            self.tables.append(np.empty(0, np.float32))
        self._buffers: list[Floats] = [np.empty(0, np.float32) for _ in program.widths]
        self.addresses = np.zeros(max(1, len(program.widths)), np.uint64)
        self.widths = np.array([max(width, 0) for width in program.widths] or [0], np.int32)

    def lay(self, tokens: int, wanted: int, keys: int, reach: int) -> None:
        """Make room for so many tokens, scores and keys; `reach`: the furthest position, for RoPE that looks at it."""
        for number, width in enumerate(self.program.widths):
            rows = wanted if number == self.program.scores else tokens
            wide = -width * keys if width < 0 else width
            self.widths[number] = wide
            if self._buffers[number].size < rows * wide:
                self._buffers[number] = np.empty(rows * wide, np.float32)
                self.addresses[number] = self._buffers[number].ctypes.data
        for number, (rope, size) in enumerate(self.program.ropes):
            if rope.kind == "dynamic":
                self.frequencies[number] = np.ascontiguousarray(rope.frequencies(size, reach))
            if self.tables[number].size < tokens * size:
                self.tables[number] = np.empty(tokens * size, np.float32)
            turns = self.turns[number]
            turns.frequencies, turns.table = self.frequencies[number].ctypes.data, self.tables[number].ctypes.data
            turns.scale, turns.size = rope.scale, size

    def buffer(self, number: int, rows: int) -> Floats:
        wide = int(self.widths[number])
        return self._buffers[number][: rows * wide].reshape(rows, wide)


class Laid:
    """A pass laid out for the engine, and its results read back."""

    def __init__(self, ready: Ready, shares: Sequence[Share], keys: int) -> None:
        self.ready = ready
        self.shares = shares
        self.tokens = sum(share.count for share in shares)
        self.trees = [_tree(share) if share.feed.parents is not None else None for share in shares]
        self.ids = np.array([token for share in shares for token in _own(share)], np.int32)
        self.positions = np.concatenate([_positions(share, tree) for share, tree in zip(shares, self.trees, strict=True)])
        self.wanted = np.array([token for share in shares for token in share.wanted()], np.int32)
        typed = [share.types for share in shares if share.types is not None]
        self.types = np.concatenate(typed).astype(np.int32) if typed else None
        memory = max((len(share.row.source) for share in shares), default=0)
        self.keys = max(keys, memory)
        planted = any(tree is not None for tree in self.trees)
        ready.lay(self.tokens, len(self.wanted), self.keys, int(self.positions.max()) + 1 if planted else keys)
        decoding = ready.program.scores is not None  # an encoder writes what is changed later
        self.sources = [_changed_source(share) if decoding else share.row.source_pages for share in shares]
        self.feeds = (library.Feed * len(shares))(
            *(self._feed(*each) for each in zip(shares, self.sources, self.trees, strict=True))
        )

    def _feed(self, share: Share, source: Pages | None, tree: tuple[Any, Any] | None) -> library.Feed:
        row = share.row
        seen, places = (None, None) if tree is None else (one.ctypes.data for one in tree)
        return library.Feed(
            addresses(row.own), addresses(source), seen, places, share.start, len(share.feed.ids), share.offset,
            share.first, share.count, len(row.source), len(share.wanted()),
        )  # fmt: skip

    def upto(self, begin: int, end: int) -> Pass:
        ready = self.ready
        return Pass(
            ctypes.cast(ready.program.native, ctypes.POINTER(library.Step)), self.feeds, ready.turns, self.ids.ctypes.data,
            self.positions.ctypes.data, self.wanted.ctypes.data, None if self.types is None else self.types.ctypes.data,
            ready.addresses.ctypes.data, ready.widths.ctypes.data, end, len(self.shares), len(ready.program.ropes),
            self.tokens, len(self.wanted), ready.store, begin,
        )  # fmt: skip

    def value(self, site: str, share: Share) -> Floats:
        """What lies at a site for one share, with the site's own axes."""
        place: Place = self.ready.program.sites[site]
        rows = self.ready.buffer(place.buffer, self.tokens)[share.first : share.first + share.count]
        if place.pattern:
            own = len(share.row.source) if ".cross." in site else share.start + len(share.feed.ids)
            return rows.reshape(share.count, place.heads, -1).swapaxes(0, 1)[None, :, :, :own]
        rows = rows[:, place.first : place.first + (place.width or 0)]
        if place.heads:
            return rows.reshape(share.count, place.heads, -1).swapaxes(0, 1)[None]
        return rows[None]

    def changed(self, site: str) -> list[tuple[Share, Change]]:
        """The shares whose watch changes a site, and how."""
        watched = ((share, share.feed.watch) for share in self.shares)
        return [(share, watch.changes[site]) for share, watch in watched if watch is not None and site in watch.changes]

    def mix(self, pattern: str, mixed: int, joined: int) -> None:
        """Heads made of a changed pattern, for who changed it; for all others, heads stay as attention gave them."""
        source, into = (self.ready.buffer(number, self.tokens) for number in (mixed, joined))
        for share, _ in self.changed(pattern):
            own = slice(share.first, share.first + share.count)
            into[own] = source[own]

    def change(self, site: str) -> None:
        for share, change in self.changed(site):
            value = self.value(site, share)
            value[...] = in_numpy(change).apply(value, axes(site), share.start + share.offset)

    def results(self) -> list[Found]:
        scores = self.ready.program.scores
        all_scores = np.empty((0, 0), np.float32) if scores is None else self.ready.buffer(scores, len(self.wanted))
        found, at = [], 0
        for share, source in zip(self.shares, self.sources, strict=True):
            count = len(share.wanted())
            reads = share.feed.watch.reads if share.feed.watch is not None else ()
            seen = {site: self.value(site, share).copy() for site in self.ready.program.sites if site in reads}
            if source is not None and self.ready.program.scores is not None:
                seen |= {site: _of_source(source, site, len(share.row.source)) for site in reads if site.endswith(SOURCED)}
            found.append((all_scores[at : at + count], seen))
            at += count
        return found


def _store(asked: str | None, kind: str) -> Store:
    if asked is None:
        return Store.F32 if kind in ("F32", "F64") else Store.F16
    return STORES[asked]


def _belonging(sites: frozenset[str], stack: str) -> frozenset[str]:
    """The sites that a stack's program gives."""
    return frozenset(site for site in sites if site.startswith(ENCODER) == bool(stack) and not site.endswith(SOURCED))


def _own(share: Share) -> Sequence[int]:
    return share.feed.ids[share.offset : share.offset + share.count]


def _positions(share: Share, tree: tuple[Any, Any] | None) -> npt.NDArray[np.int32]:
    if tree is not None:
        places: npt.NDArray[np.int32] = tree[1][share.offset : share.offset + share.count]
        return places
    first = share.start + share.offset
    return np.arange(first, first + share.count, dtype=np.int32)


def _tree(share: Share) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """Which of the feed's tokens each one sees, and where each one stands."""
    parents = share.feed.parents or ()
    seen = np.zeros((len(parents), len(parents)), np.uint8)
    places = np.zeros(len(parents), np.int32)
    for number, parent in enumerate(parents):
        if parent >= 0:
            seen[number] = seen[parent]
        seen[number, number] = 1
        places[number] = share.start if parent < 0 else places[parent] + 1
    return seen, places


def _of_source(source: Pages, site: str, length: int) -> Floats:
    """What cross-attention sees of a source: its keys or its values."""
    keys, values = source.read(int(site.split(".")[1]), length)
    return (keys if site.endswith(".key") else values)[None]


def _changed_source(share: Share) -> Pages | None:
    """The memory of a row's source, for this pass: a changed copy of it if the feed's watch says so."""
    source, watch = share.row.source_pages, share.feed.watch
    changes = {} if watch is None else {site: one for site, one in watch.changes.items() if site.endswith(SOURCED)}
    if source is None or not changes:
        return source
    length = len(share.row.source)
    changed = source.share(length)
    changed.reserve(0, length)  # copies what it shares
    for site, change in changes.items():
        layer = int(site.split(".")[1])
        both = list(changed.read(layer, length))
        at = 0 if site.endswith(".key") else 1
        both[at] = in_numpy(change).apply(both[at][None], axes(site), 0)[0]
        changed.write(layer, *both)
    return changed


def in_numpy(change: Change) -> Change:
    """A change whose numbers may have been another library's."""
    return change if change.shift is None else replace(change, shift=np.asarray(change.shift))
