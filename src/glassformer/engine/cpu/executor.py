"""The CPU executor: a blueprint's ops in native code, over packed weights, without torch.

A run is one or a few passes: long prompts are cut into chunks, so that a pass needs little memory. Rows of different
lengths, prefill and decode go together, and the results of a row never depend on the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.blueprints import Blueprint, Config
from glassformer.checkpoint import StoredTensor
from glassformer.engine import checks
from glassformer.engine.cpu.kv_pages import CpuRow, PageTable
from glassformer.engine.cpu.library import PAGE, Engine
from glassformer.engine.cpu.passes import (
    KV_DTYPES,
    EnginePass,
    Floats,
    NativeModel,
    PassResult,
    default_kv_dtype,
)  # fmt: skip
from glassformer.engine.paged_rows import PagedRows
from glassformer.engine.program_pass import FeedChunk, by_frequencies, changes_pattern, entry_site, watched_sites
from glassformer.engine.protocol import (
    ACTIVATIONS,
    AheadDecoder,
    AheadFunctions,
    Choice,
    ChosenTokens,
    Description,
    Feed,
    Row,
    Want,
)
from glassformer.ground.candidates import Candidates, EntropyStats, top
from glassformer.ground.errors import ExecutorError
from glassformer.ground.sites import ENCODER, Watch, axes, where_of

CACHE_NAMES = {dtype: name for name, dtype in KV_DTYPES.items()}
MAX_TOKENS = 256  # of one pass
MAX_SCORED_TOKENS = 64  # the same, where each of them is scored


class CpuScores:
    def __init__(self, scores: Floats, sites: Mapping[str, Any]) -> None:
        self._scores = scores  # (scored positions, vocabulary)
        self.sites = sites

    def host(self, index: int = -1) -> Floats:
        if not len(self._scores):
            raise ExecutorError(checks.NOT_SCORED)
        scores: Floats = self._scores[index]
        return scores

    def top(self, k: int, index: int = -1) -> Candidates:
        return top(self.host(index), k)


class CpuExecutor(NativeModel, PagedRows[CpuRow]):
    """An `Executor` over a blueprint and stored tensors."""

    _row_type = CpuRow
    begins_at_blocks = True

    def __init__(
        self, config: Config, blueprint: Blueprint, tensors: Mapping[str, StoredTensor], *, cache: str | None = None,
        activations: str | None = None, engine: Engine | None = None,
    ) -> None:  # fmt: skip
        super().__init__(config, blueprint, tensors, cache=cache, activations=activations, engine=engine)
        self._set_ropes(blueprint.ropes)

    def _new_pages(self) -> PageTable:
        return PageTable(self._format)

    @checks.locked
    def unembed(self, states: Floats) -> Floats:
        """Runs the program that can change the last residual from there on, over dummy tokens with these states."""
        site = f"blocks.{self.blueprint.blocks - 1}.residual"
        prepared = self._program("", frozenset(), frozenset({site}))
        (begin,) = (step for step, sites in prepared.program.changed_sites.items() if site in sites)
        states = checks.residual_states(states, self.config.hidden_size)
        scores = np.empty((len(states), self.config.vocab_size), np.float32)
        for at in range(0, len(states), MAX_SCORED_TOKENS):
            part = states[at : at + MAX_SCORED_TOKENS]
            row = CpuRow(PageTable(self._format))
            chunk = FeedChunk(0, Feed(row, [0] * len(part), Want.ALL), row, 0, len(part))
            engine_pass = EnginePass(prepared, [chunk], len(part))
            engine_pass.value(site, chunk)[...] = part
            with self._files.checked(), prepared.scores_in(scores[at : at + len(part)]):
                self._engine.run(engine_pass.steps(begin, len(prepared.program.steps)))
        return scores

    def entropy_stats(self, scores: Floats) -> EntropyStats:
        """As `candidates.entropy_stats`, in native code."""
        return self._engine.entropy_stats(scores)

    def describe(self) -> Description:
        cache, default = (CACHE_NAMES[dtype] for dtype in (self._kv_dtype, default_kv_dtype(self._weight_kind)))
        threads = f"{self._engine.threads} thread{'' if self._engine.threads == 1 else 's'}"
        settings = {"cache": (cache, default), "activations": (self._activations, ACTIVATIONS[0])}
        options = {name: value for name, (value, default) in settings.items() if value != default}
        threads += ", pinned" if self._engine.pinned else ""
        notes = (f"{self._engine.level}, {threads}", f"keys and values in {cache}")
        token_bytes = self._format.bytes // PAGE
        return Description("cpu", "cpu", self._weight_kind, self._engine.threads, token_bytes, notes, options)

    # Passes -----------------------------------------------------------------------------------------------------

    @checks.locked
    def run(self, feeds: Sequence[Feed]) -> list[CpuScores]:
        rows = [self._open_row(feed.row) for feed in feeds]
        feeds = [self._checked(self._checks.feed(feed, row.length)) for feed, row in zip(feeds, rows, strict=True)]
        checks.check_fed_once(rows)
        scores: list[CpuScores] = self._run_rows(feeds, rows) if feeds else []
        return scores

    def _run_feeds(self, feeds: Sequence[Feed], rows: Sequence[CpuRow]) -> list[CpuScores]:
        encoder_sites = self._encode(
            [(feed, row) for feed, row in zip(feeds, rows, strict=True) if row.source and not row.encoded]
        )
        reads, changes = watched_sites(feeds)
        entries = {site for feed in feeds if (site := entry_site(feed)) is not None}
        prepared = self._program("", reads, changes | entries)
        entry_steps = {site: step for step, sites in prepared.program.changed_sites.items() for site in sites}
        whole_feeds = [
            FeedChunk(number, feed, rows[number], 0, len(feed.ids), begin_step=entry_steps.get(entry_site(feed) or "", 0))
            for number, feed in enumerate(feeds)
        ]
        results: list[list[PassResult]] = [[] for _ in feeds]
        with checks.rewound(feeds, rows):
            for chunk in whole_feeds:
                chunk.row.pages.reserve(chunk.start, chunk.start + chunk.count)
            keys = max(chunk.start + chunk.count for chunk in whole_feeds)
            for group in by_frequencies(prepared.program, sorted(whole_feeds, key=lambda chunk: chunk.begin_step)):
                for chunks in _split_passes(group):
                    for chunk, result in zip(chunks, self._run_pass(prepared, chunks, keys), strict=True):
                        results[chunk.number].append(result)
            for chunk in whole_feeds:
                chunk.row.length += chunk.count
        return [
            _scores(feed, _concatenated(parts), encoder_sites.get(id(row), {}), row.length - len(feed.ids))
            for feed, row, parts in zip(feeds, rows, results, strict=True)
        ]

    def _checked(self, feed: Feed) -> Feed:
        """A feed whose states, if it begins at a block, fit its tokens."""
        if feed.begin is None:
            return feed
        states = checks.block_states(feed.begin, len(feed.ids), self.config.hidden_size)
        return replace(feed, begin=feed.begin._replace(states=states))

    @property
    def decode_ahead(self) -> AheadDecoder | None:
        """As in the protocol; None where rotary frequencies follow a row's length, so that each pass has its own."""
        if any(rope.switch is None for rope in self._length_ropes):
            return None
        return AheadFunctions(_is_best_choice, self._decode_ahead)

    @checks.locked
    def _decode_ahead(
        self, rows: Sequence[Row], tokens: Sequence[int], choices: Sequence[Choice], draws: npt.NDArray[np.float64]
    ) -> list[ChosenTokens]:
        open_rows, count = [self._open_row(row) for row in rows], draws.shape[1]
        feeds = [Feed(row, (token,)) for row, token in zip(open_rows, tokens, strict=True)]
        for feed, row in zip(feeds, open_rows, strict=True):
            self._checks.feed(feed, row.length + count - 1)
        checks.check_fed_once(open_rows)
        self._encode([(feed, row) for feed, row in zip(feeds, open_rows, strict=True) if row.source and not row.encoded])
        steps = self._begin_steps(open_rows, tokens, count)
        prepared = self._program("", frozenset().union(*(choice.sites for choice in choices)), frozenset())
        program, scores = prepared.program, prepared.program.scores
        assert scores is not None
        buffers = {location.buffer for location in program.sites.values()}
        if any(choice.candidates for choice in choices):
            buffers.add(scores)
        chosen: dict[int, ChosenTokens] = {}
        groups = by_frequencies(program, [FeedChunk(n, feed, open_rows[n], 0, 1) for n, feed in enumerate(feeds)])
        for part in (
            group[at : at + MAX_SCORED_TOKENS] for group in groups for at in range(0, len(group), MAX_SCORED_TOKENS)
        ):
            for n, chunk in enumerate(part):
                chunk.first = n
                chunk.row.pages.reserve(chunk.start, chunk.start + count)
            engine_pass = EnginePass(prepared, part, max(chunk.start for chunk in part) + count)
            kept = {number: np.empty((count, len(part), prepared.widths[number]), np.float32) for number in sorted(buffers)}
            with self._files.checked():
                best = self._engine.decode(engine_pass.steps(0, len(program.steps)), scores, count, kept)
            for n, (ids, chunk) in enumerate(zip(best.tolist(), part, strict=True)):
                choice = choices[chunk.number]
                sites = {site: program.sites[site].value(kept[program.sites[site].buffer][:, n]) for site in choice.sites}
                own_scores = kept[scores][:, n] if choice.candidates else None
                chosen[chunk.number] = ChosenTokens(ids, sites=sites, scores=own_scores)
        for row in open_rows:
            row.length += count
        return [own.take(chosen[n]) for n, own in enumerate(steps)]

    def _encode(self, unread: Sequence[tuple[Feed, CpuRow]]) -> dict[int, dict[str, Any]]:
        """Encode the sources of rows that run for the first time; the sites that their watches read there, by row."""
        sites: dict[int, dict[str, Any]] = {}
        for feed, row in unread:
            assert row.source_pages is not None
            prepared = self._program(ENCODER, *watched_sites([feed]))
            length = len(row.source)
            page_format = self._page_format(ENCODER, self.blueprint.encoder_blocks)
            encoder_row = CpuRow(PageTable(page_format), row.source_pages, source=row.source)
            for pages in (encoder_row.pages, row.source_pages):
                pages.reserve(0, length)
            chunk = FeedChunk(0, Feed(encoder_row, row.source, Want.NONE, watch=feed.watch), encoder_row, 0, length)
            ((_, sites[id(row)]),) = self._run_pass(prepared, [chunk], length)
            encoder_row.pages.truncate(0)
            row.encoded = True
        return sites


