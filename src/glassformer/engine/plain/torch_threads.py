"""On how many threads PyTorch computes on the CPU, unless somebody has set it: as many as are fastest at the moment.

PyTorch takes one thread per core, and each operation waits for the slowest of them: beside other busy programs it can take
many times longer than one thread would. So the first pass of a process measures, for a tenth of a second, products as
decoding has them. The number holds inside of our calls alone, and is restored afterwards.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import torch

Item = TypeVar("Item")

SAID_BY = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "GLASS_THREADS")
DEFAULT = torch.get_num_threads()  # unless somebody sets another number later on
SIZE, REPEATS = 768, 24  # of a matrix, which stays in a core's cache, and of products with it in one measurement
ROUNDS = 3
GAIN = 0.8  # of the default's time: what another number must be faster than


@contextmanager
def fastest_threads() -> Iterator[None]:
    """In this block, PyTorch computes on the number of threads that is fastest."""
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
    """These items, each computed in such a block; between them the number of threads is what it was."""
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
    """The fastest number, unless the default is almost as fast."""
    fastest = min(seconds, key=lambda count: seconds[count])
    return fastest if seconds[fastest] < GAIN * seconds[default] else default
