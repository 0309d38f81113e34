"""The GPU executor: a blueprint's fused steps as Triton kernels, over weights and a paged KV cache on the device.

Passes are of two kinds. A prompt pass has chunks of at least 64 tokens, with kernels for many; a step pass has everything
else. Which of them a token goes through depends on its own feed alone, and both are batch-invariant. Steps of one token a
row are captured as CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from glassformer.engine.gpu.device import blueprint_reason, device_errors, gpu, meanwhile, read_triton_key
from glassformer.engine.gpu.device_steps import PendingTexts, StepDecoder, knows
from glassformer.engine.gpu.graphs import CapturedPass, CapturedShape, Replays, padded_prompt, padded_size
from glassformer.engine.gpu.kernels.tensors import CHUNK
from glassformer.engine.gpu.kv_pool import GpuRow, KvPool, PageList
from glassformer.engine.gpu.passes import (
    DevicePass,
    GpuLogits,
    LogitBatch,
    PassInput,
    PassLayout,
    PassValues,
    fill,
    new_buffers,
    page_count,
    rounded_up,
    to_device,
    to_host,
    tree_tensors,
)  # fmt: skip
from glassformer.engine.gpu.persistent.decoder import PersistentDecoder
from glassformer.engine.gpu.persistent.kernel import Card, KernelBuild, load_kernel
from glassformer.engine.gpu.persistent.layout import DecoderLayout
from glassformer.engine.gpu.single_row import SingleRowSteps, can_read, decoder_weights, fitting_layout
from glassformer.engine.gpu.states import StatePool
from glassformer.engine.gpu.steps import DeviceProgram
from glassformer.engine.gpu.weights import DeviceWeights, EngineTensor
from glassformer.engine.paged_rows import PagedRow
from glassformer.engine.program import Program
from glassformer.engine.program_executor import ProgramExecutor
from glassformer.engine.program_pass import FeedChunk, changes_pattern, pass_sources, place_chunks
from glassformer.engine.protocol import (
    Capabilities,
    Choice,
    ChosenTokens,
    Description,
    DeviceSampler,
    Draws,
    Feed,
    Row,
)  # fmt: skip
from glassformer.engine.row_history import RowSteps
from glassformer.ground.errors import ExecutorError

CACHE_OF_KIND = {"F32": "f32", "F64": "f32", "BF16": "bf16"}  # by default; f16 for all others
MIN_PREFILL_TOKENS = 64  # a chunk of at least as many goes through the kernels for prompts
SNAPSHOT_SPACING = 512  # tokens between the snapshots of states: a prompt is cut there
PROMPT_CHUNK = 2048  # tokens of one feed in a pass; a feed is cut at multiples of it
MAX_PROMPT_TOKENS = 8192  # of a prompt pass, so that a pass needs little memory
MAX_STEP_TOKENS = 1024  # of a step pass
MIN_SINGLE_ROW_STEPS = 4  # for which the persistent kernel is made
CHOICE_NOTE = "tokens are chosen on the device: the best, or drawn after temperature, top_k, top_p and min_p"


class GpuExecutor(ProgramExecutor[DeviceProgram, GpuRow, GpuLogits]):
    """An `Executor` over a blueprint and stored tensors, or a live model's parameters, on a GPU."""

    _row_type = GpuRow
    _max_unembedded = MAX_STEP_TOKENS
    _spacing = SNAPSHOT_SPACING

    def __init__(
        self, config: Config, blueprint: Blueprint, tensors: Mapping[str, EngineTensor], *, cache: str | None = None,
        batch_invariant: bool = True, device: torch.device | None = None, kernels: Any = kernels,
    ) -> None:  # fmt: skip
        """`batch_invariant`: whether a row's numbers must not depend on whether it runs alone; if they may, a single row is
        decoded by the persistent kernel, where it fits."""
        if (reason := blueprint_reason(blueprint)) is not None:
            raise ExecutorError(reason)
        super().__init__(config, blueprint)
        self.device = gpu() if device is None else device
        self._kernels, self._batch_invariant = kernels, batch_invariant
        self._weight_kind = main_kind(tensors.values())
        self._default_cache = CACHE_OF_KIND.get(self._weight_kind, "f16")
        self.cache = cache or self._default_cache
        expected = {weight.name: weight.shape for weight in blueprint.weights}
        self._weights = DeviceWeights(tensors, expected, self.device)
        formats = self._page_formats(self.cache)
        with device_errors("the weights"), meanwhile(read_triton_key):
            for stack in formats:
                self._program(stack)
            self._pools = {stack: KvPool(page_format, self.device) for stack, page_format in formats.items()}
            self._states = StatePool(blueprint.state_size, self.device)
        self._pool = self._pools[""]
        self._set_ropes(blueprint.ropes)
        self._set_states(blueprint)
        self._replays = Replays(self.device)
        self._decoder: SingleRowSteps | None = None
        self._kernel_build: KernelBuild | None = None
        self._single_row, self._single_row_note = self._fitting_layout()
        self._steps = StepDecoder(
            kernels, self.device, lambda sites: self._program("", sites), self._captured
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

    def _prepare(self, program: Program) -> DeviceProgram:
        return DeviceProgram(program, self._weights)

    def _new_pages(self, stack: str = "") -> PageList:
        return PageList(self._pools[stack])

    def describe(self) -> Description:
        on_gpu = self.device.type == "cuda"
        card = torch.cuda.get_device_name(self.device) if on_gpu else "Triton's interpreter"
        options = {} if self.cache == self._default_cache else {"cache": self.cache}
        options |= {} if self._batch_invariant else {"batch_invariant": "false"}
        notes = (card, f"keys and values in {self.cache}", CHOICE_NOTE, self._single_row_note)
        token_bytes = self._pool.format.token_bytes
        return Description("gpu", str(self.device), self._weight_kind, 1, token_bytes, self._state_bytes, notes, options)

    # Passes -----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def run(self, feeds: Sequence[Feed]) -> list[GpuLogits]:
        return super().run(feeds)

    def _run_feeds(self, feeds: Sequence[Feed], rows: Sequence[GpuRow]) -> list[GpuLogits]:
        with device_errors("this pass"):
            return super()._run_feeds(feeds, rows)

    def _run_pass(self, prepared: DeviceProgram, chunks: Sequence[FeedChunk]) -> list[GpuLogits]:
        place_chunks(chunks)
        self._open_states([chunk.row for chunk in chunks])
        prepared.set_length(chunks[0].text_length)
        program, sources = prepared.program, pass_sources(prepared.program, chunks)
        fed = PassInput(chunks, [chunk.scored() for chunk in chunks], sources)
        prompt = are_prompts(chunks)
        shape = self._captured_shape(prepared, fed, prompt)
        values = self._run_eagerly(prepared, fed, prompt) if shape is None else self._replay(shape, prepared, fed)
        logits = torch.empty(0, 0) if program.scores is None else values.buffers[program.scores]
        batch = LogitBatch(logits, self._kernels)
        values.change_states()
        results, first = [], 0
        for chunk, source, count in zip(chunks, sources, fed.counts, strict=True):
            results.append(GpuLogits(batch, first, count, values.read_sites(chunk, source)))
            first += count
        return results

    def _open_states(self, rows: Sequence[PagedRow[Any]]) -> None:
        """Let a pass write to rows' states."""
        for row in rows:
            if row.state is not None:
                row.state.writable(self._states.zeros)

    def _run_eagerly(self, prepared: DeviceProgram, fed: PassInput, prompt: bool) -> PassValues:
        """A pass that is launched step by step."""
        keys, source_keys = fed.most_keys
        layout = PassLayout(fed.tokens, len(fed.chunks), page_count(keys), fed.scored, page_count(source_keys))
        numbers = np.empty(layout.size, np.int32)
        fill(numbers, layout, fed)
        device_pass = self._device_pass(
            prepared, fed.chunks, layout, to_device(numbers, self.device), fed.chunks[0].row.pages.pool,
            rounded_up(keys, CHUNK), rounded_up(source_keys, CHUNK), prompt,
        )  # fmt: skip
        if fed.chunks[0].feed.parents is not None:
            device_pass.tensors = tree_tensors(fed.chunks, device_pass.tensors, self.device)
        prepared.run(device_pass)
        return device_pass

    def _device_pass(
        self, prepared: DeviceProgram, chunks: Sequence[FeedChunk], layout: PassLayout, numbers: Tensor, pool: KvPool,
        max_keys: int, max_source: int, prompt: bool,
    ) -> DevicePass:  # fmt: skip
        tensors, numbers_scored = layout.tensors(numbers)
        scored = None if layout.scored == layout.tokens else numbers_scored
        pattern_keys = max(max_keys, max_source)
        buffers = new_buffers(prepared.program, prepared.neighbours, layout.tokens, layout.scored, pattern_keys, self.device)
        return DevicePass(
            prepared.program, chunks, buffers, self._kernels, tensors, scored, pool.tensor,
            self._pool.tensor, self._states.tensor, prepared.ropes, max_keys, max_source,
            max((chunk.count for chunk in chunks), default=layout.tokens), prompt,
        )  # fmt: skip

    def _captured_shape(self, prepared: DeviceProgram, fed: PassInput, prompt: bool) -> CapturedShape | None:
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

    def _replay(self, shape: CapturedShape, prepared: DeviceProgram, fed: PassInput) -> PassValues:
        """A pass that is captured once for all of its shape."""
        program = prepared.program
        kept = {program.scores, *(location.buffer for location in program.sites.values())}

        def read_later(buffers: list[Tensor], numbers: Mapping[str, Tensor]) -> list[Tensor | None]:
            return [buffer if index in kept else None for index, buffer in enumerate(buffers)]

        static = self._captured(shape, prepared, fed, read_later)()
        buffers = [
            torch.empty(0) if buffer is None else buffer[: fed.scored if index == program.scores else fed.tokens].clone()
            for index, buffer in enumerate(static)
        ]
        return PassValues(program, fed.chunks, buffers)

    def _captured(
        self, shape: CapturedShape, prepared: DeviceProgram, fed: PassInput,
        finish: Callable[[list[Tensor], Mapping[str, Tensor]], list[Tensor | None]],
    ) -> CapturedPass:  # fmt: skip
        """A captured pass with the numbers of what is fed; `finish`: what is read later, from its buffers and numbers."""
        layout = shape.layout

        def run(numbers: Tensor) -> list[Tensor | None]:
            device_pass = self._device_pass(
                prepared, (), layout, numbers, self._pool, shape.max_keys, shape.max_source, shape.prompt
            )
            prepared.run(device_pass)
            return finish(device_pass.buffers, layout.views(numbers))

        write = partial(fill, layout=layout, fed=fed)
        places = (self._pool.tensor.data_ptr(), self._states.tensor.data_ptr())
        return self._replays.prepare((prepared, shape), places, layout, write, run)

    # Sampling on the device -----------------------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:
        sampler = DeviceSampler(knows, self._decode, self._enqueue)
        return Capabilities(
            min_prefill_tokens=MIN_PREFILL_TOKENS, sampler=sampler, same_frequencies=self.same_frequencies,
            resumes_at=self._resumes_at,
        )  # fmt: skip

    def _decode(
        self, rows: Sequence[Row], tokens: Sequence[int], choices: Sequence[Choice], draws: Draws
    ) -> list[ChosenTokens]:
        return self._enqueue(rows, [*tokens], choices, draws)()

    @checks.locked
    @torch.inference_mode()
    def _enqueue(
        self, rows: Sequence[Row], tokens: Sequence[int | None], choices: Sequence[Choice], draws: Draws
    ) -> Callable[[], list[ChosenTokens]]:
        fed, count = [self._open_row(row) for row in rows], draws.shape[1]
        self._checks.steps(fed, tokens, count)
        lengths = [row.length for row in fed]
        if not fed or not count:
            return lambda: [ChosenTokens([]) for _ in fed]
        choices = [replace(choice, top_k=0) if choice.top_k >= self.config.vocab_size else choice for choice in choices]
        with checks.restored(fed, lengths), device_errors("these steps"):
            self._encode([Feed(row, (0,)) for row in fed], fed)
            steps = self._begin_steps(fed, tokens, count)
            self._open_states(fed)
            for row in fed:
                row.pages.reserve(row.length, row.length + count)
            decoder = self._single_row_decoder(count) if len(fed) == 1 and can_read(choices[0].sites) else None
            if decoder is None:
                wait = self._steps.enqueue(fed, tokens, choices, draws)
            else:
                wait = decoder.enqueue(fed[0], tokens[0], choices[0], draws[0], self._pool.tensor)
            self._end_steps(fed)
        return partial(self._wait, wait, fed, lengths, steps)

    @checks.locked
    def _wait(
        self, wait: PendingTexts, rows: Sequence[GpuRow], lengths: Sequence[int], steps: Sequence[RowSteps]
    ) -> list[ChosenTokens]:
        """The tokens of queued steps; where they failed, rows have the length that they had before."""
        with checks.restored(rows, lengths), device_errors("these steps"):
            return [row_steps.take(chosen) for row_steps, chosen in zip(steps, wait(), strict=True)]

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

    @torch.inference_mode()
    def unembed(self, states: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        with device_errors("these states"):
            return super().unembed(states)

    @staticmethod
    def _concatenate(parts: list[Tensor], axis: int) -> Tensor:
        return torch.cat(parts, axis)

    def _finish_pass(
        self, prepared: DeviceProgram, chunk: FeedChunk, begin: int, site: str, states: npt.NDArray[np.float32],
        logits: npt.NDArray[np.float32],
    ) -> None:  # fmt: skip
        layout = PassLayout(len(states), 1, 1, len(states))
        numbers = torch.zeros(layout.size, dtype=torch.int32, device=self.device)
        device_pass = self._device_pass(prepared, [chunk], layout, numbers, self._pool, CHUNK, 0, prompt=False)
        device_pass.value(site, chunk)[...] = torch.from_numpy(states).to(self.device)
        prepared.run(device_pass, begin)
        assert prepared.program.scores is not None
        logits[:] = to_host(device_pass.buffers[prepared.program.scores])

    def _split_passes(self, feeds: Sequence[FeedChunk], divisible: bool) -> Iterator[list[FeedChunk]]:
        """Prompts, then single tokens, short feeds and trees: which of them a chunk is depends on its feed alone."""
        rounds: list[list[FeedChunk]] = []  # the first chunks of prompts, then the second ones, and so on
        single: list[FeedChunk] = []
        short: list[FeedChunk] = []
        trees: list[FeedChunk] = []
        for feed in feeds:
            if feed.feed.parents is not None or feed.count == 1:
                (single if feed.feed.parents is None else trees).append(feed)
                continue
            whole = not divisible or changes_pattern(feed.feed) or self._needs_whole_text(feed.feed)
            step = feed.count if whole else PROMPT_CHUNK
            offsets = [*range(0, feed.count, step), feed.count]
            if len(offsets) > 2 and offsets[-1] - offsets[-2] < MIN_PREFILL_TOKENS:  # its end is a prompt's too
                offsets[-2] = feed.count - MIN_PREFILL_TOKENS
            for index, (offset, end) in enumerate(pairwise(offsets)):
                chunk = feed.part(offset, end - offset)
                if chunk.count < MIN_PREFILL_TOKENS:
                    (single if chunk.count == 1 else short).append(chunk)
                    continue
                rounds += [[]] if index == len(rounds) else []
                rounds[index].append(chunk)
        for prompts in rounds:
            yield from _batches(prompts, MAX_PROMPT_TOKENS)
        for chunks in (single, short, trees):
            yield from _batches(chunks, MAX_STEP_TOKENS)


def are_prompts(chunks: Sequence[FeedChunk]) -> bool:
    """Whether the chunks of a pass, which are all of one kind, go through the kernels for prompts."""
    return chunks[0].count >= MIN_PREFILL_TOKENS and chunks[0].feed.parents is None


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
