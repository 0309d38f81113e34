"""The persistent kernel, compiled for the host and run on numpy's arrays by simulated_device.cpp."""

from __future__ import annotations

import ctypes
import struct
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from glassformer.engine.cpu.build import find_compiler
from glassformer.engine.gpu.persistent import schedule as schedules
from glassformer.engine.gpu.persistent.kernel import Launch
from glassformer.engine.gpu.persistent.row_decoder import MAP_BYTES, TensorMap
from glassformer.engine.gpu.persistent.row_schedule import RowSchedule
from glassformer.engine.gpu.persistent.schedule import Schedule
from glassformer.engine.gpu.persistent.stream import write_matrix
from glassformer.engine.paged_rows import PAGE
from tests.engine.compiled import kept
from tests.engine.gpu.reference import RandomModel, rotation_table, to_bfloat16

SOURCE = Path(__file__).with_name("simulated_device.cpp")
KERNEL = Path(schedules.__file__).parent


_compiler = cache(find_compiler)  # which tries it


def compile_simulation(schedule: Schedule, flight: int | None = None) -> ctypes.CDLL:
    return compiled_simulation(SOURCE, schedule.definitions(flight))


def compiled_simulation(source: Path, constants: Mapping[str, str]) -> ctypes.CDLL:
    """A kernel on the simulated device."""
    definitions = [f"-D{name}={value}" for name, value in constants.items()]
    unfortified = "-U_FORTIFY_SOURCE"  # which forbids a jump to another stack, as fibers make it
    flags = ["-std=c++17", "-O1", "-w", "-Wno-psabi", "-shared", "-fPIC", "-ffp-contract=off", unfortified, f"-I{KERNEL}"]
    command = [*_compiler(), *flags, *definitions, str(source)]

    def compile_to(folder: Path) -> None:
        subprocess.run([*command, "-o", str(folder / "simulation.so")], check=True)

    headers = sorted(source.parent.glob("simulated_*.h"))
    folder = kept("simulation", command, [source, *headers, *sorted(KERNEL.glob("*.cu")), *KERNEL.glob("*.h")], compile_to)
    return ctypes.CDLL(str(folder / "simulation.so"))


class SimulatedDecoder:
    """A model's arrays, and launches that read and write them."""

    def __init__(self, model: RandomModel, schedule: Schedule, library: ctypes.CDLL, pages: int = 4) -> None:
        self.model, self.schedule, self.library, shape = model, schedule, library, model.shape
        self.stream = torch.zeros(schedule.blocks * schedule.stream_words, dtype=torch.int32)
        for name, layer in schedule.matrices_in_order():
            write_matrix(schedule, name, layer, model.matrices(name, layer), self.stream)
        embedding = model.stored["embedding", 0]
        self.embedding = {
            "embedding": embedding.data, "embedding_scales": embedding.scales,
            "embedding_outer_scales": embedding.outer_scales, "embedding_high_bits": embedding.high_bits,
        }  # fmt: skip
        self.rotation = rotation_table(pages * PAGE, shape.head_size)
        self.pool = np.full((2 * pages, shape.layers, 2, shape.kv_heads, PAGE, shape.head_size), 0xFFFF, np.uint16)
        self.page_table = np.random.default_rng(1).permutation(2 * pages)[:pages].astype(np.int32)
        self.exchange = np.zeros((library.exchange_words() + 1, 2), np.uint32)
        self.words = self.exchange[self.exchange.ctypes.data % 16 // 8 :]
        self.tag = 0

    def write_cache(self, cache: NDArray[np.float32]) -> None:
        """Fill the pages with keys and values (layers, 2, kv_heads, tokens, head_size)."""
        for token in range(cache.shape[3]):
            self.pool[self.page_table[token // PAGE], :, :, :, token % PAGE] = to_bfloat16(cache[:, :, :, token])

    def run(
        self,
        ids: list[int],
        start: int,
        steps: int,
        *,
        stop_ids: tuple[int, ...] = (),
        watched: bool = True,
        absent_block: int = -1,
        seed: int = 1,
        patience: int = 20_000_000,
    ) -> None:
        shape = self.model.shape
        self.status, self.chosen = np.zeros(4, np.int32), np.full(steps, -2, np.int32)
        self.scores = np.full((steps, shape.vocabulary), np.nan, np.float32)
        self.residuals = np.full((steps, shape.layers, 2, shape.hidden), np.nan, np.float32)
        arrays = {
            "norms": self.model.norms,
            "head_norms": self.model.head_norms,
            "qkv_bias": self.model.qkv_bias, "rotation": self.rotation, "pool": self.pool, "page_table": self.page_table,
            "exchange": self.words, "given_ids": np.array(ids, np.int32), "stop_ids": np.array(stop_ids, np.int32),
            "chosen_ids": self.chosen, "status": self.status,
        }  # fmt: skip
        if watched:
            arrays |= {"scores": self.scores, "residuals": self.residuals}
        launch = Launch(
            **{name: array.ctypes.data for name, array in arrays.items()},
            **{name: tensor.data_ptr() for name, tensor in self.embedding.items() if tensor is not None},
            stream=self.stream.data_ptr(), stream_stride=self.schedule.stream_words * 4,
            patience=patience, start=start, steps=steps, given=len(ids), stops=len(stop_ids), tag=self.tag,
            absent_block=absent_block,
        )  # fmt: skip
        if self.library.simulate(ctypes.byref(launch), ctypes.c_uint64(seed), ctypes.c_uint64(400_000_000)):
            raise RuntimeError("the simulated kernel did not end")
        self.tag += steps * (shape.layers + 1)


class SimulatedRowKernel:
    """decode.cu, compiled for the host; its threads in the order that a seed makes."""

    def __init__(self, schedule: RowSchedule, seed: int = 1) -> None:
        self._library = compiled_simulation(SOURCE.with_name("simulated_rows.cpp"), schedule.definitions())
        self._seed = seed
        assert self._library.launch_size() % 64 == 0
        assert self._library.exchange_words(3) == schedule.exchange_words(3)

    def blocks_per_multiprocessor(self) -> int:
        return 1

    def launch(self, blocks: int, parameter: ctypes.Structure, stream: int) -> None:
        seed, limit = ctypes.c_uint64(self._seed), ctypes.c_uint64(400_000_000)
        if self._library.simulate(ctypes.byref(parameter), seed, limit):
            raise RuntimeError("the simulated kernel did not end")


def simulated_map(tensor_map: TensorMap) -> bytes:
    """As simulated_rows.cpp reads it."""
    numbers = struct.pack("<Q4Q3Q4I", tensor_map.tensor.data_ptr(), *tensor_map.sizes, *tensor_map.strides, *tensor_map.box)
    return numbers.ljust(MAP_BYTES, b"\0")
