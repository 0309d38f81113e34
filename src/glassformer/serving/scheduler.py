"""The scheduler: the texts of many clients, written together on one thread; continuous batching.

```
submit ──▶ a queue for each client ──admit──▶ Loop ──one pass: a token for each text, a chunk of new prompts──▶ events
```

Requests join and leave between two passes. Prompts are read in chunks, so that a long one does not hold up the others, and
what they have in common is read once (`engine/prefix_cache.py`). A text is the same as it would be alone wherever the
executor's numbers do not depend on the batch, as those of the CPU and GPU engines do not. Where few texts run, and one
repeats what came before, some of its tokens are drafted and checked in one pass (`decoding/prompt_lookup.py`).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TypeVar

from glassformer.decoding import Policy, Step, StepDetail, generate, runs_in_loop
from glassformer.decoding.head_drafts import HeadBatchDrafts, with_head
from glassformer.decoding.loop import Loop
from glassformer.decoding.policy import NOTHING
from glassformer.decoding.prompt_lookup import LONGEST_DRAFT, BatchDrafts
from glassformer.engine.prefix_cache import PrefixCache
from glassformer.engine.protocol import Description
from glassformer.engine.resources import free_memory
from glassformer.ground.errors import ExecutorError, GlassError, InputError, QueueFull, Unavailable
from glassformer.ground.sites import Watch
from glassformer.runtime.model import Model
from glassformer.runtime.run import Run
from glassformer.serving.executor_lock import ExecutorLock, LockedExecutor
from glassformer.serving.job_threads import ClientQueues, JobThreads

CACHE_TOKENS = 1 << 18  # of all rows together, where the executor does not say how large a token is
CACHE_SHARE = 1 / 3  # for all rows together, of the memory that is free when the first request comes
CACHE_BYTES = 4 << 30  # where nobody says how much that is
LEAST_CACHE_BYTES = 1 << 28
PROMPT_CHUNK, CPU_PROMPT_CHUNK = 4096, 128  # tokens of prompts in one pass: some tenths of a second on a small CPU
KEPT_ROWS = 1024  # closed ones whose prefixes may be used again
JOB_SECONDS = 5.0  # for a job to notice that it is to end
RECENT_PASSES = 256  # whose times are kept
Result = TypeVar("Result")


@dataclass(frozen=True)
class SchedulerLimits:
    """How much a scheduler takes on."""

    running: int = 64  # texts in one batch
    queued: int = 256  # requests that wait
    prompt_chunk: int | None = None  # tokens of prompts in one pass; by default as suits the device
    cached_tokens: int | None = (
        None  # in the KV cache, of running texts and kept prefixes together; by default a third of what is free
    )
    drafted_tokens: int = LONGEST_DRAFT  # of a text in one pass, where that pays; 0: none


@dataclass(eq=False)
class Generation:
    """A submitted request: the texts of one prompt."""

    runs: tuple[Run, ...]
    policies: tuple[Policy, ...] = field(repr=False)
    watch: Watch | None
    client: str
    submitted: float
    removals: deque[Generation] = field(repr=False)  # where its scheduler looks for those that are to be taken out
    cached_tokens: int = 0  # of the prompt, that were not read again
    cancelled: bool = False

    @cached_property
    def tokens(self) -> int:
        """The most that its rows can hold."""
        return sum(len(policy.prompt) + policy.room for policy in self.policies)

    @property
    def runs_alone(self) -> bool:
        """Whether it needs a driver of its own: beams, drafts, and prompts that are scored, which takes many passes."""
        settings = self.runs[0].settings
        return not runs_in_loop(settings) or settings.prompt_logprobs is not None

    def cancel(self) -> None:
        """End it, from whatever thread; its rows are given back before the next pass."""
        self.cancelled = True
        for run in self.runs:
            run.cancel()
        self.removals.append(self)


@dataclass(frozen=True, slots=True)
class Event:
    """A token of a text, or the error that ended it."""

    generation: Generation
    index: int  # of the text; -1: of all that are not finished
    step: Step | None
    error: GlassError | None
    seconds: float  # since it was submitted


@dataclass(frozen=True)
class SchedulerStatistics:
    """What a scheduler is doing, and has done so far."""

    running: int  # texts
    waiting: int  # requests
    prompt_tokens: int
    cached_tokens: int  # of prompts, that were not read again
    generated_tokens: int
    drafted_tokens: int  # that were checked
    accepted_tokens: int  # of these
    passes: int
    pass_seconds: tuple[float, ...]  # of the latest passes, everything included


class Scheduler:
    """Writes the texts of one model, and does what else is asked of it in between."""

    def __init__(
        self, model: Model, deliver: Callable[[Sequence[Event]], None], limits: SchedulerLimits | None = None,
        own_head: bool = False,
    ) -> None:  # fmt: skip
        """`deliver` receives all events of a pass at once, on the scheduler's thread: it must be quick. `own_head`: the
        model's own head drafts, instead of prompt lookup."""
        self.model = model
        self.limits = SchedulerLimits() if limits is None else limits
        self._deliver = deliver
        self._changed = threading.Condition()  # guards the queues and all counts
        self._queue: ClientQueues[Generation] = ClientQueues()
        self._running: dict[int, tuple[Generation, int]] = {}  # by the identity of a policy: whose, and which text
        self._removals: deque[Generation] = deque()  # cancelled, and not taken out yet
        self._lock = ExecutorLock()
        self._jobs = JobThreads(model.name, most=self.limits.queued)
        self._alone = JobThreads(f"beams and drafts of {model.name}")
        self._end: float | None = None  # when everything is to be over
        self._prompt_tokens = self._generated_tokens = self._cached_tokens = self._passes = 0
        self._pass_seconds: deque[float] = deque(maxlen=RECENT_PASSES)
        longest = self.limits.drafted_tokens
        self._head = model.executors.draft_head if own_head and longest > 0 else None
        self._drafts = BatchDrafts(longest) if self._head is None else HeadBatchDrafts(self._head, longest)
        self._thread: threading.Thread | None = None

    # For clients, from any thread -------------------------------------------------------------------------------

    def submit(
        self,
        runs: Sequence[Run],
        *,
        detail: StepDetail = NOTHING,
        watch: Watch | None = None,
        client: str = "",
        cache_salt: Hashable = None,
    ) -> Generation:
        """Queue the texts of one prompt; their tokens come as events. Raises QueueFull where too many wait.

        `detail` and `watch`: what each step carries beside its token; `client`: whose it is, for
        the queue serves clients in turn; `cache_salt`: what was read before is used again by those of the same salt alone.
        """
        first = runs[0]
        policies = tuple(self._policies(runs, detail, cache_salt))
        generation = Generation(tuple(runs), policies, watch, client, time.perf_counter(), self._removals)
        if self._held_tokens(generation) > self._cache_tokens:
            raise InputError(
                f"{len(runs)} texts of up to {len(first.prompt_ids) + policies[0].room:,} tokens need more than the "
                f"{self._cache_tokens:,} tokens of cache that this server has. Ask for fewer or shorter ones."
            )
        with self._changed:
            if self._end is not None:
                raise self._unloading()
            if (waiting := len(self._queue)) >= self.limits.queued:
                raise QueueFull(f"{waiting} requests are waiting for {self.model.name} already. Try again later.")
            self._queue.add(client, generation)
            self._begin()
            self._changed.notify_all()
        return generation

    def call(self, job: Callable[[Model], Result], client: str = "") -> Future[Result]:
        """Do something else with the model: its passes take turns with those of the batch, and the clients' jobs with each
        other. QueueFull as for `submit`."""
        return self._jobs.submit(lambda: job(self._locked_model), client)

    def statistics(self) -> SchedulerStatistics:
        with self._changed:
            return SchedulerStatistics(
                len(self._running),
                len(self._queue),
                self._prompt_tokens,
                self._cached_tokens,
                self._generated_tokens,
                self._drafts.drafted_tokens,
                self._drafts.accepted_tokens,
                self._passes,
                tuple(self._pass_seconds),
            )

    def close(self, seconds: float = 0) -> None:
        """Let what is running go on for so long, then end it; whoever still waits is told."""
        with self._changed:
            self._end = time.perf_counter() + seconds
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        for thread in (self._jobs, self._alone):
            thread.close(self._unloading(), max(0.0, self._end - time.perf_counter()))
        self._lock.close(self._unloading())  # a job that is being done ends with its next pass
        for thread in (self._jobs, self._alone):
            thread.close(self._unloading(), JOB_SECONDS)

    # On its own thread ------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Start the thread with the first request: a model that only reads never needs it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=f"scheduler of {self.model.name}", daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        loop: Loop | None = None
        while self._wait_for_work():
            events: list[Event] = []
            began = time.perf_counter()
            with self._lock:
                try:
                    if loop is None:
                        loop = self._new_loop()
                    self._remove_cancelled(loop)
                    self._admit(loop, events)
                    self._step(loop, events)
                except Exception as error:  # of the executor: nobody's text can go on
                    events += self._abandon(_as_glass_error(error), waiting=loop is None)
                    self._close_loop(loop)
                    loop = None
            with self._changed:
                self._passes += 1
                self._pass_seconds.append(time.perf_counter() - began)
            self._deliver(events)
        events = self._abandon(self._unloading(), waiting=True)
        with self._lock:
            self._close_loop(loop)
        self._deliver(events)

    def _wait_for_work(self) -> bool:
        """Whether there is anything to do; waits for it, and ends when it is time to."""
        with self._changed:
            while True:
                now = time.perf_counter()
                busy = bool(self._queue or self._running)
                if self._end is not None and (now >= self._end or not busy):
                    return False
                if busy:
                    return True
                self._changed.wait()

    def _new_loop(self) -> Loop:
        cache = PrefixCache(self.model.executor, KEPT_ROWS, self._cache_tokens // 2)
        return Loop(cache, self._prompt_chunk, self._drafts if self.limits.drafted_tokens > 0 else None)

    @staticmethod
    def _close_loop(loop: Loop | None) -> None:
        """Give all rows back, those of kept prefixes too."""
        if loop is not None:
            loop.close()
            if isinstance(loop.executor, PrefixCache):
                loop.executor.clear()

    def _admit(self, loop: Loop, events: list[Event]) -> None:
        """Let requests join while there is room, one of each client in turn."""
        while (generation := self._next_that_fits()) is not None:
            if generation.cancelled:
                continue
            if generation.runs_alone:
                self._alone.submit(partial(self._run_alone, generation), generation.client)
                continue
            try:
                loop.admit(generation.policies, generation.watch, generation.client)
            except GlassError as error:
                events.append(self._failed(generation, -1, error))
                continue
            with self._changed:
                self._running.update({id(policy): (generation, index) for index, policy in enumerate(generation.policies)})
                self._prompt_tokens += len(generation.runs[0].prompt_ids)

    def _next_that_fits(self) -> Generation | None:
        """The next request, if there is room for it; its client is the last to be served again."""
        with self._changed:
            client = self._queue.next_client()
            if client is None:
                return None
            generation = self._queue.first(client)
            return self._queue.take(client) if generation.cancelled or self._fits(generation) else None

    def _fits(self, generation: Generation) -> bool:
        """Whether there is room for a request beside those that are running."""
        if not self._running:
            return True
        if len(self._running) + len(generation.policies) > self.limits.running:
            return False
        held = {id(running): self._held_tokens(running) for running, _ in self._running.values()}
        return sum(held.values()) + self._held_tokens(generation) <= self._cache_tokens

    def _held_tokens(self, generation: Generation) -> int:
        """Its tokens; what its rows have beside them, as so many more."""
        return generation.tokens + len(generation.policies) * self._about.tokens_per_row

    def _step(self, loop: Loop, events: list[Event]) -> None:
        """One pass: a token for each text."""
        ended: list[int] = []
        cached = generated = 0
        try:
            for policy, step in loop.step():
                generation, index = self._running[id(policy)]
                if isinstance(step, GlassError):
                    events.append(self._failed(generation, index, step))
                    ended.append(id(policy))
                    continue
                events.append(Event(generation, index, step, None, time.perf_counter() - generation.submitted))
                generated += 1
                if step.finish is None:
                    continue
                ended.append(id(policy))
                if step.outcome is not None:
                    generation.cached_tokens = max(generation.cached_tokens, step.outcome.cached_tokens)
                cached += generation.cached_tokens if index == 0 else 0
        finally:
            with self._changed:
                for key in ended:
                    del self._running[key]
                self._generated_tokens += generated
                self._cached_tokens += cached

    def _remove_cancelled(self, loop: Loop) -> None:
        """Take out whoever was cancelled, running or waiting."""
        while self._removals:
            generation = self._removals.popleft()
            with self._changed:
                for policy in generation.policies:
                    self._running.pop(id(policy), None)
                self._queue.discard(generation.client, generation)
            for policy in generation.policies:
                loop.remove(policy)

    def _run_alone(self, generation: Generation) -> None:
        """Beams and drafts, on a thread of their own: their passes take turns with the batch's."""
        try:
            executor = self._locked_model.executor
            for index, step in generate(executor, generation.policies, watch=generation.watch):
                if generation.cancelled:
                    return
                if self._end is not None and time.perf_counter() >= self._end:
                    raise self._unloading()
                self._deliver([Event(generation, index, step, None, time.perf_counter() - generation.submitted)])
        except Exception as error:
            self._deliver([self._failed(generation, -1, _as_glass_error(error))])

    def _abandon(self, error: GlassError, waiting: bool) -> list[Event]:
        """End all that is running, and perhaps all that waits."""
        with self._changed:
            generations = {id(generation): generation for generation, _ in self._running.values()}
            self._running.clear()
            if waiting:
                generations.update({id(queued): queued for queued in self._queue.clear()})
        return [self._failed(generation, -1, error) for generation in generations.values()]

    def _unloading(self) -> Unavailable:
        return Unavailable(f"{self.model.name} is being unloaded: the server is stopping, or needs its memory. Try again.")

    @staticmethod
    def _failed(generation: Generation, index: int, error: GlassError) -> Event:
        return Event(generation, index, None, error, time.perf_counter() - generation.submitted)

    # What it works with -----------------------------------------------------------------------------------------

    def _policies(self, runs: Sequence[Run], detail: StepDetail, cache_salt: Hashable) -> Iterator[Policy]:
        """A policy for each run; where several follow one prompt, each draws by its index."""
        for index, run in enumerate(runs):
            policies = run.policies(detail)
            policy = policies[index % len(policies)]
            policy.history.index, policy.cache_salt = index, cache_salt
            yield policy

    @property
    def _locked_model(self) -> Model:
        if not self.model.writes:
            return self.model
        return self.model.with_executor(LockedExecutor(self.model.executor, self._lock))

    @property
    def _prompt_chunk(self) -> int:
        if self.limits.prompt_chunk is not None:
            return self.limits.prompt_chunk
        return CPU_PROMPT_CHUNK if self.model.executor.describe().device == "cpu" else PROMPT_CHUNK

    @cached_property
    def _cache_tokens(self) -> int:
        if self.limits.cached_tokens is not None:
            return self.limits.cached_tokens
        about = self._about
        if not about.cache_bytes_per_token and not about.cache_bytes_per_row:
            return CACHE_TOKENS
        return default_cache_bytes(free_memory(about.device)) // max(about.cache_bytes_per_token, 1)

    @cached_property
    def _about(self) -> Description:
        """The executor, and what a text takes of its memory, with its row of the head that drafts."""
        about = self.model.executor.describe()
        return about if self._head is None else with_head(about, self._head.describe(), self.model.config.hidden_size)


def default_cache_bytes(free: int | None) -> int:
    """How much keys and values may take, where so much memory is free."""
    return CACHE_BYTES if free is None else max(int(free * CACHE_SHARE), LEAST_CACHE_BYTES)


def _as_glass_error(error: Exception) -> GlassError:
    return error if isinstance(error, GlassError) else ExecutorError(f"the pass failed: {type(error).__name__}: {error}")
