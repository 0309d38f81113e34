"""The CPU executor and the CPU reader: a blueprint's ops in native code, over packed weights, without torch.

Long prompts are cut into chunks, so that a pass needs little memory; where a token is the best one, the engine chooses it
itself. In an encoder every token sees every other, so a text is never cut.

Shapes: states (length, hidden).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from glassformer.ground.errors import InputError, check_context
from glassformer.ground.sites import ENCODER, Watch, axes

MAX_TOKENS = 256  # of one pass, but for a longer text that is never cut
MAX_SCORED_TOKENS = 64  # of one pass, where each of them is scored
STATES = frozenset({"final"})


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
        self._set_states(blueprint)

    def entropy_stats(self, logits: Floats) -> EntropyStats:
        """As `candidates.entropy_stats`, in native code."""
        return self._engine.entropy_stats(logits)

    def describe(self) -> Description:
        threads = f"{self._engine.threads} thread{'' if self._engine.threads == 1 else 's'}"
        defaults = {"cache": default_cache(self._weight_kind), "activations": ACTIVATIONS[0]}
        settings = {"cache": self._cache, "activations": self._activations}
        options = {name: value for name, value in settings.items() if value != defaults[name]}
        threads += ", pinned" if self._engine.pinned else ""
        notes = (f"{self._engine.level}, {threads}", f"keys and values in {self._cache}")
        token_bytes = self._formats[""].token_bytes
        return Description(
            "cpu", "cpu", self._weight_kind, self._engine.threads, token_bytes, self._state_bytes, notes, options
        )

    def _split_passes(self, feeds: Sequence[FeedChunk], divisible: bool) -> list[list[FeedChunk]]:
        passes: list[list[FeedChunk]] = [[]]
        room = MAX_TOKENS
        for feed in feeds:
            limit = MAX_SCORED_TOKENS if feed.feed.want is Want.ALL else MAX_TOKENS
            whole, offset = not divisible or changes_pattern(feed.feed) or self._needs_whole_text(feed.feed), 0
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
        return replace(
            self._checks.capabilities, sampler=sampler, same_frequencies=self.same_frequencies, resumes_at=self._resumes_at
        )

    @checks.locked
    def _decode_best(
        self, rows: Sequence[Row], tokens: Sequence[int], choices: Sequence[Choice], draws: Draws
    ) -> list[ChosenTokens]:
        open_rows, count = [self._open_row(row) for row in rows], draws.shape[1]
        self._checks.steps(open_rows, tokens, count)
        feeds = [Feed(row, (token,)) for row, token in zip(open_rows, tokens, strict=True)]
        self._encode(feeds, open_rows)
        steps = self._begin_steps(open_rows, tokens, count)
        prepared = self._program("", frozenset().union(*(choice.sites for choice in choices)))
        program, logits = prepared.program, prepared.program.scores
        assert logits is not None
        buffers = {location.buffer for location in program.sites.values()}
        if any(choice.candidates for choice in choices):
            buffers.add(logits)
        chosen: dict[int, ChosenTokens] = {}
        groups = by_frequencies(
            program, [FeedChunk(index, feed, open_rows[index], 0, 1) for index, feed in enumerate(feeds)]
        )
        for part in (
            group[first : first + MAX_SCORED_TOKENS] for group in groups for first in range(0, len(group), MAX_SCORED_TOKENS)
        ):
            place_chunks(part)
            for chunk in part:
                chunk.row.pages.reserve(chunk.start, chunk.start + count)
            engine_pass = EnginePass(prepared, part, steps=count)
            kept = {buffer: np.empty((count, len(part), prepared.widths[buffer]), np.float32) for buffer in sorted(buffers)}
            with self._files.checked():
                best = self._engine.decode(engine_pass.steps(0, len(program.steps)), logits, count, kept)
            for index, (ids, chunk) in enumerate(zip(best.tolist(), part, strict=True)):
                choice = choices[chunk.index]
                sites = {
                    site: program.sites[site].value(kept[program.sites[site].buffer][:, index]) for site in choice.sites
                }
                row_logits = kept[logits][:, index] if choice.candidates else None
                chosen[chunk.index] = ChosenTokens(ids, sites=sites, logits=row_logits)
        for row in open_rows:
            row.length += count
        self._end_steps(open_rows)
        return [row_steps.take(chosen[index]) for index, row_steps in enumerate(steps)]


def _is_best_choice(choice: Choice) -> bool:
    """Whether the best tokens are chosen, and what is read with them has as many numbers in each pass."""
    return not choice.sampled and not any(
        site.startswith(ENCODER) or site == "scores" or "length" not in axes(site) or "keys" in axes(site)
        for site in choice.sites
    )


class CpuReader(NativeModel):
    """Token ids to states, by the base of a model: whatever head it has is left out.

    Texts of different lengths go together, without padding.
    """

    def __init__(
        self, config: Config, blueprint: Blueprint, tensors: Mapping[str, StoredTensor], *, activations: str | None = None,
        engine: Engine | None = None,
    ) -> None:  # fmt: skip
        last = next(index for index, op in enumerate(blueprint.ops) if op.site == "final")
        base = replace(blueprint, ops=blueprint.ops[: last + 1])
        super().__init__(config, base, tensors, cache="f32", activations=activations, engine=engine)
        self._type_count: int = getattr(config, "type_vocab_size", 0)

    @checks.locked
    def read(self, rows: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None) -> list[Floats]:
        """The states of each row's tokens; `types`: which of two texts each token belongs to."""
        states: dict[int, Floats] = {}
        prepared = self._program("", STATES)
        for indices in _batches([self._checked_length(row) for row in rows]):
            chunks = []
            for index in indices:
                ids, row = rows[index], CpuRow(self._new_pages())
                row.pages.reserve(0, len(ids))
                feed = Feed(row, ids, Want.NONE, watch=Watch(STATES))
                token_types = self._token_types(ids, types[index] if types else None)
                chunks.append(FeedChunk(index, feed, row, 0, len(ids), token_types=token_types))
            for group in by_frequencies(prepared.program, chunks):
                for chunk, result in zip(group, self._run_pass(prepared, group), strict=True):
                    states[chunk.index] = result.sites["final"][0]
        return [states[index] for index in range(len(rows))]

    def _checked_length(self, ids: Sequence[int]) -> int:
        if not len(ids):
            raise InputError("a text has no tokens. Give at least one.")
        check_context(len(ids), self.context)
        self._checks.check_ids(ids)
        return len(ids)

    def _token_types(self, ids: Sequence[int], types: Sequence[int] | None) -> Sequence[int]:
        if types is None or not self._type_count:  # a model without types reads none, whatever its tokenizer says
            return [0] * len(ids)
        if len(types) != len(ids) or not all(0 <= kind < self._type_count for kind in types):
            raise InputError(f"token types are one number below {self._type_count} for each of a text's {len(ids)} tokens.")
        return types


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """The indices of the rows of each pass."""
    batch: list[int] = []
    for index, length in enumerate(lengths):
        if batch and sum(lengths[row] for row in batch) + length > MAX_TOKENS:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
