"""Decoding at batch 1 with the persistent kernel: the packed weights, the exchange buffers and the launches.

Shapes: pool (pages, layers, 2, kv_heads, PAGE, head_size); scores (steps, vocabulary); residuals (steps, layers, 2, hidden).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from threading import Thread
from typing import Protocol

import torch
from torch import Tensor

from glassformer.engine.gpu.device import free_memory
from glassformer.engine.gpu.kernels.tensors import DeviceMatrix
from glassformer.engine.gpu.persistent.compiler import compiled
from glassformer.engine.gpu.persistent.driver import CooperativeKernel
from glassformer.engine.gpu.persistent.formats import EMBEDDINGS, Format, format_of
from glassformer.engine.gpu.persistent.launch import KernelError, Launch
from glassformer.engine.gpu.persistent.schedule import MATRICES, DecoderShape, Formats, Schedule, misfit
from glassformer.engine.gpu.persistent.stream import write_matrix
from glassformer.engine.paged_rows import PAGE
from glassformer.ground.errors import ExecutorError, InputError

THREADS = 288
STATUS = 4  # numbers before the ids in the results
CLOCKS_PER_SECOND = 2_000_000_000  # at most; the time-out need not be exact
OLDEST_CAPABILITY = (9, 0)  # the first with bulk copies
CACHES = {"bf16": torch.bfloat16, "f16": torch.float16}


@dataclass(frozen=True)
class Card:
    """What the kernel needs to know of a GPU."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int  # that one block may have
    free_bytes: float = math.inf

    @classmethod
    def of(cls, device: torch.device) -> Card:
        properties = torch.cuda.get_device_properties(device)
        shared_bytes: int = properties.shared_memory_per_block_optin  # type: ignore[attr-defined]
        capability = (properties.major, properties.minor)
        return cls(properties.name, capability, properties.multi_processor_count, shared_bytes, free_memory(device))


class Kernel(Protocol):
    """kernel.cu, compiled for a schedule."""

    def blocks_per_multiprocessor(self) -> int: ...
    def launch(self, blocks: int, parameter: Launch, stream: int) -> None: ...


def load_kernel(schedule: Schedule, card: Card) -> Kernel:
    return KernelBuild(schedule, card).load(schedule, card)


class KernelBuild:
    """kernel.cu, which a thread compiles for a schedule: beside what the program does meanwhile."""

    def __init__(self, schedule: Schedule, card: Card) -> None:
        self._cubin: Future[bytes] = Future()
        self._definitions, (major, minor) = schedule.definitions(), card.capability
        self._architecture = f"sm_{major}{minor}"
        Thread(target=self._compile, name="glass-kernel", daemon=True).start()

    def _compile(self) -> None:
        try:
            self._cubin.set_result(compiled(self._definitions, self._architecture))
        except BaseException as error:
            self._cubin.set_exception(error)

    def load(self, schedule: Schedule, card: Card) -> Kernel:
        assert schedule.definitions() == self._definitions
        return CooperativeKernel(self._cubin.result(), "decode", THREADS, card.shared_bytes)


Matrices = Callable[[str, int], list[DeviceMatrix]]  # a matrix's parts, by its name and layer


@dataclass(frozen=True)
class DecoderWeights:
    """A model's tensors on the device. Norms, biases and the rotation in float32, the others in bfloat16 or packed."""

    matrices: Matrices  # qkv: [q, k, v], output, gate_up: [gate, up], down, head
    embedding: DeviceMatrix  # (vocabulary, hidden)
    norms: Tensor  # (2 * layers + 1, hidden): before attention and before the MLP of each layer, and the last
    rotation: Tensor  # (positions, 2, head_size / 2): cosines and sines
    head_norms: Tensor | None = None  # (layers, 2, head_size): of queries and keys
    qkv_bias: Tensor | None = None  # (layers, qkv rows)


def plan_schedule(shape: DecoderShape, matrices: Matrices, embedding: str, cache: str, card: Card) -> Schedule:
    """How a card runs a model whose embedding is of some kind; an error with the reason if it cannot."""
    if card.capability < OLDEST_CAPABILITY:
        raise ExecutorError(f"the persistent kernel needs a GPU of compute capability 9.0 or later, unlike {card.name}.")
    if cache not in CACHES:
        raise ExecutorError(f"the persistent kernel keeps keys and values in bf16 or f16, not in {cache}.")
    kinds = lambda *place: [part.kind for part in matrices(*place)]  # noqa: E731
    formats = stream_formats(kinds, shape.layers)
    if embedding not in EMBEDDINGS:
        raise ExecutorError(f"the persistent kernel does not fit: it cannot read an embedding in {embedding}.")
    if reason := misfit(shape, card.multiprocessors, card.shared_bytes, formats):
        raise ExecutorError(f"the persistent kernel does not fit: {reason}")
    return Schedule(
        shape, card.multiprocessors, card.shared_bytes, formats=formats, embedding=embedding, cache=cache
    )  # fmt: skip


