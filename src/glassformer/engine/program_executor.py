"""An executor that runs programs over rows in pages: what the CPU and the GPU engine share.

A blueprint is lowered to a program for each set of watched sites. A run is one or a few passes of a program, so that a pass
needs little memory: rows of different lengths, prefill and decode go together. Its numbers are batch-invariant: what a row
gets does not depend on what runs beside it.

An engine says how a program is prepared, how feeds are cut into passes, and how one pass is run. Its values are numpy arrays
or tensors: what is done to them here is written the same for both.

Shapes: logits (scored positions, vocabulary).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from glassformer.blueprints import Blueprint, Config
from glassformer.engine import checks
from glassformer.engine.lowering import Lowering
from glassformer.engine.paged_rows import PagedRows, PageFormat, RowType
from glassformer.engine.program import Program
from glassformer.engine.program_pass import (
    FeedChunk,
    by_frequencies,
    entry_site,
    stack_sites,
    watched_sites,
)  # fmt: skip
from glassformer.engine.protocol import NO_EXTRAS, Capabilities, Feed, Want, copied
from glassformer.ground.ownership import ForkSafeLock, NotCopied
from glassformer.ground.sites import ENCODER, axes, where_of
from glassformer.ops.attend import Attend

MAX_PROGRAMS = 32  # that are kept
NO_SITES: frozenset[str] = frozenset()


class PreparedProgram(Protocol):
    """A program that is ready to run."""

    program: Program


class PassLogits(Protocol):
    """The logits of a feed, or of a part of it, and the sites that its watch reads."""

    sites: dict[str, Any]

    @property
    def values(self) -> Any:
        """All of them."""

    def with_values(self, values: Any, sites: dict[str, Any]) -> Self:
        """Others in their place."""


Prepared = TypeVar("Prepared", bound=PreparedProgram)
LogitsType = TypeVar("LogitsType", bound=PassLogits)


class ProgramModel(NotCopied, Generic[Prepared]):
    """A model as programs."""

    def __init__(self, config: Config, blueprint: Blueprint, capabilities: Capabilities = NO_EXTRAS) -> None:
        """`capabilities`: which feeds it takes."""
        self.config = config
        self.blueprint = blueprint
        self.context: int = config.context
        self._checks = checks.InputChecks(
            config.context, config.vocab_size, blueprint.site_names, capabilities, config.source_context,
            blueprint.has_global_tokens,
        )  # fmt: skip
        self._lock = ForkSafeLock()  # passes reuse buffers, so one runs at a time
        self._programs: dict[tuple[str, frozenset[str], frozenset[str], bool], Prepared] = {}

    def _prepare(self, program: Program) -> Prepared:
        raise NotImplementedError

    def _program(
        self, stack: str, reads: frozenset[str] = NO_SITES, changes: frozenset[str] = NO_SITES, global_tokens: bool = False
    ) -> Prepared:
        """The program of a stack for these sites, and for rows that may have global tokens; the least recently used are
        dropped."""
        key = (stack, stack_sites(reads, stack), stack_sites(changes, stack), global_tokens)
        prepared = self._programs.pop(key, None)
        if prepared is None:
            prepared = self._prepare(Lowering(self.blueprint, *key[:3], self.config, global_tokens).lower())
            if len(self._programs) >= MAX_PROGRAMS:
                del self._programs[next(iter(self._programs))]
        self._programs[key] = prepared
        return prepared

    def _page_formats(self, cache: str) -> dict[str, PageFormat]:
        """What a page holds of each stack's tokens; an encoder's heads may differ from its decoder's."""
        blueprint = self.blueprint
        cached = {op.stack: op.cached_shape(blueprint.ops) for op in blueprint.ops_of(Attend)}
        formats = {
            stack: PageFormat(
                blueprint.caching_layers(stack),
                shape.heads,
                shape.key_size,
                cache,
                shape.latent,
                blueprint.key_shapes(stack),
            )
            for stack, shape in cached.items()
        }
        return {"": PageFormat(0, 0, 0, cache), **formats}


