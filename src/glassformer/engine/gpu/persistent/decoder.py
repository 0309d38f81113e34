"""Decoding at batch 1 with the persistent kernel: the packed weights, the exchange buffers and the launches.

Shapes: pool (pages, layers, 2, kv_heads, PAGE, head_size); scores (steps, vocabulary); residuals (steps, layers, 2, hidden).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from glassformer.engine.gpu.kernels.tensors import DeviceMatrix
from glassformer.engine.gpu.persistent.formats import EMBEDDINGS, Format, format_of
from glassformer.engine.gpu.persistent.kernel import Card, Kernel, KernelError, Launch, load_kernel, timed_out
from glassformer.engine.gpu.persistent.schedule import MATRICES, DecoderShape, Formats, Schedule, misfit
from glassformer.engine.gpu.persistent.stream import write_matrix
from glassformer.ground.errors import ExecutorError

STATUS = 4  # numbers before the ids in the results
CLOCKS_PER_SECOND = 2_000_000_000  # at most; the time-out need not be exact
OLDEST_CAPABILITY = (9, 0)  # the first with bulk copies
CACHES = ("bf16", "f16")
MAX_STEPS = 4096  # of one launch

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
    formats = stream_formats(matrices, shape.layers)
    if embedding not in EMBEDDINGS:
        raise ExecutorError(f"the persistent kernel does not fit: it cannot read an embedding in {embedding}.")
    if reason := misfit(shape, card.multiprocessors, card.shared_bytes, formats):
        raise ExecutorError(f"the persistent kernel does not fit: {reason}")
    return Schedule(
        shape, card.multiprocessors, card.shared_bytes, formats=formats, embedding=embedding, cache=cache
    )  # fmt: skip


def stream_formats(matrices: Matrices, layers: int) -> Formats:
    """The format of each matrix in the stream, by the kinds of its parts in every layer; an error if there is none."""
    formats: dict[str, Format] = {}
    for name in MATRICES:
        kinds = {part.kind for layer in ((layers,) if name == "head" else range(layers)) for part in matrices(name, layer)}
        form = format_of(kinds)
        if form is None:
            mixture = " and ".join(sorted(kinds))
            raise ExecutorError(f"the persistent kernel does not fit: it has no format for weights in {mixture}.")
        formats[name] = form
    return formats


class PersistentDecoder:
    """One model's weights as streams, and the kernel that was compiled for its shape. For one thread at a time."""

    def __init__(
        self,
        shape: DecoderShape,
        weights: DecoderWeights,
        *,
        timeout: float = 2.0,
        cache: str = "bf16",
        card: Card | None = None,
        load: Callable[[Schedule, Card], Kernel] = load_kernel,
    ) -> None:
        self.shape, self.timeout, self._weights, self._device = shape, timeout, weights, weights.embedding.data.device
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
        self._results = torch.zeros(STATUS + MAX_STEPS, dtype=torch.int32, device=self._device)
        self._tag = 0

    @property
    def stream_bytes(self) -> int:
        """Bytes of weights that a token reads."""
        return int(self.schedule.words.sum()) * 4

    def new_residuals(self, steps: int) -> Tensor:
        return torch.empty(steps, self.shape.layers, 2, self.shape.hidden, device=self._device)

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
        """Queue `steps` tokens after `start` tokens in the cache: first the ids, then the best of each step.

        Waits for nothing: ids and `pages`, the row's pages of the pool, are on the device when it begins. `scores_from`: the
        step from which on scores are kept. It ends early after a stop id; an `absent_block` makes it time out. Behind a
        launch that gave up, those that are queued give up at once.
        """
        tags = steps * (self.shape.layers + 1)
        if self._tag + tags >= 1 << 32:
            self._forget_exchange()
        tag, self._tag = self._tag, self._tag + tags  # used up, even where somebody interrupts the launch
        weights, embedding = self._weights, self._weights.embedding
        tensors = {
            "stream": self._stream, "embedding": embedding.data, "embedding_scales": embedding.scales,
            "embedding_outer_scales": embedding.outer_scales, "embedding_high_bits": embedding.high_bits,
            "norms": weights.norms, "head_norms": weights.head_norms, "qkv_bias": weights.qkv_bias,
            "rotation": weights.rotation, "pool": pool, "page_table": pages, "exchange": self._exchange, "given_ids": ids,
            "stop_ids": stop_ids, "chosen_ids": self._results[STATUS:], "scores": scores, "residuals": residuals,
            "status": self._results,
        }  # fmt: skip
        launch = Launch(
            **{name: tensor.data_ptr() for name, tensor in tensors.items() if tensor is not None},
            stream_stride=self.schedule.stream_words * 4, patience=int(self.timeout * CLOCKS_PER_SECOND), start=start,
            steps=steps, given=len(ids), stops=0 if stop_ids is None else len(stop_ids), scores_from=scores_from, tag=tag,
            absent_block=absent_block,
        )  # fmt: skip
        with self._current_device():
            on_device = self._device.type == "cuda"
            self.kernel.launch(self.schedule.blocks, launch, torch.cuda.current_stream().cuda_stream if on_device else 0)

    def results(self, steps: int) -> Tensor:
        """Where the last launch, of `steps` steps, leaves what `chosen` reads: its status, then its ids."""
        return self._results[: STATUS + steps]

    def chosen(self, results: Sequence[int]) -> list[int]:
        """The ids that the last launch chose, by its results on the host; an error where one gave up."""
        error, done, block = results[:3]
        if error != KernelError.NONE:
            self._forget_exchange()
            self.begin()
            raise timed_out(self.timeout, block, done)
        return list(results[STATUS : STATUS + done])

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

    def _current_device(self) -> AbstractContextManager[object]:
        return torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()
