"""How many threads PyTorch trains with on a CPU: measured, and kept with the training.

Threads that wait for each other spin, so on a machine that has other work all cores can take ten times as long as one. And
sums over another number of threads round otherwise: a training that goes on must go on with as many as it began with.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable

import torch

from glassformer.checkpoint.training_layout import THREADS
from glassformer.ground.files import write_text
from glassformer.training.trainer import Trainer

note = logging.getLogger("glassformer").warning
VARIABLES = ("GLASS_THREADS", "OMP_NUM_THREADS")
EXAMPLES = 8  # of a rehearsed step, at most
ROUNDS = 2
LONG = 5.0  # seconds of a rehearsed step, which is done only once then
HOPELESS = 1.5  # times the best time: fewer threads will not be better


def use_threads(trainer: Trainer, asked: int | None = None) -> None:
    """Train with as many threads as are asked for, or as the training began with, or else as are fastest."""
    if trainer.ranks.device.type != "cpu" or trainer.ranks.count > 1:  # torchrun shares the cores out
        return
    assert trainer.folder is not None
    path = trainer.folder.path / THREADS
    try:
        kept = int(json.loads(path.read_text("utf-8"))["threads"])
    except (OSError, ValueError, TypeError, KeyError):
        kept = None
    if asked is None:
        asked = next((int(text) for name in VARIABLES if (text := os.environ.get(name, "")).isdecimal()), None)
    if asked is not None and kept not in (None, asked):
        note(f"the training was begun with {kept} threads: with {asked} its numbers can differ in their last digits.")
    threads = asked or kept or fastest_threads(lambda: trainer.rehearse(EXAMPLES), torch.get_num_threads())
    torch.set_num_threads(threads)
    if threads != kept:
        write_text(path, json.dumps({"threads": threads}))


def fastest_threads(rehearse: Callable[[], object], most: int, clock: Callable[[], float] = time.perf_counter) -> int:
    """With how many threads, at most `most`, something takes the least time."""

    def seconds() -> float:
        started = clock()
        rehearse()
        return clock() - started

    best, best_time, count = most, float("inf"), most
    while count and most > 1:
        torch.set_num_threads(count)
        times = [seconds()]
        while len(times) <= ROUNDS and times[-1] < LONG:  # the first of all makes room in memory, and takes longer
            times.append(seconds())
        if min(times) < best_time:
            best, best_time = count, min(times)
        elif min(times) > HOPELESS * best_time:
            break
        count //= 2
    return best
