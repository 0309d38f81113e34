"""What every route of an app shares."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast

from starlette.requests import Request

from glassformer.errors import Unavailable
from glassformer.runtime.model import Model
from glassformer.serving.batches import Batches
from glassformer.serving.file_store import FileStore
from glassformer.serving.followed_training import FollowedTraining
from glassformer.serving.http.errors import ClientDisconnected, HttpError
from glassformer.serving.http.metrics import Metrics
from glassformer.serving.http.openai.response_store import ResponseStore
from glassformer.serving.http.security import Security
from glassformer.serving.http.streaming import disconnected
from glassformer.serving.limits import Limits
from glassformer.serving.permissions import Permissions
from glassformer.serving.registry import STOPPING, Registry, ServedModel
from glassformer.serving.scheduler import Event, Generation

T = TypeVar("T")


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
        for listener, own in by_listener.values():
            listener.receive_events(own)


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
    _batches: Batches = field(init=False)
    responses: ResponseStore | None = field(init=False)  # None where the operator does not allow it
    pulling: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while a model is fetched for a client
    _loading: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._batches = Batches(FileStore(self.limits.stored_bytes), self.limits.batches)
        self.responses = ResponseStore(self.limits) if self.permissions.store_responses else None

    @property
    def batches(self) -> Batches:
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


async def call_model(request: Request, name: str | None, job: Callable[[Model], T]) -> T:
    """Something else with a model than a text: on its scheduler's thread, in turn with the texts' passes.

    A client that leaves takes its job out of the queue; one that has begun ends by itself.
    """
    context = context_of(request)
    async with context.use(name) as served:
        result = asyncio.wrap_future(served.scheduler.call(job))
        leaving = asyncio.ensure_future(disconnected(request.receive))
        try:
            async with asyncio.timeout(context.limits.seconds):
                await asyncio.wait((result, leaving), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise Unavailable(f"the answer was not ready within {context.limits.seconds:g} seconds.") from None
        finally:
            result.cancel()  # which does nothing to one that is done
            leaving.cancel()
        if not result.done() or result.cancelled():
            raise ClientDisconnected if leaving.done() else Unavailable(STOPPING)
        return result.result()


def client_of(request: Request) -> str:
    """Whom a scheduler is to be fair to: a machine; on this one, a connection."""
    client: Any = request.client
    if client is None:
        return ""
    return f"{client.host}:{client.port}" if client.host in ("127.0.0.1", "::1") else str(client.host)
