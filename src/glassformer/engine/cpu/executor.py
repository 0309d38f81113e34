"""The CPU executor: a blueprint's ops in native code, over packed weights, without torch.

Long prompts are cut into chunks, so that a pass needs little memory; where a token is the best one, the engine chooses it
itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from glassformer.blueprints import Blueprint, Config
from glassformer.checkpoint import StoredTensor
from glassformer.engine import checks
from glassformer.engine.cpu.kv_pages import CpuRow
from glassformer.engine.cpu.library import Engine
from glassformer.engine.cpu.passes import CpuLogits, EnginePass, Floats, NativeModel, NativeProgram, default_cache
from glassformer.engine.program_executor import ProgramExecutor
from glassformer.engine.program_pass import FeedChunk, by_frequencies, changes_pattern, place_chunks
from glassformer.engine.protocol import (
    ACTIVATIONS,
    Capabilities,
    Choice,
    ChosenTokens,
    Description,
    DeviceSampler,
    Draws,
    Feed,
    Row,
    Want,
)  # fmt: skip
from glassformer.ground.candidates import EntropyStats
from glassformer.ground.sites import ENCODER, axes

MAX_TOKENS = 256  # of one pass
MAX_SCORED_TOKENS = 64  # the same, where each of them is scored


class CpuExecutor(NativeModel, ProgramExecutor[NativeProgram, CpuRow, CpuLogits]):
    """An `Executor` over a blueprint and stored tensors."""

    _row_type = CpuRow
    _max_unembedded = MAX_SCORED_TOKENS

    def __init__(
        self, config: Config, blueprint: Blueprint, tensors: Mapping[str, StoredTensor], *, cache: str | None = None,
        activations: str | None = None, engine: Engine | None = None,
    ) -> None:  # fmt: skip
        super().__init__(config, blueprint, tensors, cache=cache, activations=activations, engine=engine)
        self._set_ropes(blueprint.ropes)

    def entropy_stats(self, scores: Floats) -> EntropyStats:
        """As `candidates.entropy_stats`, in native code."""
        return self._engine.entropy_stats(scores)

    def describe(self) -> Description:
        threads = f"{self._engine.threads} thread{'' if self._engine.threads == 1 else 's'}"
        defaults = {"cache": default_cache(self._weight_kind), "activations": ACTIVATIONS[0]}
        settings = {"cache": self._cache, "activations": self._activations}
        options = {name: value for name, value in settings.items() if value != defaults[name]}
        threads += ", pinned" if self._engine.pinned else ""
        notes = (f"{self._engine.level}, {threads}", f"keys and values in {self._cache}")
        token_bytes = self._formats[""].token_bytes
        return Description("cpu", "cpu", self._weight_kind, self._engine.threads, token_bytes, notes, options)

    def _split_passes(self, feeds: Sequence[FeedChunk], divisible: bool) -> list[list[FeedChunk]]:
        passes: list[list[FeedChunk]] = [[]]
        room = MAX_TOKENS
        for feed in feeds:
            limit = MAX_SCORED_TOKENS if feed.feed.want is Want.ALL else MAX_TOKENS
            whole, offset = not divisible or changes_pattern(feed.feed), 0
            while offset < feed.count:
                if room <= 0:
                    passes.append([])
                    room = MAX_TOKENS
                count = feed.count if whole else min(feed.count - offset, room, limit)
                passes[-1].append(feed if count == feed.count else feed.part(offset, count))
                offset += count
                room -= count * (MAX_TOKENS // limit)
        return passes

    @staticmethod
    def _concatenate(parts: list[Floats], axis: int) -> Floats:
        return np.concatenate(parts, axis)

    def _finish_pass(
        self, prepared: NativeProgram, chunk: FeedChunk, begin: int, site: str, states: Floats, logits: Floats
    ) -> None:
        engine_pass = EnginePass(prepared, [chunk])
        engine_pass.value(site, chunk)[...] = states
        with self._files.checked(), prepared.logits_in(logits):
            self._engine.run(engine_pass.steps(begin, len(prepared.program.steps)))

    @property
    def capabilities(self) -> Capabilities:
        """No tokens are chosen ahead where rotary frequencies follow a row's length, so that each pass has its own."""
        ahead = all(rope.switch is not None for rope in self._length_ropes)
        sampler = DeviceSampler(_is_best_choice, self._decode_best) if ahead else None
        return replace(self._checks.capabilities, sampler=sampler, same_frequencies=self.same_frequencies)

    @checks.locked
    def _decode_best(
        self, rows: Sequence[Row], tokens: Sequence[int], choices: Sequence[Choice], draws: Draws
    ) -> list[ChosenTokens]:
        open_rows, count = [self._open_row(row) for row in rows], draws.shape[1]
        feeds = [Feed(row, (token,)) for row, token in zip(open_rows, tokens, strict=True)]
        for feed, row in zip(feeds, open_rows, strict=True):
            self._checks.feed(feed, row.length + count - 1)
        checks.check_fed_once(open_rows)
        self._encode(feeds, open_rows)
        steps = self._begin_steps(open_rows, tokens, count)
        prepared = self._program("", frozenset().union(*(choice.sites for choice in choices)))
        program, logits = prepared.program, prepared.program.scores
        assert logits is not None
        buffers = {location.buffer for location in program.sites.values()}
        if any(choice.candidates for choice in choices):
            buffers.add(logits)
        chosen: dict[int, ChosenTokens] = {}
        groups = by_frequencies(program, [FeedChunk(n, feed, open_rows[n], 0, 1) for n, feed in enumerate(feeds)])
        for part in (
            group[at : at + MAX_SCORED_TOKENS] for group in groups for at in range(0, len(group), MAX_SCORED_TOKENS)
        ):
            place_chunks(part)
            for chunk in part:
                chunk.row.pages.reserve(chunk.start, chunk.start + count)
            engine_pass = EnginePass(prepared, part, steps=count)
            kept = {number: np.empty((count, len(part), prepared.widths[number]), np.float32) for number in sorted(buffers)}
            with self._files.checked():
                best = self._engine.decode(engine_pass.steps(0, len(program.steps)), logits, count, kept)
            for n, (ids, chunk) in enumerate(zip(best.tolist(), part, strict=True)):
                choice = choices[chunk.number]
                sites = {site: program.sites[site].value(kept[program.sites[site].buffer][:, n]) for site in choice.sites}
                row_logits = kept[logits][:, n] if choice.candidates else None
                chosen[chunk.number] = ChosenTokens(ids, sites=sites, logits=row_logits)
        for row in open_rows:
            row.length += count
        return [own.take(chosen[n]) for n, own in enumerate(steps)]


def _is_best_choice(choice: Choice) -> bool:
    """Whether the best tokens are chosen, and what is read with them has as many numbers in each pass."""
    return not choice.sampled and not any(
        site.startswith(ENCODER) or site == "scores" or "length" not in axes(site) or "keys" in axes(site)
        for site in choice.sites
    )
