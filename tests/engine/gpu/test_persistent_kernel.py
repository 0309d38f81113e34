"""The persistent kernel itself, run on the host: equal to a plain forward pass in any order of its threads, and ending."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from glassformer.engine.gpu.persistent.kernel import NO_ID, KernelError, Launch
from glassformer.engine.gpu.persistent.schedule import DecoderShape, Schedule, misfit
from tests.engine.gpu.reference import KindOf, RandomModel, rounded
from tests.engine.gpu.simulation import SimulatedDecoder, compile_simulation
from tests.sweeps import mostly_swept


@dataclass(frozen=True)
class Case:
    shape: DecoderShape
    multiprocessors: int
    chunk_pages: int = 1
    direct_chunks: int = 4
    flight: int | None = None
    kind: KindOf = lambda name, layer: "BF16"


def mixed(name: str, layer: int) -> str:
    """As files in Q4_K_M have it: some matrices of some layers in more bits."""
    return "Q6_K" if name in ("embedding", "head") or (name in ("v", "down") and layer == 1) else "Q4_K"


def all_of(kind: str) -> KindOf:
    return lambda name, layer: kind


def partly_packed(name: str, layer: int) -> str:
    return "BF16" if name in ("o", "gate", "up", "head") else "Q8_0"


PACKED_SHAPE = DecoderShape(2, 256, 4, 2, 64, 512, 100, 1e-6, True, True)
PLAIN = "head norms and biases"
CASES = {
    PLAIN: Case(DecoderShape(2, 256, 4, 2, 64, 128, 100, 1e-6, True, True), 6),
    "padded columns, wide heads": Case(DecoderShape(2, 72, 2, 2, 128, 264, 83, 1e-5), 5, flight=3, direct_chunks=1),
    "few rows in a group": Case(DecoderShape(1, 40, 2, 1, 64, 64, 50, 1e-6), 6, chunk_pages=2),
    "gates in bundles": Case(DecoderShape(1, 2304, 3, 1, 64, 16, 40, 1e-6, True), 5, direct_chunks=2),
    "single rows": Case(DecoderShape(1, 8, 2, 1, 64, 64, 50, 1e-6), 6),
    "groups in parts": Case(DecoderShape(1, 64, 2, 1, 64, 4864, 50, 1e-6), 3),
    "Q8_0": Case(PACKED_SHAPE, 6, kind=all_of("Q8_0")),
    "Q8_0, padded columns": Case(DecoderShape(2, 96, 2, 2, 64, 1056, 83, 1e-6), 5, kind=all_of("Q8_0")),
    "Q8_0, groups in parts": Case(DecoderShape(1, 64, 2, 1, 64, 4864, 50, 1e-6), 3, kind=all_of("Q8_0")),
    "Q4_0": Case(PACKED_SHAPE, 6, kind=all_of("Q4_0")),
    "Q4_0, many rows in a group": Case(DecoderShape(1, 1024, 4, 2, 64, 256, 700, 1e-6), 6, kind=all_of("Q4_0")),
    "Q4_1": Case(PACKED_SHAPE, 6, kind=all_of("Q4_1")),
    "Q4_K": Case(PACKED_SHAPE, 6, kind=all_of("Q4_K")),
    "Q5_K": Case(PACKED_SHAPE, 6, kind=all_of("Q5_K")),
    "Q6_K": Case(DecoderShape(1, 1280, 4, 2, 64, 256, 60, 1e-6), 4, kind=all_of("Q6_K")),
    "Q4_K and Q6_K": Case(PACKED_SHAPE, 6, kind=mixed),
    "Q8_0 and BF16": Case(PACKED_SHAPE, 6, kind=partly_packed),
}
Make = Callable[[str], SimulatedDecoder]


@pytest.fixture(scope="module")
def make() -> Make:
    libraries: dict[str, tuple[Schedule, ctypes.CDLL]] = {}

    def make_decoder(name: str) -> SimulatedDecoder:
        case = CASES[name]
        if name not in libraries:
            model = RandomModel(case.shape, kind=case.kind)
            formats, embedding = model.formats(), case.kind("embedding", 0)
            assert misfit(case.shape, case.multiprocessors, 200_000, formats) is None
            schedule = Schedule(
                case.shape, case.multiprocessors, 200_000, case.chunk_pages, case.direct_chunks, formats, embedding
            )  # fmt: skip
            libraries[name] = schedule, compile_simulation(schedule, case.flight)
        return SimulatedDecoder(RandomModel(case.shape, kind=case.kind), *libraries[name])

    return make_decoder


def random_cache(decoder: SimulatedDecoder, tokens: int) -> NDArray[np.float32]:
    """Keys and values of `tokens` tokens, written to the decoder's pages, with room for more."""
    shape = decoder.model.shape
    cache = np.zeros((shape.layers, 2, shape.kv_heads, len(decoder.rotation), shape.head_size), np.float32)
    cache[:, :, :, :tokens] = rounded(np.random.default_rng(3).standard_normal(cache[:, :, :, :tokens].shape))
    decoder.write_cache(cache[:, :, :, :tokens])
    return cache


