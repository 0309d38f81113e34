"""What every route of an app shares."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from starlette.requests import Request

from glassformer.ground.errors import Unavailable
from glassformer.runtime.model import Model
from glassformer.serving.batches import RequestBatches
from glassformer.serving.file_store import FileStore
from glassformer.serving.followed_training import FollowedTraining
from glassformer.serving.http.clients import client_of
from glassformer.serving.http.errors import ClientDisconnected, HttpError, to_json
from glassformer.serving.http.metrics import Metrics
from glassformer.serving.http.security import Security
from glassformer.serving.http.streaming import disconnected
from glassformer.serving.job_threads import JobThreads
from glassformer.serving.limits import Limits
from glassformer.serving.registry import STOPPING, Permissions, Registry, ServedModel
from glassformer.serving.scheduler import Event, Generation

T = TypeVar("T")
V = TypeVar("V")
PART = 64  # texts that one job reads, of a request that has many
PREPARING_THREADS = 4  # for prompts to be rendered and encoded


class Listener(Protocol):
    """Who waits for the events of a generation."""

    def receive_events(self, events: Sequence[Event]) -> None: ...


class Deliveries:
    """Events from the schedulers' threads to those who wait for them on the event loop: one hand-over for each pass."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: dict[int, Listener] = {}  # by the identity of the generation, which its listener keeps alive

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def listen(self, generation: Generation, listener: Listener) -> None:
        """To be called on the event loop, right after `submit`: nothing can have been handed out yet."""
        self._listeners[id(generation)] = listener

    def forget(self, generation: Generation) -> None:
        self._listeners.pop(id(generation), None)

    def deliver(self, events: Sequence[Event]) -> None:
        """Called on a scheduler's thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._hand_out, events)

    def _hand_out(self, events: Sequence[Event]) -> None:
        by_listener: dict[int, tuple[Listener, list[Event]]] = {}
        for event in events:
            if (listener := self._listeners.get(id(event.generation))) is not None:
                by_listener.setdefault(id(listener), (listener, []))[1].append(event)
        for listener, listened in by_listener.values():
            listener.receive_events(listened)


@dataclass(frozen=True)
class StoredResponse:
    body: dict[str, Any]  # as it was answered
    items: list[dict[str, Any]]  # of its input
    messages: list[dict[str, Any]]  # the conversation up to its end, without the instructions


class ResponseStore:
    """Answers that are kept in memory, so that a request can go on from one; the oldest are forgotten first.

    To be called on the event loop. Who knows an id, which nobody can guess, may read the response.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._responses: OrderedDict[str, tuple[StoredResponse, int]] = OrderedDict()  # each with its bytes
        self._bytes = 0

    def add(self, response: StoredResponse) -> None:
        size = len(to_json([response.body, response.items, response.messages]))
        self._responses[response.body["id"]] = response, size
        self._bytes += size
        while len(self._responses) > self._limits.stored_responses or self._bytes > self._limits.stored_bytes:
            self._bytes -= self._responses.popitem(last=False)[1][1]

    def get(self, response_id: str) -> StoredResponse:
        if response_id not in self._responses:
            raise HttpError(
                404, f"there is no response {response_id!r} here: it was not stored, or is the oldest and forgotten.",
                code="not_found", param="previous_response_id",
            )  # fmt: skip
        return self._responses[response_id][0]

    def delete(self, response_id: str) -> None:
        self.get(response_id)
        self._bytes -= self._responses.pop(response_id)[1]


@dataclass
class ServingContext:
    """The registry, the limits and what goes with them."""

    registry: Registry
    limits: Limits
    security: Security
    metrics: Metrics
    training: FollowedTraining | None = None
    permissions: Permissions = field(default_factory=Permissions)
    deliveries: Deliveries = field(default_factory=Deliveries)
    _batches: RequestBatches = field(init=False)
    responses: ResponseStore | None = field(init=False)  # None where the operator does not allow it
    pulling: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while a model is fetched for a client
    _loading: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.preparation = JobThreads("preparation", PREPARING_THREADS, self.limits.queued)
        self._batches = RequestBatches(FileStore(self.limits.stored_bytes), self.limits.batches)
        self.responses = ResponseStore(self.limits) if self.permissions.store_responses else None

    @property
    def batches(self) -> RequestBatches:
        if not self.permissions.files:
            raise HttpError(403, "this server keeps no files, so it answers no batches: it is several.", code="not_allowed")
        return self._batches

    async def close(self) -> None:
        """Stop what goes on without a client."""
        await self._batches.close()

    async def acquire(self, name: str | None) -> ServedModel:
        """A model for a request, which must release it. Loading happens once, on a thread of its own, however many wait."""
        while (served := self.registry.acquire_loaded(name)) is None:
            key = self.registry.source(name).name
            if key not in self._loading:
                self._loading[key] = asyncio.create_task(self._load(key))
            await asyncio.shield(self._loading[key])
        return served

    async def _load(self, name: str) -> None:
        """Load a model without keeping it: those who wait for it acquire it then."""
        try:
            self.registry.release(await asyncio.to_thread(self.registry.acquire, name))
        finally:
            del self._loading[name]

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[ServedModel]:
        served = await self.acquire(name)
        try:
            yield served
        finally:
            self.registry.release(served)

    async def unload_idle_models(self) -> None:
        """Now and then, for as long as the server runs."""
        while True:
            await asyncio.sleep(min(self.limits.idle_seconds / 4, 30.0))
            await asyncio.to_thread(self.registry.unload_idle)


def context_of(request: Request) -> ServingContext:
    return cast(ServingContext, request.app.state.context)


async def call_model(request: Request, name: str | None, job: Callable[[Model], T], *, passes: bool = True) -> T:
    """Something else with a model than a text: on its scheduler's thread, in turn with the texts' passes.

    Without `passes` it is done beside them, where prompts are prepared. Either way clients take turns.
    """
    context = context_of(request)
    async with context.use(name) as served:
        if passes:
            return await job_result(request, served.scheduler.call(job, client_of(request)))
        return await prepared(request, lambda: job(served.model))


async def call_in_parts(
    request: Request, name: str | None, values: Sequence[V], job: Callable[[Model, Sequence[V]], T]
) -> list[T]:
    """`call_model` with a few of many values at a time, so that others have their turns in between."""
    parts = [values[first : first + PART] for first in range(0, len(values), PART)]
    async with within_seconds(request):
        return [await call_model(request, name, partial(_with_values, job, part)) for part in parts]


def _with_values(job: Callable[[Model, V], T], values: V, model: Model) -> T:
    return job(model, values)


async def prepared(request: Request, job: Callable[[], T]) -> T:
    """What is made of a request without a pass of a model, such as the tokens of a prompt: off the event loop."""
    return await job_result(request, context_of(request).preparation.submit(job, client_of(request)))


@asynccontextmanager
async def within_seconds(request: Request) -> AsyncIterator[None]:
    """The time that an answer may take."""
    seconds = context_of(request).limits.seconds
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise Unavailable(f"the answer was not ready within {seconds:g} seconds.") from None


async def job_result(request: Request, job: Future[T]) -> T:
    """What a job gives. A client that leaves takes it out of the queue; one that has begun ends by itself."""
    result, leaving = asyncio.wrap_future(job), asyncio.ensure_future(disconnected(request.receive))
    try:
        async with within_seconds(request):
            await asyncio.wait((result, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        result.cancel()  # which does nothing to one that is done
        leaving.cancel()
    if not result.done() or result.cancelled():
        raise ClientDisconnected if leaving.done() else Unavailable(STOPPING)
    return result.result()
