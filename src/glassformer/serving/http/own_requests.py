"""Requests that the server asks of itself, as a client of it: what a batch is made of."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.requests import Request
from starlette.types import Message, Scope

from glassformer.ground.errors import InputError
from glassformer.serving.batches import Ask, Batch
from glassformer.serving.http.clients import owner_of
from glassformer.serving.http.context import context_of
from glassformer.serving.http.errors import HttpError, to_json

SCOPE_FIELDS = ("type", "asgi", "http_version", "scheme", "client", "server", "root_path")
OF_THE_BODY = (
    b"content-type",
    b"content-length",
    b"content-encoding",
    b"transfer-encoding",
    b"accept",
    b"expect",
    b"x-request-id",
)


def asking_as(request: Request) -> Ask:
    """What asks further requests as the client of this one: with its key, from its address."""
    fields = {name: request.scope[name] for name in SCOPE_FIELDS if name in request.scope}
    headers = [(name, value) for name, value in request.scope["headers"] if name not in OF_THE_BODY]
    app = request.app

    async def ask(path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        content = to_json(body)
        own = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        scope: Scope = {
            **fields, "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": [*headers, *own],
        }  # fmt: skip
        answer = _Answer(content)
        await app(scope, answer.receive, answer.send)
        return answer.status, json.loads(bytes(answer.body))

    return ask


def own_batch(request: Request, kind: str, batch_id: str) -> Batch:
    """A batch of the client that asks; a 404 where it has none of that name."""
    try:
        return context_of(request).batches.get(owner_of(request.scope), kind, batch_id)
    except InputError as error:
        raise HttpError(404, str(error), code="not_found") from None


class _Answer:
    """A request's body on its way in, and its answer on the way out."""

    def __init__(self, content: bytes) -> None:
        self._pending = [content]
        self.status = 500
        self.body = bytearray()

    async def receive(self) -> Message:
        if self._pending:
            return {"type": "http.request", "body": self._pending.pop(), "more_body": False}
        await asyncio.Event().wait()  # for ever: this client does not leave
        raise AssertionError

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.body += message.get("body", b"")
