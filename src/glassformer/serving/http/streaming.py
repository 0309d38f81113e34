"""A client that waits: what is sent to it as it comes, and what stops when it leaves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from glassformer.ground.errors import GlassError
from glassformer.serving.http.errors import ClientDisconnected, Problem, problem_of, to_json

SLOW_READER_SECONDS = 30.0  # for the rest of an answer to be read, when its time is over
log = logging.getLogger("glassformer")


class Closable(Protocol):
    @property
    def deadline(self) -> float: ...

    async def close(self) -> None: ...


def sse(data: Any, event: str | None = None) -> bytes:
    """A server-sent event.

    >>> sse({"a": 1}, "ping")
    b'event: ping\\ndata: {"a":1}\\n\\n'
    """
    text = data if isinstance(data, bytes) else to_json(data)
    return (b"" if event is None else f"event: {event}\n".encode()) + b"data: " + text + b"\n\n"


async def disconnected(receive: Receive) -> None:
    """Wait until the client leaves, or has all of its answer."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """An answer sent piece by piece. When something fails in the middle, the last piece says so in the dialect's words."""

    def __init__(
        self,
        source: Closable,
        chunks: AsyncGenerator[bytes],
        on_error: Callable[[Problem], bytes],
        media_type: str = "text/event-stream",
    ) -> None:
        self.source, self.chunks, self.on_error = source, chunks, on_error
        self.status_code, self.background = 200, None
        self.body = b""
        self.media_type = media_type
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout_at(self.source.deadline + SLOW_READER_SECONDS), aclosing(self.chunks):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                await self._send_chunks(send)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (ClientDisconnected, TimeoutError):
            pass  # nobody reads; the connection is closed with the answer unfinished
        finally:
            await self.source.close()

    async def _send_chunks(self, send: Send) -> None:
        try:
            async for chunk in self.chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except (ClientDisconnected, TimeoutError):
            raise
        except Exception as error:
            if not isinstance(error, GlassError):
                log.exception("a stream failed")
            last = self.on_error(problem_of(error))
            await send({"type": "http.response.body", "body": last, "more_body": True})
