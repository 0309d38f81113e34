"""/v1/batches: files of requests, answered one after another into files of answers."""

from __future__ import annotations

import json
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request

from glassformer.jobs.formats.row_format import Row
from glassformer.serving.batches import CANCELLED, NO_ROOM, Batch, Outcome, new_batch_id
from glassformer.serving.file_store import FileStore
from glassformer.serving.http.answers import new_id
from glassformer.serving.http.clients import owner_of
from glassformer.serving.http.context import context_of
from glassformer.serving.http.errors import Json
from glassformer.serving.http.openai.files import found, page_of
from glassformer.serving.http.openapi import example_answer
from glassformer.serving.http.own_requests import asking_as, own_batch

router = APIRouter(tags=["OpenAI"])
KIND = "openai"
WINDOW_SECONDS = 24 * 3600
WHY = {  # a row has no answer
    CANCELLED: {"code": "batch_cancelled", "message": "the batch was cancelled before this request was answered."},
    NO_ROOM: {"code": "no_room", "message": "the server has no room for more answers. Delete files, and ask again."},
}
BATCH = {
    "id": "batch_1", "object": "batch", "endpoint": "/v1/chat/completions", "input_file_id": "file-1",
    "completion_window": "24h", "status": "completed", "created_at": 1700000000,
    "request_counts": {"total": 1, "completed": 1, "failed": 0},
}  # fmt: skip


class BatchRequest(BaseModel):
    """POST /v1/batches"""

    input_file_id: str
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
    completion_window: str = "24h"
    metadata: dict[str, Any] | None = None


@router.post("/v1/batches", responses=example_answer(BATCH))
async def create_batch(request: Request, body: BatchRequest) -> Json:
    """Begin to answer a file of requests."""
    batches = context_of(request).batches
    rows = found(request, body.input_file_id).path.read_bytes()
    batch = Batch(
        new_batch_id("batch_"),
        owner_of(request.scope),
        KIND,
        asking_as(request),
        output_row,
        frozenset({body.endpoint}),
        body.model_dump(),
    )
    batches.start(batch, rows, lambda batch: split_answers(batches.store, batch))
    return Json(batch_object(batch))


@router.get("/v1/batches", responses=example_answer({"object": "list", "data": [BATCH]}))
async def list_batches(request: Request) -> Json:
    """The batches, the newest first."""
    return Json(page_of([batch_object(batch) for batch in context_of(request).batches.list(owner_of(request.scope), KIND)]))


@router.get("/v1/batches/{batch_id}", responses=example_answer(BATCH))
async def show_batch(request: Request, batch_id: str) -> Json:
    """How far a batch is, and where its answers are."""
    return Json(batch_object(own_batch(request, KIND, batch_id)))


@router.post("/v1/batches/{batch_id}/cancel", responses=example_answer(BATCH))
async def cancel_batch(request: Request, batch_id: str) -> Json:
    """Ask no more of its requests; those that were answered keep their answers."""
    batch = own_batch(request, KIND, batch_id)
    context_of(request).batches.cancel(batch)
    return Json(batch_object(batch))


def output_row(row: Row, outcome: Outcome) -> dict[str, Any]:
    """A line of the files of answers."""
    custom_id = row.value.get("custom_id") if isinstance(row.value, dict) else None
    head = {"id": new_id("batch_req_"), "custom_id": custom_id}
    match outcome:
        case (status, body):
            return {**head, "response": {"status_code": status, "request_id": new_id("req_"), "body": body}, "error": None}
        case str():
            return {**head, "response": None, "error": WHY[outcome]}
    return {**head, "response": None, "error": {"code": "invalid_request", "message": str(outcome)}}


def split_answers(store: FileStore, batch: Batch) -> None:
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


def batch_object(batch: Batch) -> dict[str, Any]:
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


def _status(batch: Batch) -> str:
    if batch.error is not None:
        return "failed"
    if batch.done:
        return "completed" if batch.cancelled_at is None else "cancelled"
    return "in_progress" if batch.cancelled_at is None else "cancelling"