def stream_formats(kinds: Callable[[str, int], list[str]], layers: int) -> Formats:
    """The format of each matrix in the stream, by the kinds of its parts in every layer; an error if there is none."""
    formats: dict[str, Format] = {}
    for name in MATRICES:
        numbers = (layers,) if name == "head" else range(layers)
        of_matrix = {kind for layer in numbers for kind in kinds(name, layer)}
        form = format_of(of_matrix)
        if form is None:
            mixture = " and ".join(sorted(of_matrix))
            raise ExecutorError(f"the persistent kernel does not fit: it has no format for weights in {mixture}.")
        formats[name] = form
    return formats


@dataclass(frozen=True)
class Decoded:
    """What a launch computed: ids[i] is the best id after step i, or NO_ID, the last, where scores are no numbers."""

    ids: list[int]
    scores: Tensor | None
    residuals: Tensor | None


class PersistentDecoder:
    """One model's weights as streams, and the kernel that was compiled for its shape. For one thread at a time."""

    def __init__(
        self,
        shape: DecoderShape,
        weights: DecoderWeights,
        *,
        most_steps: int = 4096,
        timeout: float = 2.0,
        cache: str = "bf16",
        card: Card | None = None,
        load: Callable[[Schedule, Card], Kernel] = load_kernel,
    ) -> None:
        self.shape, self.timeout, self._most_steps, self._weights = shape, timeout, most_steps, weights
        self._device, self._cache = weights.embedding.data.device, CACHES.get(cache)
        card = card or Card.of(self._device)
        self.schedule = plan_schedule(shape, weights.matrices, weights.embedding.kind, cache, card)
        if (needed := self.schedule.stream_bytes * 9 // 8) > card.free_bytes:
            raise ExecutorError(
                f"the persistent kernel needs {needed / 1e9:.1f} GB for a copy of the weights, and "
                f"{card.free_bytes / 1e9:.1f} GB of the GPU's memory are free."
            )
        with self._current_device():
            self.kernel = load(self.schedule, card)
            resident = self.kernel.blocks_per_multiprocessor() * card.multiprocessors
        if resident < self.schedule.blocks:  # blocks that wait for ones that never start would wait for ever
            raise ExecutorError(
                f"the persistent kernel needs {self.schedule.blocks} blocks at once; {card.name} has room for {resident}."
            )
        self._stream = self._pack(weights)
        self._exchange = torch.zeros(self.schedule.exchange_words, 2, dtype=torch.int32, device=self._device)
        self._results = torch.zeros(STATUS + most_steps, dtype=torch.int32, device=self._device)
        self._tag = 0

    @property
    def stream_bytes(self) -> int:
        """Bytes of weights that a token reads."""
        return int(self.schedule.words.sum()) * 4

    def decode(
        self,
        ids: Sequence[int],
        start: int,
        steps: int,
        pool: Tensor,
        pages: Sequence[int],
        *,
        stop_ids: Sequence[int] = (),
        scores_from: int | None = None,
        watch_residuals: bool = False,
        absent_block: int = -1,
    ) -> Decoded:
        """Run up to `steps` tokens after `start` tokens in the cache: first the ids, then the best of each step.

        `pages` are the sequence's pages of the pool, for all tokens up to start + steps. With `scores_from`, scores of that
        step and the later ones are returned. The launch ends early after a stop id. An `absent_block` makes it time out.
        """
        self._check(ids, start, steps, pool, pages)
        numbers = torch.tensor([*ids, *stop_ids, *pages], dtype=torch.int32).to(self._device)
        given, stops, page_table = torch.split(numbers, [len(ids), len(stop_ids), len(pages)])
        scores = None if scores_from is None else self._empty(steps - scores_from, self.shape.vocabulary)
        residuals = self.new_residuals(steps) if watch_residuals else None
        self.begin()
        self.launch(
            given, start, steps, pool, page_table, stop_ids=stops, scores=scores, scores_from=scores_from or 0,
            residuals=residuals, absent_block=absent_block,
        )  # fmt: skip
        return Decoded(self.chosen(self.results(steps).tolist()), scores, residuals)

    def new_residuals(self, steps: int) -> Tensor:
        return self._empty(steps, self.shape.layers, 2, self.shape.hidden)

    def begin(self) -> None:
        """Before one or more launches that follow from each other: after one that gave up, the others do not run."""
        self._results[:STATUS].zero_()

    def launch(
        self,
        ids: Tensor,
        start: int,
        steps: int,
        pool: Tensor,
        pages: Tensor,
        *,
        stop_ids: Tensor | None = None,
        scores: Tensor | None = None,
        scores_from: int = 0,
        residuals: Tensor | None = None,
        absent_block: int = -1,
    ) -> None:
        """Queue steps as `decode` has them, with ids and pages that are on the device when it begins; it waits for nothing.

        After a launch that gave up, those that are queued behind it give up at once.
        """
        tags = steps * (self.shape.layers + 1)
        if self._tag + tags >= 1 << 32:
            self._forget_exchange()
        tag, self._tag = self._tag, self._tag + tags  # used up, even where somebody interrupts the launch
        weights, embedding = self._weights, self._weights.embedding
        launch = Launch(
            stream=self._stream.data_ptr(), stream_stride=self.schedule.stream_words * 4,
            embedding=embedding.data.data_ptr(), embedding_scales=_address(embedding.scales),
            embedding_outer_scales=_address(embedding.outer_scales), embedding_high_bits=_address(embedding.high_bits),
            norms=weights.norms.data_ptr(), head_norms=_address(weights.head_norms),
            qkv_bias=_address(weights.qkv_bias), rotation=weights.rotation.data_ptr(), pool=pool.data_ptr(),
            page_table=pages.data_ptr(), exchange=self._exchange.data_ptr(), given_ids=ids.data_ptr(),
            stop_ids=_address(stop_ids), chosen_ids=self._results.data_ptr() + 4 * STATUS, scores=_address(scores),
            residuals=_address(residuals), status=self._results.data_ptr(),
            patience=int(self.timeout * CLOCKS_PER_SECOND), start=start, steps=steps, given=len(ids),
            stops=0 if stop_ids is None else len(stop_ids), scores_from=scores_from, tag=tag,
            absent_block=absent_block,
        )  # fmt: skip
        with self._current_device():
            on_device = self._device.type == "cuda"
            self.kernel.launch(self.schedule.blocks, launch, torch.cuda.current_stream().cuda_stream if on_device else 0)

    def results(self, steps: int) -> Tensor:
        """Where the last launch, of so many steps, leaves what `chosen` reads: its status, then its ids."""
        return self._results[: STATUS + steps]

    def chosen(self, results: Sequence[int]) -> list[int]:
        """The ids that the last launch chose, by its results on the host; an error where one gave up."""
        error, done, block = results[:3]
        if error != KernelError.NONE:
            self._forget_exchange()
            self.begin()
            raise ExecutorError(
                f"the persistent kernel gave up after {self.timeout:g} seconds of waiting (block {block}, step {done}): "
                "another program may hold the GPU. Try again, or use another executor."
            )
        return list(results[STATUS : STATUS + done])

    def _check(self, ids: Sequence[int], start: int, steps: int, pool: Tensor, pages: Sequence[int]) -> None:
        shape, positions = self.shape, len(self._weights.rotation)
        assert pool.is_contiguous()
        assert pool.dtype == self._cache
        assert tuple(pool.shape[1:]) == (shape.layers, 2, shape.kv_heads, PAGE, shape.head_size)
        assert len(pages) * PAGE >= start + steps
        assert 0 < len(ids) <= steps <= self._most_steps
        if start + steps > positions:
            raise InputError(f"{start + steps} tokens are more than the {positions} positions of this model.")
        if not all(0 <= number < shape.vocabulary for number in ids):
            raise InputError(f"a token id is outside of the vocabulary of {shape.vocabulary}.")

    def _pack(self, weights: DecoderWeights) -> Tensor:
        """One matrix after the other, so that there is no third copy of the weights."""
        stream = torch.zeros(self.schedule.blocks * self.schedule.stream_words, dtype=torch.int32, device=self._device)
        for name, layer in self.schedule.matrices_in_order():
            write_matrix(self.schedule, name, layer, weights.matrices(name, layer), stream)
        return stream

    def _forget_exchange(self) -> None:
        """No word of an earlier launch may look like one of the next."""
        self._exchange.zero_()
        self._tag = 0

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=self._device)

    def _current_device(self) -> AbstractContextManager[object]:
        return torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
