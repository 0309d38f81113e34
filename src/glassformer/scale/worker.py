"""A worker: a model on some machine of the cluster, that answers groups of rows."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from glassformer.ground.errors import Spelling, spelled_by
from glassformer.jobs.engines import JobPlan, LocalEngine
from glassformer.jobs.formats.row_format import InputRow, JsonObject
from glassformer.runtime.model import Model
from glassformer.scale.cluster import import_ray, use_assigned_cores
from glassformer.tasks.task import Task

DELIVERY_SECONDS = 0.1  # of finished rows that go to the job together
Load: TypeAlias = Callable[[], Model | Task]


@dataclass(frozen=True)
class WorkerProfile:
    """What a worker computes, and how it wants its rows."""

    fingerprint: dict[str, Any]
    seed: int | None
    chunk: int
    batch_size: int


@dataclass(frozen=True)
class Delivery:
    """Rows that are finished, and how many tokens there were since the last delivery."""

    records: list[tuple[int, JsonObject]]
    tokens: int


class Worker:
    """To be made an actor. Constructing it does nothing: what `start` raises comes back as it is."""

    def __init__(
        self, load: Load, keywords: Mapping[str, Any], call: Callable[..., Any], folder: str, spelling: Spelling
    ) -> None:
        self.load, self.keywords, self.call, self.folder, self.spelling = load, keywords, call, folder, spelling

    def start(self) -> WorkerProfile:
        """Load the model, in the driver's folder if this machine has it: paths mean there what they mean here."""
        use_assigned_cores(import_ray())
        with suppress(OSError):
            os.chdir(self.folder)
        with spelled_by(self.spelling):
            self.engine = engine = LocalEngine(self.load(), self.keywords, self.call)
            engine.start()
        return WorkerProfile(engine.fingerprint(), engine.seed, engine.chunk, engine.default_batch_size)

    def answer(self, rows: list[InputRow], unfinished: list[int], plan: JobPlan) -> Iterator[Delivery]:
        """The records of the unfinished rows, as they come."""
        tokens = 0

        def count_tokens(count: int) -> None:
            nonlocal tokens
            tokens += count

        finished = {row.index for row in rows}.difference(unfinished)
        ready: list[tuple[int, JsonObject]] = []
        delivered = time.monotonic()
        for numbered in self.engine.records(rows, finished, plan, count_tokens):
            ready.append(numbered)
            if time.monotonic() - delivered >= DELIVERY_SECONDS:
                yield Delivery(ready, tokens)
                ready, tokens, delivered = [], 0, time.monotonic()
        if ready:
            yield Delivery(ready, tokens)
