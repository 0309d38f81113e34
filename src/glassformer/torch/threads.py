"""PyTorch's threads on the CPU: how many there are, and what becomes of them in a forked process.

PyTorch takes one thread per core, and each operation waits for the slowest of them: beside other busy programs it can take
many times longer than one thread would. So the first pass of a process measures, for a tenth of a second, products as
decoding has them, unless somebody has set a count. The fastest count holds inside of our calls alone, and is restored
afterwards.

PyTorch and the libraries below it share their work among OpenMP's threads, which do not survive a fork; the child would
wait for them for ever. OpenMP 5 has a call that ends them, made here before each fork: both processes start new ones when
they need them. Where the library lacks it, PyTorch takes one thread in the child, as in its own data loaders' workers.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch

Item = TypeVar("Item")

SAID_BY = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "GLASS_THREADS")
DEFAULT = torch.get_num_threads()  # unless somebody sets another count later on
SIZE, REPEATS = 768, 24  # of a matrix, which stays in a core's cache, and of products with it in one measurement
ROUNDS = 3
GAIN = 0.8  # of the default's time: what another count must be faster than
SYSTEM_LIBRARIES = ("libgomp.so.1", "libiomp5.so", "libomp.so")
HARD_PAUSE = 2  # OpenMP's omp_pause_hard: end the threads


@contextmanager
def fastest_threads() -> Iterator[None]:
    """In this block, PyTorch computes on the count of threads that is fastest."""
    before = torch.get_num_threads()
    if before == 1 or before != DEFAULT or any(os.environ.get(name) for name in SAID_BY):
        yield
        return
    count = measured_threads(before)
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def by_fastest_threads(steps: Iterator[Item]) -> Iterator[Item]:
    """These items, each computed in such a block; between them the count of threads is what it was."""
    while True:
        with fastest_threads():
            try:
                item = next(steps)
            except StopIteration:
                return
        yield item


@cache
def measured_threads(most: int) -> int:
    """The fastest of one, two, four, … and all threads; measured once in a process."""
    counts = sorted({most, *(1 << power for power in range(most.bit_length() - 1))})
    matrix, vector = torch.ones(SIZE, SIZE), torch.ones(1, SIZE)

    def seconds(count: int) -> float:
        torch.set_num_threads(count)
        start = time.perf_counter()
        for _ in range(REPEATS):
            torch.nn.functional.linear(vector, matrix)
        return time.perf_counter() - start

    try:
        with torch.no_grad():
            best = {count: min(seconds(count) for _ in range(ROUNDS)) for count in counts}
    finally:
        torch.set_num_threads(most)
    return chosen_threads(best, most)


def chosen_threads(seconds: dict[int, float], default: int) -> int:
    """The fastest count, unless the default is almost as fast."""
    fastest = min(seconds, key=lambda count: seconds[count])
    return fastest if seconds[fastest] < GAIN * seconds[default] else default


def _pause_functions() -> list[Any]:
    """The call of each OpenMP library that PyTorch has loaded."""
    if not hasattr(os, "RTLD_NOLOAD"):
        return []
    libraries = sorted(Path(torch.__file__).parent.glob("lib/lib*omp*"))
    functions = []
    for name in (*map(str, libraries), *SYSTEM_LIBRARIES):
        with suppress(OSError, AttributeError):  # it is not loaded, or older than OpenMP 5
            functions.append(ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY).omp_pause_resource_all)
    return functions


PAUSE_FUNCTIONS = _pause_functions()


def end_threads() -> None:
    """End the threads that work for this one."""
    for pause in PAUSE_FUNCTIONS:
        pause(HARD_PAUSE)


def use_one_thread() -> None:
    if not PAUSE_FUNCTIONS and torch.get_num_threads() > 1:
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=end_threads, after_in_child=use_one_thread)
