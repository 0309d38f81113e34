"""A replica of the server: the app, behind a handle of Ray Serve instead of a socket.

Who may ask was checked before a request came here, by the front (`front.py`); so the app has no guard.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

from glassformer.scale.cluster import import_ray, use_assigned_cores
from glassformer.serving.http.app import create_app
from glassformer.serving.http.clients import CLIENT_KEY
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Permissions, Registry

Message = MutableMapping[str, Any]
SCOPE_FIELDS = (  # what of a request's scope goes to a replica: plain data
    "type", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path", "headers", "client",
    "server", CLIENT_KEY,
)  # fmt: skip
DELIVERY_SECONDS = 0.03  # of an answer that go to the front together


@dataclass(frozen=True)
class ForwardedRequest:
    """A request whose body has been read."""

    scope: dict[str, Any]
    body: bytes
    keys: tuple[int, ...]  # of its prompt; see `prefixes`


class Replica:
    """To be deployed. Ready when the first model is loaded; the others are when they are asked for."""

    def __init__(self, make_sources: Callable[[], Sequence[ModelSource]], limits: Limits, folder: str) -> None:
        use_assigned_cores(import_ray())
        with suppress(OSError):
            os.chdir(folder)  # paths mean here what they mean where the server was started
        self.registry = Registry(make_sources(), limits)
        self.registry.release(self.registry.acquire(None))
        self.app = create_app(self.registry, limits, guarded=False, permissions=Permissions(files=False))
        self._lifespan: AsyncExitStack | None = None
        self._starting = asyncio.Lock()

    async def answer(self, request: ForwardedRequest) -> AsyncIterator[list[Message]]:
        """The messages of the app's answer, as they come. When nobody wants them any more, the app sees the client leave."""
        await self._start()
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        left = asyncio.Event()
        body: list[Message] = [{"type": "http.request", "body": request.body, "more_body": False}]

        async def receive() -> Message:
            if body:
                return body.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def run() -> None:
            try:
                await self.app(dict(request.scope), receive, messages.put)
            finally:
                messages.put_nowait(None)

        answering = asyncio.create_task(run())
        began = False
        try:
            ended = False
            while not ended:
                ready = [await messages.get()]
                if began:  # the first goes at once, the others together: each hand-over takes time of the front
                    await asyncio.sleep(DELIVERY_SECONDS)
                began = True
                while not messages.empty():
                    ready.append(messages.get_nowait())
                ended = None in ready
                yield [message for message in ready if message is not None]
            await answering
        finally:
            left.set()
            with suppress(Exception):
                await asyncio.shield(answering)

    async def metrics(self) -> str:
        """The numbers of this replica for Prometheus."""
        text: str = self.app.state.context.metrics.text(self.registry)
        return text

    async def close(self, seconds: float) -> None:
        """Let running texts go on for so long, and end the others with an error that their clients understand."""
        await asyncio.to_thread(self.registry.close, seconds)

    async def _start(self) -> None:
        """Begin the app's lifespan, on the event loop that its requests run on."""
        async with self._starting:
            if self._lifespan is None:
                self._lifespan = AsyncExitStack()
                await self._lifespan.enter_async_context(self.app.router.lifespan_context(self.app))