USUAL = ((PLAIN, 150), *((name, 63) for name in ("groups in parts", "Q4_K and Q6_K")))


@pytest.mark.parametrize(
    ("name", "start"), mostly_swept([(PLAIN, 0), (PLAIN, 150), *((name, 63) for name in CASES)], *USUAL)
)
def test_scores_and_residuals_are_those_of_a_plain_forward_pass(make: Make, name: str, start: int) -> None:
    decoder = make(name)
    cache = random_cache(decoder, start)
    decoder.run([5, 7], start, 3 if name == PLAIN else 2)
    assert decoder.status[:2].tolist() == [KernelError.NONE, len(decoder.chosen)]
    for step, token in enumerate([5, 7, decoder.chosen[1]][: len(decoder.chosen)]):
        scores, residuals = decoder.model.forward(int(token), start + step, cache, decoder.rotation)
        assert np.linalg.norm(decoder.scores[step] - scores) < 4e-3 * np.linalg.norm(scores)
        assert np.linalg.norm(decoder.residuals[step] - residuals) < 4e-3 * np.linalg.norm(residuals)
        assert decoder.chosen[step] == decoder.scores[step].argmax()


def test_numbers_are_equal_in_any_order_of_threads_watched_or_not(make: Make) -> None:
    decoder = make(PLAIN)
    random_cache(decoder, 127)
    decoder.run([5], 127, 2)  # the second token begins a page
    ids, scores, residuals = decoder.chosen, decoder.scores, decoder.residuals
    for seed in (2, 3):
        decoder.run([5], 127, 2, seed=seed)
        assert np.array_equal(decoder.scores, scores)
        assert np.array_equal(decoder.residuals, residuals)
    decoder.run([5], 127, 2, watched=False)
    assert np.array_equal(decoder.chosen, ids)


def test_one_launch_of_many_tokens_equals_many_launches(make: Make) -> None:
    decoder = make(PLAIN)
    decoder.run([5], 0, 3)
    together = decoder.chosen.tolist()
    apart = []
    for step in range(3):
        decoder.run([apart[-1] if apart else 5], step, 1, seed=step + 1)
        apart += decoder.chosen.tolist()
    assert apart == together


def test_a_stop_id_ends_the_launch(make: Make) -> None:
    decoder = make(PLAIN)
    decoder.run([5], 0, 3)
    ids = decoder.chosen.tolist()
    decoder.run([5], 0, 3, stop_ids=(99, ids[1]))
    assert decoder.status[:2].tolist() == [KernelError.NONE, ids.index(ids[1]) + 1]
    decoder.run([5], 0, 1)  # the exchange is in order
    assert decoder.chosen.tolist() == ids[:1]


@pytest.mark.parametrize("absent", mostly_swept(range(6), 0, 3))
def test_when_a_block_is_missing_every_other_gives_up(make: Make, absent: int) -> None:
    decoder = make(PLAIN)
    decoder.run([5], 60, 3, absent_block=absent, patience=300_000)
    assert decoder.status[:2].tolist() == [KernelError.TIMED_OUT, 0]
    assert decoder.status[2] != absent


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_scores_that_are_no_numbers_end_the_launch(make: Make, number: float) -> None:
    decoder = make(PLAIN)
    decoder.run([5], 0, 1)
    first = decoder.chosen[0]
    embedding = decoder.embedding["embedding"]
    assert embedding is not None
    embedding[first] = number
    decoder.run([5], 0, 4)
    assert decoder.status[:2].tolist() == [KernelError.NONE, 2]
    assert decoder.chosen.tolist() == [first, NO_ID, -2, -2]


@pytest.mark.parametrize("name", mostly_swept(CASES, *(name for name, _ in USUAL)))
def test_the_kernel_and_python_agree_on_sizes(make: Make, name: str) -> None:
    decoder = make(name)
    assert decoder.library.launch_size() == ctypes.sizeof(Launch)
    assert decoder.library.exchange_words() == decoder.schedule.exchange_words
