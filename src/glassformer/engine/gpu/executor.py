"""The GPU executor: a blueprint's fused steps as Triton kernels, over weights and a paged KV cache on the device.

Passes are of two kinds. A prompt pass has chunks of at least 64 tokens, with kernels for many; a step pass has everything
else. Which of them a token goes through depends on its own feed alone, and both compute a token's numbers in an order that
does not depend on the others: so what a row gets does not depend on what runs beside it. Steps of one token a row are
captured as CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from glassformer.blueprints import Blueprint, Config
from glassformer.checkpoint.stored_tensors import main_kind
from glassformer.engine import checks
from glassformer.engine.gpu import kernels
from glassformer.engine.gpu.decode_ahead import PendingTexts, StepDecoder, knows
from glassformer.engine.gpu.device import blueprint_reason, device_errors, gpu, meanwhile, read_triton_key
from glassformer.engine.gpu.graphs import CapturedShape, Replay, Replays, padded_prompt, padded_size
from glassformer.engine.gpu.kernels import CHUNK, PAGE
from glassformer.engine.gpu.kv_pool import GpuRow, KvPool, PageFormat, PageList
from glassformer.engine.gpu.passes import (
    ChunkResult,
    DevicePass,
    GpuScores,
    PassInput,
    PassLayout,
    PassValues,
    ScoreBatch,
    fill,
    new_buffers,
    page_count,
    rounded_up,
    to_device,
    to_host,
    tree_tensors,
)  # fmt: skip
from glassformer.engine.gpu.persistent.decoder import Card, KernelBuild, PersistentDecoder, load_kernel
from glassformer.engine.gpu.persistent.layout import DecoderLayout
from glassformer.engine.gpu.single_row import decoder_weights, fitting_layout
from glassformer.engine.gpu.single_row_steps import SingleRowSteps, can_read
from glassformer.engine.gpu.steps import bind_steps
from glassformer.engine.gpu.weights import DeviceWeights, EngineTensor
from glassformer.engine.lowering import Lowering
from glassformer.engine.paged_rows import PagedRows
from glassformer.engine.program import Program, TokenScope
from glassformer.engine.program_pass import (
    SOURCE_SITES,
    FeedChunk,
    by_frequencies,
    changed_source,
    changes_pattern,
    source_value,
    stack_sites,
    stops,
    watched_sites,
)  # fmt: skip
from glassformer.engine.protocol import BEST, GPU_CACHES, AheadFunctions, Choice, ChosenTokens, Description, Feed, Row, Want
from glassformer.engine.row_history import RowSteps
from glassformer.ground.errors import ExecutorError, check_context
from glassformer.ground.locks import ForkSafeLock
from glassformer.ground.sites import ENCODER, axes, where_of

CACHES: Mapping[str, torch.dtype] = dict(zip(GPU_CACHES, (torch.float32, torch.float16, torch.bfloat16), strict=True))
CACHE_OF_KIND = {"F32": "f32", "F64": "f32", "BF16": "bf16"}  # by default; f16 for all others
PROMPT_TOKENS = 64  # a chunk of so many goes through the kernels for prompts
PROMPT_CHUNK = 2048  # tokens of one feed in a pass; a feed is cut at multiples of it
MAX_PROMPT_TOKENS = 8192  # of a prompt pass, so that a pass needs little memory
MAX_STEP_TOKENS = 1024  # of a step pass
MIN_SINGLE_ROW_STEPS = 4  # for which the persistent kernel is made
MAX_PROGRAMS = 32  # that are kept
CHOICE_NOTE = "tokens are chosen on the device: the best, or drawn after temperature, top_k, top_p and min_p"


class PreparedProgram:
    """A program bound to weights on the device."""

    def __init__(self, program: Program, weights: DeviceWeights) -> None:
        self.program = program
        self.launches = bind_steps(program, weights)
        self.stops = frozenset(stops(program))
        self.scoped = [step.scope is not TokenScope.ALL for step in program.steps]
        self.ropes = [
            (torch.from_numpy(rope.frequencies(size)).to(weights.device), rope.scale) for rope, size in program.ropes
        ]
        self._frequency_lengths = program.frequency_lengths(0)  # whose frequencies these are

    def set_length(self, length: int) -> None:
        """Take the frequencies of texts of so many tokens: some kinds of RoPE depend on it."""
        lengths = self.program.frequency_lengths(length)
        if lengths == self._frequency_lengths:
            return
        for (rope, size), (frequencies, _), least in zip(self.program.ropes, self.ropes, lengths, strict=True):
            frequencies.copy_(torch.from_numpy(rope.frequencies(size, least)))
        self._frequency_lengths = lengths

    def run(self, device_pass: DevicePass, begin: int = 0, end: int | None = None) -> None:
        """The steps from one to another, and the changes before each of them."""
        unscored = device_pass.scored is not None and not len(device_pass.scored)
        for number in range(begin, len(self.launches) if end is None else end):
            if number in self.stops and number > begin:
                device_pass.apply_changes_before(number)
            if not (unscored and self.scoped[number]):
                self.launches[number](device_pass)
        if len(self.launches) in self.stops:
            device_pass.apply_changes_before(len(self.launches))


class GpuExecutor(PagedRows[GpuRow]):
    """An `Executor` over a blueprint and stored tensors, or a live model's parameters, on a GPU."""

    _row_type = GpuRow
    least_prompt = PROMPT_TOKENS

    def __init__(
        self, config: Config, blueprint: Blueprint, tensors: Mapping[str, EngineTensor], *, cache: str | None = None,
        batch_invariant: bool = True, device: torch.device | None = None, kernels: Any = kernels,
    ) -> None:  # fmt: skip
        """`batch_invariant`: whether a row's numbers must not depend on whether it runs alone; if they may, a single row is
        decoded by the persistent kernel, where it fits."""
        if (reason := blueprint_reason(blueprint)) is not None:
            raise ExecutorError(reason)
        self.config = config
        self.blueprint = blueprint
        self.context: int = config.context
        self.device = gpu() if device is None else device
        self._kernels, self._batch_invariant = kernels, batch_invariant
        self._checks = checks.InputChecks(config.context, config.vocab_size, *blueprint.block_counts)
        self._lock = ForkSafeLock()
        self._weight_kind = main_kind(tensors.values())
        self._default_cache = CACHE_OF_KIND.get(self._weight_kind, "f16")
        self.cache = cache or self._default_cache
        expected = {weight.name: weight.shape for weight in blueprint.weights}
        self._weights = DeviceWeights(tensors, expected, self.device)
        self._programs: dict[tuple[str, frozenset[str], frozenset[str]], PreparedProgram] = {}
        with device_errors("the weights"), meanwhile(read_triton_key):
            for stack in ("", ENCODER) if blueprint.encoder_blocks else ("",):
                self._program(stack, frozenset(), frozenset())
            self._pool = KvPool(self._page_format("", blueprint.blocks), self.device)
            self._encoder_pool = (
                KvPool(self._page_format(ENCODER, blueprint.encoder_blocks), self.device)
                if blueprint.encoder_blocks
                else None
            )
        self._set_ropes(blueprint.ropes)
        self._replays = Replays(self.device)
        self._decoder: SingleRowSteps | None = None
        self._kernel_build: KernelBuild | None = None
        self._single_row, self._single_row_note = self._fitting_layout()
        self._steps = StepDecoder(
            kernels, self.device, lambda sites: self._program("", sites, frozenset()), self._captured
        )  # fmt: skip

    def _fitting_layout(self) -> tuple[DecoderLayout | None, str]:
        """What the persistent kernel needs to know of the model, if it fits; and a note for people."""
        if self._batch_invariant:
            return None, "batch-invariant: what a row gets does not depend on what runs beside it"
        if self.device.type != "cuda":
            return None, "the persistent kernel needs a GPU."
        card = Card.of(self.device)
        try:
            layout, schedule = fitting_layout(self.blueprint, self._weights, self.cache, card)
        except ExecutorError as error:
            return None, str(error)
        self._kernel_build = KernelBuild(schedule, card)
        size = schedule.stream_bytes / 1e9
        return layout, f"a single row is decoded by the persistent kernel, with {size:.1f} GB for its copy of the weights"

    def _page_format(self, stack: str, layers: int) -> PageFormat:
        """What a page holds of a stack's tokens; an encoder's heads may differ from its decoder's."""
        ops = self.blueprint.ops
        attention = next(op for op in ops if op.kind == "attend" and op.stack == stack)
        key = ops[attention.inputs[1]].shape
        return PageFormat(layers, int(key[1]), int(key[3]), CACHES[self.cache])

    def _new_pages(self) -> PageList:
        return PageList(self._pool)

    def _program(self, stack: str, reads: frozenset[str], changes: frozenset[str]) -> PreparedProgram:
        """The program of a stack for these sites; the least recently used are dropped."""
        key = (stack, stack_sites(reads, stack), stack_sites(changes, stack))
        prepared = self._programs.pop(key, None)
        if prepared is None:
            prepared = PreparedProgram(Lowering(self.blueprint, *key, self.config).lower(), self._weights)
            if len(self._programs) >= MAX_PROGRAMS:
                del self._programs[next(iter(self._programs))]
        self._programs[key] = prepared
        return prepared

    def describe(self) -> Description:
        on_gpu = self.device.type == "cuda"
        card = torch.cuda.get_device_name(self.device) if on_gpu else "Triton's interpreter"
        options = {} if self.cache == self._default_cache else {"cache": self.cache}
        options |= {} if self._batch_invariant else {"batch_invariant": "false"}
        notes = (card, f"keys and values in {self.cache}", CHOICE_NOTE, self._single_row_note)
        token_bytes = self._pool.format.bytes // PAGE
        return Description("gpu", str(self.device), self._weight_kind, 1, token_bytes, notes, options)

    # Passes -----------------------------------------------------------------------------------------------------

    @checks.locked
    @torch.inference_mode()
    def run(self, feeds: Sequence[Feed]) -> list[GpuScores]:
        rows = [self._open_row(feed.row) for feed in feeds]
        feeds = [self._checks.feed(feed, row.length) for feed, row in zip(feeds, rows, strict=True)]
        checks.check_fed_once(rows)
        scores: list[GpuScores] = self._run_rows(feeds, rows) if feeds else []
        return scores

    def _run_feeds(self, feeds: Sequence[Feed], rows: Sequence[GpuRow]) -> list[GpuScores]:
        with device_errors("this pass"):
            encoder_sites = self._encode(
                [(feed, row) for feed, row in zip(feeds, rows, strict=True) if row.source and not row.encoded]
            )
            prepared = self._program("", *watched_sites(feeds))
            whole = [FeedChunk(number, feed, rows[number], 0, len(feed.ids)) for number, feed in enumerate(feeds)]
            for chunk in whole:
                chunk.row.pages.reserve(chunk.start, chunk.start + chunk.count)
            results = self._run_chunks(prepared, whole, self._pool)
        for chunk in whole:
            chunk.row.length += chunk.count
        return [
            self._scores(feed, _joined(parts), encoder_sites.get(id(row), {}), row.length - len(feed.ids))
            for feed, row, parts in zip(feeds, rows, results, strict=True)
        ]

    def _encode(self, unread: Sequence[tuple[Feed, GpuRow]]) -> dict[int, dict[str, Tensor]]:
        """Encode the sources of rows that run for the first time; the sites that their watches read there, by row."""
        if not unread:
            return {}
        assert self._encoder_pool is not None
        prepared = self._program(ENCODER, *watched_sites([feed for feed, _ in unread]))
        chunks = []
        for number, (feed, row) in enumerate(unread):
            assert row.source_pages is not None
            encoder_row = GpuRow(PageList(self._encoder_pool), row.source_pages, source=row.source)
            for pages in (encoder_row.pages, row.source_pages):
                pages.reserve(0, len(row.source))
            encoder_feed = Feed(encoder_row, row.source, Want.NONE, watch=feed.watch)
            chunks.append(FeedChunk(number, encoder_feed, encoder_row, 0, len(row.source)))
        results = self._run_chunks(prepared, chunks, self._encoder_pool)
        for chunk, (_, row) in zip(chunks, unread, strict=True):
            chunk.row.pages.truncate(0)
            row.encoded = True
        return {id(row): _joined(parts).sites for (_, row), parts in zip(unread, results, strict=True)}

    def _run_chunks(self, prepared: PreparedProgram, whole: Sequence[FeedChunk], pool: KvPool) -> list[list[ChunkResult]]:
        """All passes over whole feeds: the results of each feed's chunks, in order."""
        results: list[list[ChunkResult]] = [[] for _ in whole]
        for group in by_frequencies(prepared.program, whole):
            prepared.set_length(group[0].text_length)
            for prompt, chunks in _split_passes(group, divisible=prepared.program.scores is not None):
                for chunk, result in zip(chunks, self._run_pass(prepared, chunks, pool, prompt), strict=True):
                    results[chunk.number].append(result)
        return results

    def _run_pass(
        self, prepared: PreparedProgram, chunks: Sequence[FeedChunk], pool: KvPool, prompt: bool
    ) -> list[ChunkResult]:
        first = 0
        for chunk in chunks:
            chunk.first = first
            first += chunk.count
        program = prepared.program
        decoder = program.scores is not None  # an encoder writes what is changed later
        sources = [changed_source(chunk) if decoder else chunk.row.source_pages for chunk in chunks]
        fed = PassInput(chunks, [chunk.scored() for chunk in chunks], sources)
        shape = self._captured_shape(prepared, fed, prompt)
        values = self._run_eagerly(prepared, fed, pool, prompt) if shape is None else self._replay(shape, prepared, fed)
        scores = torch.empty(0, 0) if program.scores is None else values.buffers[program.scores]
        batch = ScoreBatch(scores, self._kernels)
        results, first = [], 0
        for chunk, source, count in zip(chunks, sources, fed.counts, strict=True):
            sites = {} if chunk.feed.watch is None else _read_sites(values, chunk, source if decoder else None)
            results.append(ChunkResult(batch, first, count, sites))
            first += count
        return results

    def _run_eagerly(self, prepared: PreparedProgram, fed: PassInput, pool: KvPool, prompt: bool) -> PassValues:
        """A pass with launches of its own."""
        keys, source_keys = fed.most_keys
        layout = PassLayout(fed.tokens, len(fed.chunks), page_count(keys), fed.scored, page_count(source_keys))
        numbers = np.empty(layout.size, np.int32)
        fill(numbers, layout, fed)
        device_pass = self._device_pass(
            prepared, fed.chunks, layout, to_device(numbers, self.device), pool, rounded_up(keys, CHUNK),
            rounded_up(source_keys, CHUNK), prompt,
        )  # fmt: skip
        if fed.chunks[0].feed.parents is not None:
            device_pass.tensors = tree_tensors(fed.chunks, device_pass.tensors, self.device)
        prepared.run(device_pass)
        return device_pass

    def _device_pass(
        self, prepared: PreparedProgram, chunks: Sequence[FeedChunk], layout: PassLayout, numbers: Tensor, pool: KvPool,
        max_keys: int, max_source: int, prompt: bool,
    ) -> DevicePass:  # fmt: skip
        tensors, numbers_scored = layout.tensors(numbers)
        scored = None if layout.scored == layout.tokens else numbers_scored
        pattern_keys = max(max_keys, max_source)
        buffers = new_buffers(prepared.program, layout.tokens, layout.scored, pattern_keys, self.device)
        return DevicePass(
            prepared.program, chunks, buffers, self._kernels, tensors, scored, pool.tensor,
            self._pool.tensor, prepared.ropes, max_keys, max_source,
            max((chunk.count for chunk in chunks), default=layout.tokens), prompt,
        )  # fmt: skip

    def _captured_shape(self, prepared: PreparedProgram, fed: PassInput, prompt: bool) -> CapturedShape | None:
        """What a pass is captured as, if it is: one token of each row, or one row's prompt that came before."""
        program, chunks = prepared.program, fed.chunks
        if program.scores is None or prepared.stops or chunks[0].feed.parents is not None:
            return None
        if prompt:
            if len(chunks) > 1 or fed.scored > 1:
                return None
            shape = CapturedShape.of(padded_prompt(fed.tokens), 2, fed.scored, *fed.most_keys, prompt=True)
            return shape if self._replays.is_worthwhile((prepared, shape)) else None
        size = padded_size(len(chunks))
        if size is None or not fed.tokens == fed.scored == len(chunks):
            return None
        return CapturedShape.of(size, size, size, *fed.most_keys)

    def _replay(self, shape: CapturedShape, prepared: PreparedProgram, fed: PassInput) -> PassValues:
        """A pass that is captured once for all of its shape."""
        program = prepared.program
        kept = {program.scores, *(location.buffer for location in program.sites.values())}

        def read_later(buffers: list[Tensor], numbers: Mapping[str, Tensor]) -> list[Tensor | None]:
            return [buffer if at in kept else None for at, buffer in enumerate(buffers)]

        static = self._captured(shape, prepared, fed, read_later)()
        buffers = [
            torch.empty(0) if buffer is None else buffer[: fed.scored if at == program.scores else fed.tokens].clone()
            for at, buffer in enumerate(static)
        ]
        return PassValues(program, fed.chunks, buffers)

    def _captured(
        self, shape: CapturedShape, prepared: PreparedProgram, fed: PassInput,
        finish: Callable[[list[Tensor], Mapping[str, Tensor]], list[Tensor | None]],
    ) -> Replay:  # fmt: skip
        """A captured pass with the numbers of what is fed; `finish`: what is read later, from its buffers and numbers."""
        layout = shape.layout

        def run(numbers: Tensor) -> list[Tensor | None]:
            device_pass = self._device_pass(
                prepared, (), layout, numbers, self._pool, shape.max_keys, shape.max_source, shape.prompt
            )
            prepared.run(device_pass)
            return finish(device_pass.buffers, layout.views(numbers))

        write = partial(fill, layout=layout, fed=fed)
        return self._replays.prepare((prepared, shape), self._pool.tensor.data_ptr(), layout, write, run)

    # Decoding ahead -------------------------------------------------------------------------------------------------

    @property
    def decode_ahead(self) -> AheadFunctions:
        """As in the protocol."""
        return AheadFunctions(knows, self._decode_ahead, self._enqueue)

    def decode_greedily(self, rows: Sequence[Row], tokens: Sequence[int], count: int) -> npt.NDArray[np.int32]:
        """The best tokens, (rows, count), as in the protocol."""
        texts = self._decode_ahead(rows, tokens, [BEST] * len(rows), np.zeros((len(rows), count)))
        return np.array([text.ids for text in texts], np.int32).reshape(len(rows), count)

    def _decode_ahead(
        self, rows: Sequence[Row], tokens: Sequence[int], choices: Sequence[Choice], draws: npt.NDArray[np.float64]
    ) -> list[ChosenTokens]:
        return self._enqueue(rows, [*tokens], choices, draws)()

    @checks.locked
    @torch.inference_mode()
    def _enqueue(
        self, rows: Sequence[Row], tokens: Sequence[int | None], choices: Sequence[Choice], draws: npt.NDArray[np.float64]
    ) -> Callable[[], list[ChosenTokens]]:
        fed, count = [self._open_row(row) for row in rows], draws.shape[1]
        checks.check_fed_once(fed)
        self._checks.check_ids([token for token in tokens if token is not None])
        lengths = [row.length for row in fed]
        check_context(max(lengths, default=0) + count, self.context, "prompt")
        if not fed or not count:
            return lambda: [ChosenTokens([]) for _ in fed]
        choices = [replace(choice, top_k=0) if choice.top_k >= self.config.vocab_size else choice for choice in choices]
        with _restoring(fed, lengths), device_errors("these steps"):
            self._encode([(Feed(row, (0,)), row) for row in fed if row.source and not row.encoded])
            steps = self._begin_steps(fed, tokens, count)
            for row in fed:
                row.pages.reserve(row.length, row.length + count)
            decoder = self._single_row_decoder(count) if len(fed) == 1 and can_read(choices[0].sites) else None
            if decoder is None:
                wait = self._steps.enqueue(fed, tokens, choices, draws)
            else:
                wait = decoder.enqueue(fed[0], tokens[0], choices[0], draws[0], self._pool.tensor)
        return partial(self._wait, wait, fed, lengths, steps)

    @checks.locked
    def _wait(
        self, wait: PendingTexts, rows: Sequence[GpuRow], lengths: Sequence[int], steps: Sequence[RowSteps]
    ) -> list[ChosenTokens]:
        """The tokens of queued steps; where they failed, rows have the length that they had before."""
        with _restoring(rows, lengths), device_errors("these steps"):
            return [own.take(chosen) for own, chosen in zip(steps, wait(), strict=True)]

    def _single_row_decoder(self, count: int) -> SingleRowSteps | None:
        """The persistent kernel if it fits; it is made for the first row that is decoded for some tokens."""
        if self._decoder is None and self._single_row is not None and count >= MIN_SINGLE_ROW_STEPS:
            layout, self._single_row = self._single_row, None
            try:
                weights = decoder_weights(layout, self._weights, self.context)
                load = load_kernel if self._kernel_build is None else self._kernel_build.load
                decoder = PersistentDecoder(layout.shape, weights, cache=self.cache, load=load)
                self._decoder = SingleRowSteps(decoder, self._kernels)
            except ExecutorError as error:
                self._single_row_note = str(error)
        return self._decoder

    # Results ----------------------------------------------------------------------------------------------------

    def _scores(self, feed: Feed, result: ChunkResult, encoder_sites: dict[str, Tensor], start: int) -> GpuScores:
        """One feed's scores, changed and recorded if its watch asks for the site `scores`."""
        watch = feed.watch
        if watch is None:
            return GpuScores(result.batch, result.first, result.count, {})
        sites, columns = result.sites, checks.scored_columns(feed)
        if (change := watch.changes.get("scores")) is not None and columns:
            where = where_of("scores", start + columns.start, start + len(feed.ids))
            scores = change.apply(result.scores[None], where)[0]
            result = ChunkResult(ScoreBatch(scores, self._kernels), 0, len(scores), sites)
        if "scores" in watch.reads:
            sites = {**sites, "scores": result.scores[None]}
        return GpuScores(result.batch, result.first, result.count, {**encoder_sites, **sites})

    @checks.locked
    @torch.inference_mode()
    def unembed(self, states: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Runs the program that can change the last residual from there on, over dummy tokens with these states."""
        site = f"blocks.{self.blueprint.blocks - 1}.residual"
        prepared = self._program("", frozenset(), frozenset({site}))
        (begin,) = (step for step, sites in prepared.program.changed_sites.items() if site in sites)
        states = checks.residual_states(states, self.config.hidden_size)
        scores = [np.empty((0, self.config.vocab_size), np.float32)]
        with device_errors("these states"):
            scores += [
                self._unembed(prepared, begin, site, states[at : at + MAX_STEP_TOKENS])
                for at in range(0, len(states), MAX_STEP_TOKENS)
            ]
        return np.concatenate(scores)

    def _unembed(
        self, prepared: PreparedProgram, begin: int, site: str, states: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        row = GpuRow(self._new_pages())
        chunk = FeedChunk(0, Feed(row, [0] * len(states), Want.ALL), row, 0, len(states))
        layout = PassLayout(len(states), 1, 1, len(states))
        numbers = torch.zeros(layout.size, dtype=torch.int32, device=self.device)
        device_pass = self._device_pass(prepared, [chunk], layout, numbers, self._pool, CHUNK, 0, prompt=False)
        device_pass.value(site, chunk)[...] = torch.from_numpy(states).to(self.device)
        prepared.run(device_pass, begin)
        assert prepared.program.scores is not None
        return to_host(device_pass.buffers[prepared.program.scores])


@contextmanager
def _restoring(rows: Sequence[GpuRow], lengths: Sequence[int]) -> Iterator[None]:
    """Where something fails, rows are no longer than they were."""
    try:
        yield
    except BaseException:
        for row, length in zip(rows, lengths, strict=True):
            row.length = min(row.length, length)
        raise


def _split_passes(whole: Sequence[FeedChunk], divisible: bool) -> Iterator[tuple[bool, list[FeedChunk]]]:
    """Whole feeds cut into chunks, by pass, and whether it is a prompt pass. A feed is cut by its own length alone."""
    rounds: list[list[FeedChunk]] = []  # the first chunks of prompts, then the second ones, and so on
    single: list[FeedChunk] = []
    short: list[FeedChunk] = []
    trees: list[FeedChunk] = []
    for feed in whole:
        if feed.feed.parents is not None or feed.count == 1:
            (single if feed.feed.parents is None else trees).append(feed)
            continue
        step = PROMPT_CHUNK if divisible and not changes_pattern(feed.feed) else feed.count
        offsets = [*range(0, feed.count, step), feed.count]
        if len(offsets) > 2 and offsets[-1] - offsets[-2] < PROMPT_TOKENS:  # its end is a prompt's too
            offsets[-2] = feed.count - PROMPT_TOKENS
        for number, (offset, end) in enumerate(pairwise(offsets)):
            chunk = FeedChunk(feed.number, feed.feed, feed.row, offset, end - offset)
            if chunk.count < PROMPT_TOKENS:
                (single if chunk.count == 1 else short).append(chunk)
                continue
            rounds += [[]] if number == len(rounds) else []
            rounds[number].append(chunk)
    for prompts in rounds:
        yield from ((True, chunks) for chunks in _batches(prompts, MAX_PROMPT_TOKENS))
    for chunks in (single, short, trees):
        yield from ((False, batch) for batch in _batches(chunks, MAX_STEP_TOKENS))


def _batches(chunks: Sequence[FeedChunk], limit: int) -> Iterator[list[FeedChunk]]:
    """Chunks by pass, so that no pass has more tokens, unless one chunk alone has."""
    batch: list[FeedChunk] = []
    tokens = 0
    for chunk in chunks:
        if batch and tokens + chunk.count > limit:
            yield batch
            batch, tokens = [], 0
        batch.append(chunk)
        tokens += chunk.count
    if batch:
        yield batch


def _joined(parts: Sequence[ChunkResult]) -> ChunkResult:
    """The results of one feed's chunks as one."""
    if len(parts) == 1:
        return parts[0]
    scores = torch.cat([part.scores for part in parts])
    sites = {site: _joined_site([part.sites[site] for part in parts], site) for site in parts[0].sites}
    return ChunkResult(ScoreBatch(scores, parts[0].batch.kernels), 0, len(scores), sites)


def _joined_site(parts: Sequence[Any], site: str) -> Any:
    """One site's values of all chunks; those of the source are the same in each."""
    return torch.cat(list(parts), axes(site).index("length")) if "length" in axes(site) else parts[-1]


def _read_sites(values: PassValues, chunk: FeedChunk, source: PageList | None) -> dict[str, Tensor]:
    """The values that a chunk's watch reads; `source`: the pages of its keys and values for cross-attention."""
    reads = frozenset() if chunk.feed.watch is None else chunk.feed.watch.reads
    sites = {site: values.value(site, chunk) for site in values.program.sites if site in reads}
    if source is not None:
        of_source = (site for site in reads if site.endswith(SOURCE_SITES))
        sites |= {site: source_value(source, site, len(chunk.row.source)) for site in of_source}
    return sites
