"""How fast the engine is with each of several numbers of threads.

`decode_speeds` needs no model: it decodes with weights of SmolLM2's kinds and shapes that hold no numbers of a model, since
the time of a step depends on how much it reads, not on what. `model_speeds` measures a model itself.

All numbers of threads take turns, in rounds, and the best time of each counts: other programs on the machine can only make
a pass slower. How much of the processors they took is seen in the threads' own time: threads that wait for each other spin,
so each of them should have been running all the time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np

from glassformer.blueprints import Blueprint, Config, blueprint, read_config
from glassformer.checkpoint import StoredTensor
from glassformer.engine.cpu.executor import CpuExecutor
from glassformer.engine.cpu.kv_pages import CpuRow, PageTable
from glassformer.engine.cpu.library import (
    Engine,
    FileKind,
    MatrixKind,
    NativeMatrix,
    packed_kind,
    packed_size,
)  # fmt: skip
from glassformer.engine.cpu.passes import BufferMemory, EnginePass, NativeProgram
from glassformer.engine.cpu.weights import ALIGNMENT, NativeWeights
from glassformer.engine.lowering import Lowering, required_matrices
from glassformer.engine.paged_rows import PageFormat
from glassformer.engine.program import MatrixRef, RowRuns
from glassformer.engine.program_pass import FeedChunk
from glassformer.engine.protocol import ACTIVATIONS, Feed
from glassformer.ground.errors import ExecutorError

SHAPES: Mapping[str, Any] = {  # SmolLM2's
    "model_type": "llama", "num_hidden_layers": 30, "hidden_size": 576, "intermediate_size": 1536, "vocab_size": 49152,
    "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 2048, "tie_word_embeddings": True,
}  # fmt: skip
WeightKind: TypeAlias = FileKind | Literal[MatrixKind.F16, MatrixKind.BF16]
HALF = 2  # bytes of a number in 16 bits
LAYER_KIND, TABLE_KIND = FileKind.Q4_1, FileKind.Q8_0  # of its matrices, and of its embeddings
FILL = 0x3C  # in every byte of the weights; a normal number as a scale of any width: 1.06 in 16 bits, 0.01 in 32
CONTEXT = 64  # tokens before the one that is decoded
PREFILL_TOKENS = 128
SECONDS = 0.6  # of measuring
MIN_ROUNDS = 3
PASSES = 3  # that are timed in each turn
SETTLING = 0.01  # seconds after which the threads of the previous turn sleep
HOPELESS = 1.5  # times the best time, after which a number of threads gets no further turn
UNDISTURBED = 0.8  # of a pass: the part in which its threads had a processor each, at least


@dataclass(frozen=True)
class Timing:
    """The best pass of a number of threads."""

    seconds: float = math.inf
    running: float = 1.0  # the part of that time in which the threads had a processor each

    @property
    def disturbed(self) -> bool:
        return self.running < UNDISTURBED


@dataclass(frozen=True)
class DecodeSpeeds:
    """Tokens per second by the number of threads; `disturbed`: other programs took a part of the processors meanwhile."""

    tokens_per_second: Mapping[int, float]
    weight_bytes: int  # that are read for each token
    disturbed: bool


@dataclass(frozen=True)
class ModelSpeed:
    """Tokens per second of one text."""

    decode: float
    prefill: float
    disturbed: bool  # whether other programs took a part of the processors meanwhile


def _size(kind: WeightKind, rows: int, columns: int) -> int:
    return packed_size(kind, rows, columns) if isinstance(kind, FileKind) else rows * columns * HALF


class SyntheticWeights(NativeWeights):
    """Weights of a blueprint's shapes, in memory that holds the same byte everywhere."""

    def __init__(self, model: Blueprint, engine: Engine, layer_kind: WeightKind, table_kind: WeightKind) -> None:
        super().__init__({}, {}, engine)
        matrices = required_matrices(model)
        kinds = {matrix.names: table_kind if "embed" in matrix.names[0] else layer_kind for matrix in matrices}
        sizes = {matrix.names: _size(kinds[matrix.names], *matrix.shape) for matrix in matrices}
        self.size = sum(sizes.values())
        room = sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes.values()) + ALIGNMENT
        self._memory = np.full(room, FILL, np.uint8)
        address = -(-self._memory.ctypes.data // ALIGNMENT) * ALIGNMENT
        self._matrices: dict[tuple[str, ...], tuple[int, WeightKind]] = {}
        for names, size in sizes.items():
            self._matrices[names] = address, kinds[names]
            address += -(-size // ALIGNMENT) * ALIGNMENT
        self._ones = self.keep(np.ones(max(weight.shape[0] for weight in model.weights), np.float32))

    def matrix(self, matrix: MatrixRef) -> NativeMatrix:
        address, kind = self._matrices[matrix.names]
        return NativeMatrix(address, None, packed_kind(kind) if isinstance(kind, FileKind) else kind, *matrix.shape)

    def vector(self, *names: str, plus: float = 0.0, part: RowRuns | None = None) -> int:
        return self._ones


class SyntheticDecoder:
    """A pass that decodes one token with synthetic weights, on any engine."""

    def __init__(
        self, shapes: Mapping[str, Any] = SHAPES, layer_kind: WeightKind = LAYER_KIND, table_kind: WeightKind = TABLE_KIND
    ) -> None:
        config = read_config(dict(shapes))
        model = blueprint(config)
        self._weights = SyntheticWeights(model, Engine(threads=1), layer_kind, table_kind)
        program = Lowering(model, "", frozenset(), frozenset(), config).lower()
        self._prepared = NativeProgram(program, self._weights, "f16", ACTIVATIONS[0], BufferMemory())
        heads, size = config.num_key_value_heads, config.head_dim
        row = CpuRow(PageTable(PageFormat(config.num_hidden_layers, heads, size, "f16")))
        row.pages.reserve(0, CONTEXT + 1)
        for page in row.pages.pages:
            page.memory[:] = 0
        row.length = CONTEXT
        self._pass = EnginePass(self._prepared, [FeedChunk(0, Feed(row, [0]), row, 0, 1)])
        self._native = self._pass.steps(0, len(program.steps))

    @property
    def weight_bytes(self) -> int:
        """How much a pass reads."""
        return self._weights.size

    def run(self, engine: Engine) -> None:
        engine.run(self._native)


def decode_speeds(counts: Iterable[int], seconds: float = SECONDS, shapes: Mapping[str, Any] = SHAPES) -> DecodeSpeeds:
    """The speed with each of these numbers of threads, as far as they can be started."""
    decoder, engines = SyntheticDecoder(shapes), start_engines(counts)
    timings = best_times({count: partial(decoder.run, engine) for count, engine in engines.items()}, seconds)
    return DecodeSpeeds(
        {count: 1 / timing.seconds for count, timing in timings.items()},
        decoder.weight_bytes,
        disturbed=any(timing.disturbed for timing in timings.values()),
    )


def start_engines(counts: Iterable[int]) -> dict[int, Engine]:
    """An engine with each of these numbers of threads; without those that the system does not allow."""
    engines: dict[int, Engine] = {}
    for count in counts:
        try:
            engines[count] = Engine(threads=count)
        except ExecutorError:
            if not engines:
                raise
    return engines


def model_speeds(
    config: Config, model: Blueprint, tensors: Mapping[str, StoredTensor], counts: Iterable[int], seconds: float = 2.0,
    **options: Any,
) -> dict[int, ModelSpeed]:  # fmt: skip
    """A model's speed with each of these numbers of threads; `options` of its executor."""
    executors = {
        count: CpuExecutor(config, model, tensors, engine=engine, **options)
        for count, engine in start_engines(counts).items()
    }
    ids = [index % config.vocab_size for index in range(min(PREFILL_TOKENS, config.context // 2))]
    decode = best_times({count: _decode(executor, ids) for count, executor in executors.items()}, seconds)
    prefill = best_times(
        {count: partial(_prefill, executor, ids) for count, executor in executors.items()}, seconds, min_rounds=1, passes=1
    )
    return {
        count: ModelSpeed(1 / timing.seconds, len(ids) / prefill[count].seconds, timing.disturbed)
        for count, timing in decode.items()
    }


def _prefill(executor: CpuExecutor, ids: Sequence[int]) -> CpuRow:
    """A new row with these tokens; of an encoder-decoder, with them as its source."""
    if executor.blueprint.encoder_blocks:
        row, ids = executor.open(ids), ids[:1]
    else:
        row = executor.open()
    executor.run([Feed(row, ids)])
    return row


def _decode(executor: CpuExecutor, ids: Sequence[int]) -> Callable[[], None]:
    """What decodes one token after these."""
    row = _prefill(executor, ids[:CONTEXT])
    length = row.length

    def decode() -> None:
        executor.run([Feed(row, ids[:1])])
        executor.rewind(row, length)

    return decode


def best_times(
    runs: Mapping[int, Callable[[], object]], seconds: float, min_rounds: int = MIN_ROUNDS, passes: int = PASSES
) -> dict[int, Timing]:
    """The best pass of each number of threads, from as many rounds as the time allows."""
    best = dict.fromkeys(runs, Timing())
    started, rounds = time.perf_counter(), 0
    while rounds < min_rounds or time.perf_counter() - started < seconds:
        limit = HOPELESS * min(timing.seconds for timing in best.values())
        for count in [count for count in runs if best[count].seconds <= limit]:
            time.sleep(SETTLING)
            runs[count]()  # wakes the threads
            for _ in range(passes):
                begun, processor_time = time.perf_counter(), time.process_time()
                runs[count]()
                duration = time.perf_counter() - begun
                running = (time.process_time() - processor_time) / (count * duration)
                best[count] = min(best[count], Timing(duration, running), key=lambda timing: timing.seconds)
        rounds += 1
    return best
