"""Decoding at batch 1 with the persistent kernel: the packed weights, the exchange buffers and the launches.

Shapes: pool (pages, layers, 2, kv_heads, PAGE, head_size); scores (steps, vocabulary); residuals (steps, layers, 2, hidden).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from glassformer.engine.gpu.persistent.compiler import compiled
from glassformer.engine.gpu.persistent.driver import CooperativeKernel
from glassformer.engine.gpu.persistent.launch import KernelError, Launch
from glassformer.engine.gpu.persistent.schedule import PAGE, UNIT, DecoderShape, Schedule, misfit
from glassformer.errors import ExecutorError, InputError

THREADS = 288
STATUS = 4  # numbers before the ids in the results
CLOCKS_PER_SECOND = 2_000_000_000  # at most; the time-out need not be exact
OLDEST_CAPABILITY = (9, 0)  # the first with bulk copies


@dataclass(frozen=True)
class Card:
    """What the kernel needs to know of a GPU."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int  # that one block may have

    @classmethod
    def of(cls, device: torch.device) -> Card:
        properties = torch.cuda.get_device_properties(device)
        shared_bytes: int = properties.shared_memory_per_block_optin  # type: ignore[attr-defined]
        capability = (properties.major, properties.minor)
        return cls(properties.name, capability, properties.multi_processor_count, shared_bytes)


class Kernel(Protocol):
    """kernel.cu, compiled for a schedule."""

    def blocks_per_multiprocessor(self) -> int: ...
    def launch(self, blocks: int, parameter: Launch, stream: int) -> None: ...


def load_kernel(schedule: Schedule, card: Card) -> Kernel:
    major, minor = card.capability
    cubin = compiled(schedule.definitions(), f"sm_{major}{minor}")
    return CooperativeKernel(cubin, "decode", THREADS, card.shared_bytes)


@dataclass(frozen=True)
class DecoderWeights:
    """A model's tensors on the device. Norms, biases and the rotation in float32, the others in bfloat16."""

    matrices: Callable[
        [str, int], list[Tensor]
    ]  # by name and layer: qkv: [q, k, v], output, gate_up: [gate, up], down, head
    embedding: Tensor  # (vocabulary, hidden)
    norms: Tensor  # (2 * layers + 1, hidden): before attention and before the MLP of each layer, and the last
    rotation: Tensor  # (positions, 2, head_size / 2): cosines and sines
    head_norms: Tensor | None = None  # (layers, 2, head_size): of queries and keys
    qkv_bias: Tensor | None = None  # (layers, qkv rows)


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
        card: Card | None = None,
        load: Callable[[Schedule, Card], Kernel] = load_kernel,
    ) -> None:
        self.shape, self.timeout, self._most_steps, self._weights = shape, timeout, most_steps, weights
        self._device = weights.embedding.device
        card = card or Card.of(self._device)
        if card.capability < OLDEST_CAPABILITY:
            raise ExecutorError(f"the persistent kernel needs a GPU of compute capability 9.0 or later, unlike {card.name}.")
        if reason := misfit(shape, card.multiprocessors, card.shared_bytes):
            raise ExecutorError(f"the persistent kernel does not fit this model: {reason}")
        self.schedule = Schedule(shape, card.multiprocessors, card.shared_bytes)
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
        return int(self.schedule.units.sum()) * UNIT * 2

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
        return Decoded(self.finish(steps), scores, residuals)

    def new_residuals(self, steps: int) -> Tensor:
        return self._empty(steps, self.shape.layers, 2, self.shape.hidden)

    def begin(self) -> None:
        """Before one or more launches, of which `finish` waits for the last."""
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
        weights = self._weights
        launch = Launch(
            stream=self._stream.data_ptr(), stream_stride=self.schedule.stream_units * UNIT * 2,
            embedding=weights.embedding.data_ptr(), norms=weights.norms.data_ptr(), head_norms=_address(weights.head_norms),
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

    def finish(self, steps: int) -> list[int]:
        """Wait for what was launched: the ids that the last launch, of so many steps, chose; an error where one gave up."""
        results = self._results[: STATUS + steps].tolist()
        error, done, block = results[:3]
        if error != KernelError.NONE:
            self._forget_exchange()
            raise ExecutorError(
                f"the persistent kernel gave up after {self.timeout:g} seconds of waiting (block {block}, step {done}): "
                "another program may hold the GPU. Try again, or use another executor."
            )
        return results[STATUS : STATUS + done]

    def _check(self, ids: Sequence[int], start: int, steps: int, pool: Tensor, pages: Sequence[int]) -> None:
        shape, positions = self.shape, len(self._weights.rotation)
        assert pool.is_contiguous()
        assert pool.dtype == torch.bfloat16
        assert tuple(pool.shape[1:]) == (shape.layers, 2, shape.kv_heads, PAGE, shape.head_size)
        assert len(pages) * PAGE >= start + steps
        assert 0 < len(ids) <= steps <= self._most_steps
        if start + steps > positions:
            raise InputError(f"{start + steps} tokens are more than the {positions} positions of this model.")
        if not all(0 <= number < shape.vocabulary for number in ids):
            raise InputError(f"a token id is outside of the vocabulary of {shape.vocabulary}.")

    def _pack(self, weights: DecoderWeights) -> Tensor:
        stream = torch.zeros(self.schedule.stream_shape, dtype=torch.bfloat16, device=self._device)
        for name, layer in self.schedule.matrices_in_order():
            places = torch.from_numpy(self.schedule.places(name, layer)).to(self._device)
            self.schedule.pack(name, weights.matrices(name, layer), stream, places)
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
