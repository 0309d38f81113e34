"""The persistent decoder over the simulated kernel: what it returns, what it refuses, and that it outlives errors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from glassformer.engine.gpu.persistent import kernel as kernels
from glassformer.engine.gpu.persistent.decoder import DecoderWeights, PersistentDecoder
from glassformer.engine.gpu.persistent.kernel import NO_ID, Card, Kernel, Launch
from glassformer.engine.gpu.persistent.schedule import DecoderShape, Schedule
from glassformer.engine.paged_rows import PAGE
from glassformer.ground.errors import ExecutorError
from tests.engine.gpu.launches import decode
from tests.engine.gpu.reference import RandomModel, rotation_table
from tests.engine.gpu.simulation import compile_simulation

SHAPE = DecoderShape(1, 64, 2, 1, 64, 64, 50, 1e-6, head_norms=True, qkv_bias=True)
CARD = Card("a simulated GPU", (9, 0), 3, 100_000)
PAGES = [2, 1]


class SimulatedKernel:
    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def blocks_per_multiprocessor(self) -> int:
        return 1

    def launch(self, blocks: int, parameter: Launch, stream: int) -> None:
        parameter.patience = min(parameter.patience, 100_000)
        assert not self.library.simulate(ctypes.byref(parameter), ctypes.c_uint64(1), ctypes.c_uint64(100_000_000))


@pytest.fixture(scope="module")
def kernel() -> SimulatedKernel:
    schedule = Schedule(SHAPE, CARD.multiprocessors, CARD.shared_bytes)
    return SimulatedKernel(compile_simulation(schedule))


@pytest.fixture
def model() -> RandomModel:
    return RandomModel(SHAPE)


def weights_of(model: RandomModel) -> DecoderWeights:
    return DecoderWeights(
        model.matrices,
        model.stored["embedding", 0],
        torch.from_numpy(model.norms),
        torch.from_numpy(rotation_table(2 * PAGE, SHAPE.head_size)),
        torch.from_numpy(model.head_norms),
        torch.from_numpy(model.qkv_bias),
    )


@pytest.fixture
def decoder(model: RandomModel, kernel: SimulatedKernel) -> PersistentDecoder:
    return PersistentDecoder(SHAPE, weights_of(model), card=CARD, load=lambda schedule, card: kernel)


@pytest.fixture
def pool() -> torch.Tensor:
    return torch.full((3, SHAPE.layers, 2, SHAPE.kv_heads, PAGE, SHAPE.head_size), torch.nan, dtype=torch.bfloat16)


def test_decoding_gives_the_best_ids_their_scores_and_residuals(
    decoder: PersistentDecoder, model: RandomModel, pool: torch.Tensor
) -> None:
    decoded = decode(decoder, [3, 4], 0, 4, pool, PAGES, scores_from=1, watch_residuals=True)
    cache = np.zeros((SHAPE.layers, 2, SHAPE.kv_heads, 4, SHAPE.head_size), np.float32)
    rotation = rotation_table(4, SHAPE.head_size)
    assert decoded.scores is not None
    assert decoded.residuals is not None
    for step, token in enumerate([3, 4, *decoded.ids[1:3]]):
        scores, residuals = model.forward(token, step, cache, rotation)
        assert np.allclose(decoded.residuals[step], residuals, atol=0.02, rtol=0.02)
        if step >= 1:
            assert np.allclose(decoded.scores[step - 1], scores, atol=0.02, rtol=0.02)
            assert decoded.ids[step] == decoded.scores[step - 1].argmax()
    assert decode(decoder, [3, 4], 0, 4, pool, PAGES).ids == decoded.ids


def test_decoding_stops_after_a_stop_id_and_goes_on_in_another_launch(
    decoder: PersistentDecoder, pool: torch.Tensor
) -> None:
    ids = decode(decoder, [3], 0, 5, pool, PAGES).ids
    first = decode(decoder, [3], 0, 5, pool, PAGES, stop_ids=[ids[2]]).ids
    assert first == ids[: ids.index(ids[2]) + 1]
    assert decode(decoder, [first[-1]], len(first), 5 - len(first), pool, PAGES).ids == ids[len(first) :]


def test_scores_that_are_no_numbers_give_no_id(decoder: PersistentDecoder, pool: torch.Tensor) -> None:
    decoder._weights.embedding.data[3] = torch.nan
    assert decode(decoder, [3], 0, 5, pool, PAGES).ids == [NO_ID]


def test_a_time_out_is_one_error_and_the_next_launch_is_good(decoder: PersistentDecoder, pool: torch.Tensor) -> None:
    ids = decode(decoder, [3], 0, 3, pool, PAGES).ids
    with pytest.raises(ExecutorError, match="gave up after 2 seconds of waiting"):
        decode(decoder, [3], 0, 3, pool, PAGES, absent_block=1)
    assert decode(decoder, [3], 0, 3, pool, PAGES).ids == ids


def test_tags_begin_anew_before_they_run_out(decoder: PersistentDecoder, pool: torch.Tensor) -> None:
    ids = decode(decoder, [3], 0, 3, pool, PAGES).ids
    decoder._tag = (1 << 32) - 5
    assert decode(decoder, [3], 0, 3, pool, PAGES).ids == ids
    assert decoder._tag == 3 * (SHAPE.layers + 1)


def never(schedule: Schedule, card: Card) -> Kernel:
    raise AssertionError("no kernel is compiled for what does not fit")


def test_cards_and_shapes_that_do_not_fit_are_refused(model: RandomModel, kernel: SimulatedKernel) -> None:
    weights = weights_of(model)
    with pytest.raises(ExecutorError, match="compute capability 9.0 or later, unlike a simulated GPU"):
        PersistentDecoder(SHAPE, weights, card=replace(CARD, capability=(8, 9)), load=never)
    with pytest.raises(ExecutorError, match="does not fit: heads of 80 values"):
        PersistentDecoder(replace(SHAPE, head_size=80), weights, card=CARD, load=never)


def test_blocks_that_cannot_all_be_resident_are_refused(model: RandomModel, kernel: SimulatedKernel) -> None:
    class Crowded(SimulatedKernel):
        def blocks_per_multiprocessor(self) -> int:
            return 0

    with pytest.raises(ExecutorError, match="needs 3 blocks at once; a simulated GPU has room for 0"):
        PersistentDecoder(SHAPE, weights_of(model), card=CARD, load=lambda schedule, card: Crowded(kernel.library))


# Compiling and loading -----------------------------------------------------------------------------------------------


class FakeNvrtc:
    """NVRTC as far as the compiler uses it; its cubin is the options."""

    def __init__(self, result: int = 0) -> None:
        self.result, self.compilations = result, 0
        self.output = b""
        self.nvrtcGetErrorString: Callable[[int], bytes] = FakeErrors()

    def nvrtcVersion(self, major: object, minor: object) -> int:
        return 0

    def nvrtcCreateProgram(self, *arguments: object) -> int:
        return 0

    def nvrtcDestroyProgram(self, program: object) -> int:
        return 0

    def nvrtcCompileProgram(self, program: object, count: int, options: list[bytes]) -> int:
        self.compilations += 1
        self.output = b"kernel.cu(1): error: wrong" if self.result else b" ".join(list(options))
        return self.result

    def nvrtcGetCUBINSize(self, program: object, size: object) -> int:
        ctypes.cast(size, ctypes.POINTER(ctypes.c_size_t))[0] = len(self.output)  # type: ignore[arg-type]
        return 0

    def nvrtcGetProgramLogSize(self, program: object, size: object) -> int:
        return self.nvrtcGetCUBINSize(program, size)

    def nvrtcGetCUBIN(self, program: object, buffer: ctypes.Array[ctypes.c_char]) -> int:
        buffer.raw = self.output
        return 0

    def nvrtcGetProgramLog(self, program: object, buffer: ctypes.Array[ctypes.c_char]) -> int:
        return self.nvrtcGetCUBIN(program, buffer)


class FakeErrors:
    restype: object = None

    def __call__(self, result: int) -> bytes:
        return b"NVRTC_ERROR_COMPILATION"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GLASS_HOME", str(tmp_path))
    monkeypatch.delenv("GLASS_REBUILD", raising=False)
    return tmp_path


def test_a_kernel_is_compiled_once_for_each_shape_and_card(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc = FakeNvrtc()
    monkeypatch.setattr(kernels, "_nvrtc", lambda: nvrtc)
    cubin = kernels.compiled({"HIDDEN": "64"}, "sm_90")
    assert b"--gpu-architecture=sm_90" in cubin
    assert b"-DHIDDEN=64" in cubin
    assert kernels.compiled({"HIDDEN": "64"}, "sm_90") == cubin
    assert nvrtc.compilations == 1
    kernels.compiled({"HIDDEN": "128"}, "sm_90")
    kernels.compiled({"HIDDEN": "64"}, "sm_100")
    assert nvrtc.compilations == 3
    monkeypatch.setenv("GLASS_REBUILD", "1")
    kernels.compiled({"HIDDEN": "64"}, "sm_90")
    assert nvrtc.compilations == 4


def test_a_home_that_cannot_be_written_costs_only_the_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_nvrtc", FakeNvrtc)
    (home / "gpu").write_text("no folder")
    assert kernels.compiled({"HIDDEN": "64"}, "sm_90")


def test_what_the_compiler_said_is_a_note_of_the_error(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_nvrtc", lambda: FakeNvrtc(6))
    with pytest.raises(ExecutorError, match="could not be compiled") as caught:
        kernels.compiled({}, "sm_90")
    assert caught.value.__notes__ == ["kernel.cu(1): error: wrong"]


def test_without_nvrtc_or_a_driver_there_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ctypes.CDLL:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(ExecutorError, match="NVRTC"):
        kernels.compiled({}, "sm_90")
    with pytest.raises(ExecutorError, match="needs an NVIDIA GPU and its driver"):
        kernels.CooperativeKernel(b"", "decode", 288, 1)


def test_a_driver_that_fails_says_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class FakeDriver:
        def cuModuleLoadData(self, module: object, cubin: bytes) -> int:
            return 2

        def cuGetErrorString(self, result: int, text: object) -> int:
            ctypes.cast(text, ctypes.POINTER(ctypes.c_char_p))[0] = b"out of memory"  # type: ignore[arg-type]
            return 0

    monkeypatch.setattr(kernels, "load_driver", FakeDriver)
    with pytest.raises(ExecutorError, match="cuModuleLoadData says 'out of memory'"):
        kernels.CooperativeKernel(b"", "decode", 288, 1)
