"""Texts of many clients, written together on one thread per model."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from glassformer.decoding import Look, Policy, Step
from glassformer.decoding.loop import Loop
from glassformer.errors import ExecutorError, GlassError, QueueFull
from glassformer.runtime.model import Model
from glassformer.runtime.run import Run
from glassformer.sites import Watch

T = TypeVar("T")


@dataclass(frozen=True)
class SchedulerLimits:
    running: int = 64
    queued: int = 256
    prompt_chunk: int = 512
    cached_tokens: int | None = None


@dataclass(eq=False)
class Generation:
    """One submitted request: the texts of one prompt."""

    runs: tuple[Run, ...]
    look: int | Literal["all"] = 0
    cached_tokens: int = 0
    started: float = 0.0
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True
        for run in self.runs:
            run.cancel()


@dataclass(frozen=True, slots=True)
class Event:
    """A token of a text, or the error that ended it."""

    generation: Generation
    number: int
    step: Step | None
    error: GlassError | None
    seconds: float


@dataclass(frozen=True)
class SchedulerStatistics:
    running: int = 0
    waiting: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0


class Scheduler:
    def __init__(
        self, model: Model, deliver: Callable[[Sequence[Event]], None], limits: SchedulerLimits | None = None
    ) -> None:
        self.model, self.deliver, self.limits = model, deliver, limits or SchedulerLimits()
        self._waiting: deque[Generation] = deque()
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._policies: dict[int, tuple[Generation, int]] = {}
        self._loop: Loop | None = None
        self._wake = threading.Event()
        self._closing: float | None = None
        self._prompt_tokens = self._generated_tokens = 0
        self._thread = threading.Thread(target=self._run, name=f"scheduler of {model.name}", daemon=True)
        self._thread.start()

    def submit(
        self, runs: Sequence[Run], *, look: int | Literal["all"] = 0, watch: Watch | None = None, client: str = ""
    ) -> Generation:
        if self._closing is not None:
            raise ExecutorError(f"{self.model.name} is being unloaded. Try again.")
        if len(self._waiting) >= self.limits.queued:
            raise QueueFull(f"{len(self._waiting)} requests are waiting for {self.model.name} already. Try again later.")
        generation = Generation(tuple(runs), look, started=time.perf_counter())
        self._waiting.append(generation)
        self._wake.set()
        return generation

    def call(self, job: Callable[[Model], T]) -> Future[T]:
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(job(self.model))
            except BaseException as error:
                future.set_exception(error)

        self._jobs.put(work)
        self._wake.set()
        return future

    def statistics(self) -> SchedulerStatistics:
        return SchedulerStatistics(len(self._policies), len(self._waiting), self._prompt_tokens, 0, self._generated_tokens)

    def close(self, seconds: float = 0) -> None:
        self._closing = time.perf_counter() + seconds
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            while not self._jobs.empty():
                self._jobs.get()()
            events: list[Event] = []
            if self._closing is not None and (not self._policies or time.perf_counter() >= self._closing):
                over = ExecutorError("the server is stopping.")
                generations = {*self._waiting, *(generation for generation, _ in self._policies.values())}
                self.deliver([Event(generation, -1, None, over, 0.0) for generation in generations])
                return
            self._admit(events)
            if self._policies:
                assert self._loop is not None
                for policy, step in self._loop.step():
                    generation, number = self._policies[id(policy)]
                    self._generated_tokens += 1
                    events.append(Event(generation, number, step, None, time.perf_counter() - generation.started))
                    if step.finish:
                        del self._policies[id(policy)]
            if events:
                self.deliver(events)
            if not self._policies and not self._waiting and self._jobs.empty() and self._closing is None:
                self._wake.wait()
                self._wake.clear()

    def _admit(self, events: list[Event]) -> None:
        while self._waiting and len(self._policies) < self.limits.running:
            generation = self._waiting.popleft()
            if generation.cancelled:
                continue
            first = generation.runs[0]
            more: dict[str, Any] = {"context": self.model.config.context, "seed": first.seed, "negative": first.negative}
            look = Look.of(generation.look)
            if first.settings.logprobs is not None:
                look = Look(max(first.settings.logprobs, 1))
            try:
                self._loop = self._loop or Loop(self.model.executor)
                policies = [
                    Policy(run.recipe, run.prompt_ids, index=index, look=look, **more)
                    for index, run in enumerate(generation.runs)
                ]
                self._loop.admit(policies)
            except GlassError as error:
                events.append(Event(generation, -1, None, error, 0.0))
                continue
            self._prompt_tokens += len(first.prompt_ids)
            self._policies.update({id(policy): (generation, number) for number, policy in enumerate(policies)})