def _is_best_choice(choice: Choice) -> bool:
    """Whether the best tokens are chosen, and what is read with them has as many numbers in each pass."""
    return not choice.sampled and not any(
        site.startswith(ENCODER) or site == "scores" or "length" not in axes(site) or "keys" in axes(site)
        for site in choice.sites
    )


def _split_passes(feeds: Sequence[FeedChunk]) -> list[list[FeedChunk]]:
    """Whole feeds cut into chunks, by pass, so that no pass is too large."""
    passes: list[list[FeedChunk]] = [[]]
    room = MAX_TOKENS
    for feed in feeds:
        limit = MAX_SCORED_TOKENS if feed.feed.want is Want.ALL else MAX_TOKENS
        offset = 0
        while offset < feed.count:
            if room <= 0:
                passes.append([])
                room = MAX_TOKENS
            count = feed.count if changes_pattern(feed.feed) else min(feed.count - offset, room, limit)
            passes[-1].append(FeedChunk(feed.number, feed.feed, feed.row, offset, count, begin_step=feed.begin_step))
            offset += count
            room -= count * (MAX_TOKENS // limit)
    return passes


def _concatenated(parts: Sequence[PassResult]) -> PassResult:
    """The results of one feed's chunks as one."""
    if len(parts) == 1:
        return parts[0]
    scores = np.concatenate([scores for scores, _ in parts])
    return scores, {site: _concatenated_site([sites[site] for _, sites in parts], site) for site in parts[0][1]}


def _concatenated_site(parts: Sequence[Floats], site: str) -> Floats:
    """One site's values of all chunks; those of the source are the same in each."""
    return np.concatenate(parts, axes(site).index("length")) if "length" in axes(site) else parts[-1]


def _scores(feed: Feed, result: PassResult, encoder_sites: dict[str, Any], start: int) -> CpuScores:
    """One feed's scores, changed and recorded if its watch asks for the site `scores`."""
    scores, sites = result
    watch: Watch | None = feed.watch
    if watch is None:
        return CpuScores(scores, {})
    columns = checks.scored_columns(feed)
    if (change := watch.changes.get("scores")) is not None and columns:
        scores = change.apply(scores[None], where_of("scores", start + columns.start, start + len(feed.ids)))[0]
    if "scores" in watch.reads:
        sites["scores"] = scores[None].copy()
    return CpuScores(scores, {**encoder_sites, **sites})