class ProgramExecutor(ProgramModel[Prepared], PagedRows[RowType], Generic[Prepared, RowType, LogitsType]):
    """An `Executor` over a blueprint; engines fill in its passes."""

    _max_unembedded: int  # states of one pass

    def _split_passes(self, feeds: Sequence[FeedChunk], divisible: bool) -> Iterable[list[FeedChunk]]:
        """Whole feeds, cut into chunks if they are `divisible`, by pass."""
        raise NotImplementedError

    def _run_pass(self, prepared: Prepared, chunks: Sequence[FeedChunk]) -> list[LogitsType]:
        """One pass: each chunk's logits, and the sites that its watch reads."""
        raise NotImplementedError

    def _finish_pass(
        self, prepared: Prepared, chunk: FeedChunk, begin: int, site: str, states: npt.NDArray[np.float32],
        logits: npt.NDArray[np.float32],
    ) -> None:  # fmt: skip
        """The steps from `begin` on with these states at a site; writes the logits."""
        raise NotImplementedError

    @staticmethod
    def _concatenate(parts: list[Any], axis: int) -> Any:
        raise NotImplementedError

    @checks.locked
    def run(self, feeds: Sequence[Feed]) -> list[LogitsType]:
        rows = [self._open_row(feed.row) for feed in feeds]
        feeds = [self._checked(feed, row.length) for feed, row in zip(feeds, rows, strict=True)]
        checks.check_fed_once(rows)
        logits: list[LogitsType] = self._run_rows(feeds, rows) if feeds else []
        return logits

    def _checked(self, feed: Feed, length: int) -> Feed:
        """A feed that fits a row of this length, and whose states, if it begins at a block, fit its tokens."""
        feed = self._checks.feed(feed, length)
        if feed.begin is None:
            return feed
        states = checks.block_states(feed.begin, len(feed.ids), self.config.hidden_size)
        return replace(feed, begin=feed.begin._replace(states=states))

    def _run_feeds(self, feeds: Sequence[Feed], rows: Sequence[RowType]) -> list[LogitsType]:
        encoder_sites = self._encode(feeds, rows)
        reads, changes = watched_sites(feeds)
        entries = [entry_site(feed) for feed in feeds]
        prepared = self._program("", reads, changes.union(site for site in entries if site is not None))
        entry_steps = {site: step for step, sites in prepared.program.changed_sites.items() for site in sites}
        whole = [
            FeedChunk(index, feed, row, 0, len(feed.ids), begin_step=entry_steps[entry] if entry is not None else 0)
            for index, (feed, row, entry) in enumerate(zip(feeds, rows, entries, strict=True))
        ]
        with checks.rewound(feeds, rows):
            for chunk in whole:
                chunk.row.pages.reserve(chunk.start, chunk.start + chunk.count)
            results = self._run_chunks(prepared, sorted(whole, key=lambda chunk: chunk.begin_step))
            for chunk in whole:
                chunk.row.length += chunk.count
        return [
            self._watched(feed, result, encoder_sites.get(id(row), {}), row.length - len(feed.ids))
            for feed, row, result in zip(feeds, rows, results, strict=True)
        ]

    def _run_chunks(self, prepared: Prepared, whole: Sequence[FeedChunk]) -> list[LogitsType]:
        """All passes over whole feeds: the results of each."""
        results: list[list[LogitsType]] = [[] for _ in whole]
        for group in by_frequencies(prepared.program, whole):
            for chunks in self._split_passes(group, divisible=prepared.program.scores is not None):
                for chunk, result in zip(chunks, self._run_pass(prepared, chunks), strict=True):
                    results[chunk.index].append(result)
        return [self._joined(parts) for parts in results]

    def _encode(self, feeds: Sequence[Feed], rows: Sequence[RowType]) -> dict[int, dict[str, Any]]:
        """Encode the sources of rows that run for the first time; the sites that their watches read there, by row."""
        unread = [(feed, row) for feed, row in zip(feeds, rows, strict=True) if row.source and not row.encoded]
        if not unread:
            return {}
        chosen = any(row.source.global_tokens for _, row in unread)
        prepared = self._program(ENCODER, *watched_sites([feed for feed, _ in unread]), chosen)
        chunks = []
        for index, (feed, row) in enumerate(unread):
            assert row.source_pages is not None
            encoder_row = self._row_type(self._new_pages(ENCODER), row.source_pages, source=row.source)
            for pages in (encoder_row.pages, row.source_pages):
                pages.reserve(0, len(row.source))
            encoder_feed = Feed(encoder_row, row.source, Want.NONE, watch=feed.watch)
            chunks.append(FeedChunk(index, encoder_feed, encoder_row, 0, len(row.source)))
        results = self._run_chunks(prepared, chunks)
        for chunk, (_, row) in zip(chunks, unread, strict=True):
            chunk.row.pages.truncate(0)
            row.encoded = True
        return {id(row): result.sites for (_, row), result in zip(unread, results, strict=True)}

    def _joined(self, parts: list[LogitsType]) -> LogitsType:
        """The results of one feed's chunks as one; sites of the source are the same in each."""
        if len(parts) == 1:
            return parts[0]
        sites = {
            site: self._concatenate([part.sites[site] for part in parts], axes(site).index("length"))
            if "length" in axes(site)
            else value
            for site, value in parts[-1].sites.items()
        }
        return parts[0].with_values(self._concatenate([part.values for part in parts], 0), sites)

    @staticmethod
    def _watched(feed: Feed, logits: LogitsType, encoder_sites: dict[str, Any], start: int) -> LogitsType:
        """One feed's logits, changed and recorded if its watch asks for the site `scores`."""
        watch = feed.watch
        if watch is None:
            return logits
        sites, columns = {**encoder_sites, **logits.sites}, checks.scored_columns(feed)
        if (change := watch.changes.get("scores")) is not None and columns:
            where = where_of("scores", start + columns.start, start + len(feed.ids))
            logits = logits.with_values(change.apply(logits.values[None], where)[0], sites)
        if "scores" in watch.reads:
            sites["scores"] = copied(logits.values[None])
        logits.sites = sites
        return logits

    @checks.locked
    def unembed(self, states: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Runs the program that can change the last residual from there on, over dummy tokens with these states."""
        site = f"blocks.{self.blueprint.blocks - 1}.residual"
        prepared = self._program("", changes=frozenset({site}))
        (begin,) = (step for step, sites in prepared.program.changed_sites.items() if site in sites)
        states = checks.residual_states(states, self.config.hidden_size)
        logits = np.empty((len(states), self.config.vocab_size), np.float32)
        for first in range(0, len(states), self._max_unembedded):
            part = states[first : first + self._max_unembedded]
            row = self._row_type(self._new_pages())
            chunk = FeedChunk(0, Feed(row, [0] * len(part), Want.ALL), row, 0, len(part))
            self._finish_pass(prepared, chunk, begin, site, part, logits[first : first + len(part)])
        return logits
