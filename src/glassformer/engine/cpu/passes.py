"""Passes of the CPU engine: some tokens of some rows, laid out for one native call, and what comes back.

`Native` is a model in the engine: weights, one program for each set of sites that is looked at, and passes over them. The
executor and the reader are two ways to use it.

Shapes: buffers (tokens, width); scores (wanted positions, vocabulary).
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.blueprints import Blueprint, Config
from glassformer.checkpoint import Stored
from glassformer.checkpoint.stored import main_kind
from glassformer.engine import checks as checking
from glassformer.engine.cpu import library
from glassformer.engine.cpu.library import Engine, Pass, Store, Turns
from glassformer.engine.cpu.lowering import Lowering, Place, Program, matrices
from glassformer.engine.cpu.pages import CpuRow, Format, Pages, addresses
from glassformer.engine.cpu.weights import Weights
from glassformer.engine.protocol import ACTIVATIONS, CACHES, Feed
from glassformer.sites import ENCODER, Change, axes

Floats = npt.NDArray[np.float32]
Found = tuple[Floats, dict[str, Any]]  # scores, and what a watch saw
SOURCED = (".cross.key", ".cross.value")  # sites that lie in a row's memory of its source
PROGRAMS = 32  # that are kept; each has the memory of its largest pass
STORES: Mapping[str, Store] = dict(zip(CACHES, Store, strict=True))
PARTS = dict(zip(ACTIVATIONS, (2, 1), strict=True))  # of each input: eight bits, and six more below them


class Native:
    """A model in the engine."""

    def __init__(
        self, config: Config, blueprint: Blueprint, tensors: Mapping[str, Stored], *, cache: str | None = None,
        activations: str | None = None, engine: Engine | None = None,
    ) -> None:  # fmt: skip
        self.config = config
        self.blueprint = blueprint
        self.context: int = config.context
        self._checks = checking.Checks(config.context, config.vocab_size, blueprint.blocks, blueprint.encoder)
        self._kind = main_kind(tensors.values())
        self._store = STORES[cache] if cache else usual_store(self._kind)
        packed = any(one.packed for one in tensors.values())  # what meets floats is not rounded
        self._activations = activations if activations and packed else ACTIVATIONS[0]
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
        """The program of a stack for these sites, made once; those that were asked for last are kept."""
        key = (stack, _belonging(reads, stack), _belonging(changes, stack))
        ready = self._programs.pop(key, None)
        if ready is None:
            program = Lowering(self.blueprint, self._weights, *key, self.config).lower()
            ready = Ready(program, self._store, PARTS[self._activations])
            if len(self._programs) >= PROGRAMS:
                del self._programs[next(iter(self._programs))]
        self._programs[key] = ready
        return ready

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

    def scored(self) -> int:
        """How many of its tokens are scored: always the last ones."""
        columns = checking.wanted(self.feed)
        return max(0, min(columns.stop, self.offset + self.count) - max(columns.start, self.offset))


class Ready:
    """A program and the memory that its passes use, taken again by each."""

    def __init__(self, program: Program, store: Store, parts: int) -> None:
        self.program = program
        self.turns = (Turns * max(1, len(program.ropes)))()
        self._tables: list[Floats] = [np.empty(0, np.float32) for _ in program.ropes]
        self._frequencies = [np.ascontiguousarray(rope.frequencies(size)) for rope, size in program.ropes]
        self._buffers: list[Floats] = [np.empty(0, np.float32) for _ in program.widths]
        self._addresses = np.zeros(max(1, len(program.widths)), np.uint64)
        self.widths = np.array([max(width, 0) for width in program.widths] or [0], np.int32)
        self._patterns = any(width < 0 for width in program.widths)
        self._dynamic = any(rope.kind == "dynamic" for rope, _ in program.ropes)
        self._room = (0, 0)  # of tokens, and of scores
        self.native = Pass(
            steps=program.native, turns=self.turns, buffers=self._addresses.ctypes.data, widths=self.widths.ctypes.data,
            turn_count=len(program.ropes), store=store, parts=parts,
        )  # fmt: skip

    def lay(self, tokens: int, scored: int, keys: int, reach: int) -> None:
        """Make room for so many tokens, scores and keys; `reach`: the furthest position, for RoPE that looks at it."""
        if self._patterns or self._dynamic or tokens > self._room[0] or scored > self._room[1]:
            self._room = (max(tokens, self._room[0]), max(scored, self._room[1]))
            self._lay_buffers(keys)
            self._lay_turns(reach)

    def _lay_buffers(self, keys: int) -> None:
        tokens, scored = self._room
        for number, width in enumerate(self.program.widths):
            rows = scored if number == self.program.scores else tokens
            wide = -width * keys if width < 0 else width
            self.widths[number] = wide
            if self._buffers[number].size < rows * wide:
                self._buffers[number] = np.empty(rows * wide, np.float32)
                self._addresses[number] = self._buffers[number].ctypes.data

    def _lay_turns(self, reach: int) -> None:
        for number, (rope, size) in enumerate(self.program.ropes):
            if rope.kind == "dynamic":
                self._frequencies[number] = np.ascontiguousarray(rope.frequencies(size, reach))
            if self._tables[number].size < self._room[0] * size:
                self._tables[number] = np.empty(self._room[0] * size, np.float32)
            table, frequencies = self._tables[number].ctypes.data, self._frequencies[number].ctypes.data
            self.turns[number] = Turns(frequencies, table, rope.scale, size)

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
        self.scored = [share.scored() for share in shares]
        ids, positions, wanted = self._numbers = (array("i"), array("i"), array("i"))
        for share, tree, scored in zip(shares, self.trees, self.scored, strict=True):
            end = share.offset + share.count
            ids.extend(share.feed.ids[share.offset : end])
            positions.extend(
                range(share.start + share.offset, share.start + end) if tree is None else tree[1][share.offset : end]
            )
            wanted.extend(range(share.first + share.count - scored, share.first + share.count))
        typed = [share.types for share in shares if share.types is not None]
        self.types = np.concatenate(typed).astype(np.int32) if typed else None
        memory = max((len(share.row.source) for share in shares), default=0)
        planted = any(tree is not None for tree in self.trees)
        ready.lay(self.tokens, len(wanted), max(keys, memory), max(positions) + 1 if planted else keys)
        decoding = ready.program.scores is not None  # an encoder writes what is changed later
        self.sources = [_changed_source(share) if decoding else share.row.source_pages for share in shares]
        self.feeds = (library.Feed * len(shares))(
            *(self._feed(*each) for each in zip(shares, self.sources, self.trees, self.scored, strict=True))
        )
        native = ready.native
        native.feeds, native.feed_count = self.feeds, len(shares)
        native.ids, native.positions, native.wanted = (numbers.buffer_info()[0] for numbers in self._numbers)
        native.types = None if self.types is None else self.types.ctypes.data
        native.token_count, native.wanted_count = self.tokens, len(wanted)

    def _feed(self, share: Share, source: Pages | None, tree: tuple[Any, Any] | None, scored: int) -> library.Feed:
        row = share.row
        seen, places = (None, None) if tree is None else (one.ctypes.data for one in tree)
        return library.Feed(
            addresses(row.own), addresses(source), seen, places, share.start, len(share.feed.ids), share.offset,
            share.first, share.count, len(row.source), scored,
        )  # fmt: skip

    def upto(self, begin: int, end: int) -> Pass:
        """The pass from one step to another."""
        self.ready.native.begin, self.ready.native.step_count = begin, end
        return self.ready.native

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
        all_scores = np.empty((0, 0), np.float32) if scores is None else self.ready.buffer(scores, sum(self.scored))
        found, at = [], 0
        for share, source, count in zip(self.shares, self.sources, self.scored, strict=True):
            reads = share.feed.watch.reads if share.feed.watch is not None else ()
            seen = {site: self.value(site, share).copy() for site in self.ready.program.sites if site in reads}
            if source is not None and self.ready.program.scores is not None:
                seen |= {site: _of_source(source, site, len(share.row.source)) for site in reads if site.endswith(SOURCED)}
            found.append((all_scores[at : at + count].copy(), seen))  # the next pass takes the buffer again
            at += count
        return found


def usual_store(kind: str) -> Store:
    """What keys and values are kept in, by the kind of the weights, unless it is said."""
    return Store.F32 if kind in ("F32", "F64") else Store.F16


def _belonging(sites: frozenset[str], stack: str) -> frozenset[str]:
    """The sites that a stack's program gives."""
    return frozenset(site for site in sites if site.startswith(ENCODER) == bool(stack) and not site.endswith(SOURCED))


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
