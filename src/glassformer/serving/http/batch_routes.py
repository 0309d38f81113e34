"""Batches over HTTP, whatever their dialect: requests that the server asks of itself, as the client that sent them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.types import Message, Scope

from glassformer.ground.errors import InputError
from glassformer.serving.batches import Ask, Batch, JsonObject, Output, new_batch_id
from glassformer.serving.http.clients import owner_of
from glassformer.serving.http.context import context_of
from glassformer.serving.http.errors import HttpError, Json, to_json
from glassformer.serving.http.openapi import example_answer

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


@dataclass(frozen=True)
class BatchForm:
    """How a dialect shows its batches, and writes their answers."""

    kind: str  # the dialect
    path: str  # of its routes
    id_prefix: str
    shown: Callable[[Request, Batch], JsonObject]
    page: Callable[[list[JsonObject]], JsonObject]  # a list of them
    output: Output  # a row of the answers
    example: JsonObject
    page_example: JsonObject

    def start(
        self, request: Request, url: str, about: Mapping[str, Any], rows: bytes,
        finished: Callable[[Batch], None] = lambda batch: None,
    ) -> Json:  # fmt: skip
        """Begin a batch of rows that ask this URL; `finished` as for `Batches.start`."""
        batch = Batch(
            new_batch_id(self.id_prefix), owner_of(request.scope), self.kind, asking_as(request), self.output,
            frozenset({url}), about,
        )  # fmt: skip
        context_of(request).batches.start(batch, rows, finished)
        return Json(self.shown(request, batch))

    def add_routes(self, router: APIRouter) -> None:
        """Those that all dialects have: batches are listed, shown and cancelled."""

        @router.get(self.path, responses=example_answer(self.page_example))
        async def list_batches(request: Request) -> Json:
            """The batches, the newest first."""
            batches = context_of(request).batches.list(owner_of(request.scope), self.kind)
            return Json(self.page([self.shown(request, batch) for batch in batches]))

        @router.get(f"{self.path}/{{batch_id}}", responses=example_answer(self.example))
        async def show_batch(request: Request, batch_id: str) -> Json:
            """How far a batch is, and where its answers are."""
            return Json(self.shown(request, self.batch(request, batch_id)))

        @router.post(f"{self.path}/{{batch_id}}/cancel", responses=example_answer(self.example))
        async def cancel_batch(request: Request, batch_id: str) -> Json:
            """Ask no more of its requests; those that were answered keep their answers."""
            batch = self.batch(request, batch_id)
            context_of(request).batches.cancel(batch)
            return Json(self.shown(request, batch))

    def batch(self, request: Request, batch_id: str) -> Batch:
        """A batch of the client that asks; a 404 where it has none of that name."""
        try:
            return context_of(request).batches.get(owner_of(request.scope), self.kind, batch_id)
        except InputError as error:
            raise HttpError(404, str(error), code="not_found") from None


def page_ends(data: list[JsonObject]) -> JsonObject:
    """The ids at both ends of a list that is not cut into pages."""
    return {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}


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
        exchange = _Exchange(content)
        await app(scope, exchange.receive, exchange.send)
        return exchange.status, json.loads(bytes(exchange.body))

    return ask


class _Exchange:
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
