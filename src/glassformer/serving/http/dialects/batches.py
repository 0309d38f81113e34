"""Batches over HTTP: one mechanism, and a form for each dialect.

The server asks a batch's requests of itself, as the client that sent them. OpenAI's are files of requests, answered one
after another into files of answers; Anthropic's are many messages in one request.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.types import Message, Scope

from glassformer.ground.errors import InputError
from glassformer.jobs.formats.openai import batch_answer, batch_failure
from glassformer.jobs.formats.row_format import InputRow, JsonObject
from glassformer.serving.batches import CANCELLED, NO_ROOM, Ask, Outcome, RequestBatch, new_batch_id
from glassformer.serving.file_store import FileStore
from glassformer.serving.http.answers import new_id
from glassformer.serving.http.clients import owner_of
from glassformer.serving.http.context import context_of
from glassformer.serving.http.dialect import iso_time
from glassformer.serving.http.dialects.anthropic import error_body
from glassformer.serving.http.dialects.openai_files import found, page_ends, page_of, store_of
from glassformer.serving.http.errors import HttpError, Json, Problem, to_json
from glassformer.serving.http.openapi import example_answer, text_answer

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


router = APIRouter()
WINDOW_SECONDS = 24 * 3600
MESSAGES, LINES = "/v1/messages", "application/x-jsonl"
WHY = {  # a row has no answer
    CANCELLED: ("batch_cancelled", "the batch was cancelled before this request was answered."),
    NO_ROOM: ("no_room", "the server has no room for more answers. Delete files, and ask again."),
}


class BatchForm(ABC):
    """How a dialect shows its batches, and writes their answers."""

    tag: ClassVar[str]  # of its routes in the document
    path: ClassVar[str]  # of its routes
    id_prefix: ClassVar[str]
    example: ClassVar[JsonObject]
    page_example: ClassVar[JsonObject]

    @abstractmethod
    def shown(self, request: Request, batch: RequestBatch) -> JsonObject:
        """A batch, as far as it is."""

    @abstractmethod
    def page(self, data: list[JsonObject]) -> JsonObject:
        """A list of batches."""

    @abstractmethod
    def output(self, row: InputRow, outcome: Outcome) -> JsonObject:
        """A row of the answers."""

    def start(
        self, request: Request, url: str, about: Mapping[str, Any], rows: bytes,
        finished: Callable[[RequestBatch], None] = lambda batch: None,
    ) -> Json:  # fmt: skip
        """Begin a batch of rows that ask this URL; `finished` as for `Batches.start`."""
        batch = RequestBatch(
            new_batch_id(self.id_prefix), owner_of(request.scope), self.tag, asking_as(request), self.output,
            frozenset({url}), about,
        )  # fmt: skip
        context_of(request).batches.start(batch, rows, finished)
        return Json(self.shown(request, batch))

    def add_routes(self) -> None:
        """Those that all dialects have: batches are listed, shown and cancelled."""

        @router.get(self.path, tags=[self.tag], responses=example_answer(self.page_example))
        async def list_batches(request: Request) -> Json:
            """The batches, the newest first."""
            batches = context_of(request).batches.list(owner_of(request.scope), self.tag)
            return Json(self.page([self.shown(request, batch) for batch in batches]))

        @router.get(f"{self.path}/{{batch_id}}", tags=[self.tag], responses=example_answer(self.example))
        async def show_batch(request: Request, batch_id: str) -> Json:
            """How far a batch is, and where its answers are."""
            return Json(self.shown(request, self.batch(request, batch_id)))

        @router.post(f"{self.path}/{{batch_id}}/cancel", tags=[self.tag], responses=example_answer(self.example))
        async def cancel_batch(request: Request, batch_id: str) -> Json:
            """Ask no more of its requests; those that were answered keep their answers."""
            batch = self.batch(request, batch_id)
            context_of(request).batches.cancel(batch)
            return Json(self.shown(request, batch))

    def batch(self, request: Request, batch_id: str) -> RequestBatch:
        """A batch of the client that asks; a 404 where it has none of that name."""
        try:
            return context_of(request).batches.get(owner_of(request.scope), self.tag, batch_id)
        except InputError as error:
            raise HttpError(404, str(error), code="not_found") from None


def asking_as(request: Request) -> Ask:
    """What asks further requests as the client of this one: with its key, from its address."""
    fields = {name: request.scope[name] for name in SCOPE_FIELDS if name in request.scope}
    headers = [(name, value) for name, value in request.scope["headers"] if name not in OF_THE_BODY]
    app = request.app

    async def ask(path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        content = to_json(body)
        of_the_body = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        scope: Scope = {
            **fields, "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": [*headers, *of_the_body],
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


class BatchCreation(BaseModel):
    """POST /v1/batches"""

    input_file_id: str
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
    completion_window: str = "24h"
    metadata: dict[str, Any] | None = None


def split_answers(store: FileStore, batch: RequestBatch) -> None:
    """The answers as OpenAI has them: those that succeeded in one file, the others in another."""
    assert batch.result is not None
    with batch.result.open("rb") as lines:
        split: dict[str, list[bytes]] = {"output": [], "error": []}
        for line in lines:
            response = json.loads(line)["response"]
            split["output" if response is not None and response["status_code"] == 200 else "error"].append(line)
    batch.result.unlink()
    batch.result = None
    for name, kept in split.items():
        if kept:
            part = store.folder / f"{batch.id}-{name}"
            part.write_bytes(b"".join(kept))
            batch.files[name] = store.adopt(batch.owner, f"{batch.id}_{name}.jsonl", "batch_output", part).id


def _status(batch: RequestBatch) -> str:
    if batch.error is not None:
        return "failed"
    if batch.done:
        return "completed" if batch.cancelled_at is None else "cancelled"
    return "in_progress" if batch.cancelled_at is None else "cancelling"


class OpenAIBatches(BatchForm):
    tag, path, id_prefix = "OpenAI", "/v1/batches", "batch_"
    example = {
        "id": "batch_1", "object": "batch", "endpoint": "/v1/chat/completions", "input_file_id": "file-1",
        "completion_window": "24h", "status": "completed", "created_at": 1700000000,
        "request_counts": {"total": 1, "completed": 1, "failed": 0},
    }  # fmt: skip
    page_example = {"object": "list", "data": [example]}

    def page(self, data: list[JsonObject]) -> JsonObject:
        return page_of(data)

    def output(self, row: InputRow, outcome: Outcome) -> JsonObject:
        if isinstance(outcome, tuple):
            return batch_answer(new_id, row.value, *outcome)
        code, message = WHY[outcome] if isinstance(outcome, str) else ("invalid_request", str(outcome))
        return batch_failure(new_id, row.value.get("custom_id") if isinstance(row.value, dict) else None, message, code)

    def shown(self, request: Request, batch: RequestBatch) -> JsonObject:
        progress, status = batch.progress, _status(batch)
        ended = {name: batch.ended if status == name else None for name in ("completed", "failed", "cancelled")}
        error = {"code": "failed", "message": batch.error, "param": None, "line": None}
        return {
            "id": batch.id,
            "object": "batch",
            **{name: batch.about[name] for name in ("endpoint", "input_file_id", "completion_window", "metadata")},
            "errors": None if batch.error is None else {"object": "list", "data": [error]},
            "status": status,
            "output_file_id": batch.files.get("output"),
            "error_file_id": batch.files.get("error"),
            "created_at": batch.created,
            "in_progress_at": batch.started,
            "expires_at": batch.created + WINDOW_SECONDS,
            "finalizing_at": None,
            "expired_at": None,
            "cancelling_at": batch.cancelled_at,
            **{f"{name}_at": when for name, when in ended.items()},
            "request_counts": {
                "total": progress.total, "completed": progress.rows - progress.failed, "failed": progress.failed,
            },
        }  # fmt: skip


OPENAI = OpenAIBatches()
OPENAI.add_routes()


@router.post("/v1/batches", tags=["OpenAI"], responses=example_answer(OPENAI.example))
async def create_batch(request: Request, body: BatchCreation) -> Json:
    """Begin to answer a file of requests."""
    store, rows = store_of(request), found(request, body.input_file_id).path.read_bytes()
    return OPENAI.start(request, body.endpoint, body.model_dump(), rows, partial(split_answers, store))


class BatchedRequest(BaseModel):
    custom_id: Annotated[str, Field(min_length=1, max_length=64)]
    params: dict[str, Any]


class MessageBatchCreation(BaseModel):
    """POST /v1/messages/batches"""

    requests: Annotated[list[BatchedRequest], Field(min_length=1)]


def _time(seconds: int | None) -> str | None:
    return None if seconds is None else iso_time(seconds)


class AnthropicBatches(BatchForm):
    tag, path, id_prefix = "Anthropic", "/v1/messages/batches", "msgbatch_"
    example = {
        "id": "msgbatch_1", "type": "message_batch", "processing_status": "ended", "created_at": "2024-01-01T00:00:00Z",
        "request_counts": {"processing": 0, "succeeded": 1, "errored": 0, "canceled": 0, "expired": 0},
    }  # fmt: skip
    page_example = {"data": [example], "has_more": False}

    def page(self, data: list[JsonObject]) -> JsonObject:
        return {"data": data, "has_more": False, **page_ends(data)}

    def output(self, row: InputRow, outcome: Outcome) -> JsonObject:
        custom_id = row.value.get("custom_id") if isinstance(row.value, dict) else None
        match outcome:
            case (200, message):
                result: dict[str, Any] = {"type": "succeeded", "message": message}
            case (_, error):
                result = {"type": "errored", "error": error}
            case "cancelled":
                result = {"type": "canceled"}
            case _:
                text = (
                    "the server has no room for more answers. Delete batches." if isinstance(outcome, str) else str(outcome)
                )
                result = {"type": "errored", "error": error_body(Problem(400, text))}
        return {"custom_id": custom_id, "result": result}

    def shown(self, request: Request, batch: RequestBatch) -> JsonObject:
        progress, total = batch.progress, batch.about["total"]
        running = "in_progress" if batch.cancelled_at is None else "canceling"
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": "ended" if batch.done else running,
            "request_counts": {
                "processing": 0 if batch.done else total - progress.rows,
                "succeeded": progress.rows - progress.failed,
                "errored": progress.failed - batch.cancelled_rows,
                "canceled": batch.cancelled_rows,
                "expired": 0,
            },
            "created_at": _time(batch.created),
            "expires_at": _time(batch.created + WINDOW_SECONDS),
            "ended_at": _time(batch.ended),
            "cancel_initiated_at": _time(batch.cancelled_at),
            "archived_at": None,
            "results_url": None if batch.result is None else f"{request.base_url}v1/messages/batches/{batch.id}/results",
        }


ANTHROPIC = AnthropicBatches()
ANTHROPIC.add_routes()


@router.post(ANTHROPIC.path, name="create_batch", tags=["Anthropic"], responses=example_answer(ANTHROPIC.example))
async def create_message_batch(request: Request, body: MessageBatchCreation) -> Json:
    """Begin to answer many messages."""
    ids = [each.custom_id for each in body.requests]
    if len(set(ids)) < len(ids):
        raise InputError("two requests of the batch have one custom_id. Give each its own.")
    rows = b"".join(
        to_json({"custom_id": each.custom_id, "method": "POST", "url": MESSAGES, "body": each.params}) + b"\n"
        for each in body.requests
    )
    return ANTHROPIC.start(request, MESSAGES, {"total": len(ids)}, rows)


@router.get(
    "/v1/messages/batches/{batch_id}/results", response_class=Response, tags=["Anthropic"], responses=text_answer(LINES)
)
async def batch_results(request: Request, batch_id: str) -> Response:
    """Its answers, a line each, when it has ended."""
    batch = ANTHROPIC.batch(request, batch_id)
    if batch.result is None:
        raise HttpError(404, batch.error or f"the batch {batch_id} has not ended, so there are no results yet.")
    return FileResponse(batch.result, media_type=LINES)


@router.delete(
    "/v1/messages/batches/{batch_id}",
    tags=["Anthropic"],
    responses=example_answer({"id": "msgbatch_1", "type": "message_batch_deleted"}),
)
async def delete_batch(request: Request, batch_id: str) -> Json:
    """Forget a batch that has ended, and its answers."""
    if not ANTHROPIC.batch(request, batch_id).done:
        raise HttpError(400, f"the batch {batch_id} has not ended. Cancel it first.")
    context_of(request).batches.delete(batch_id)
    return Json({"id": batch_id, "type": "message_batch_deleted"})
