"""/v1/messages/batches: many messages in one request, answered one after another."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from glassformer.ground.errors import InputError
from glassformer.jobs.formats.row_format import Row
from glassformer.serving.batches import Batch, Outcome, new_batch_id
from glassformer.serving.http.anthropic.errors import error_body
from glassformer.serving.http.clients import owner_of
from glassformer.serving.http.context import context_of
from glassformer.serving.http.errors import HttpError, Json, Problem, to_json
from glassformer.serving.http.openapi import example_answer, text_answer
from glassformer.serving.http.own_requests import asking_as, own_batch

router = APIRouter(tags=["Anthropic"])
KIND = "anthropic"
PATH = "/v1/messages"
LINES = "application/x-jsonl"
DAY = 24 * 3600
BATCH = {
    "id": "msgbatch_1", "type": "message_batch", "processing_status": "ended", "created_at": "2024-01-01T00:00:00Z",
    "request_counts": {"processing": 0, "succeeded": 1, "errored": 0, "canceled": 0, "expired": 0},
}  # fmt: skip


class BatchedRequest(BaseModel):
    custom_id: Annotated[str, Field(min_length=1, max_length=64)]
    params: dict[str, Any]


class BatchRequest(BaseModel):
    """POST /v1/messages/batches"""

    requests: Annotated[list[BatchedRequest], Field(min_length=1)]


@router.post("/v1/messages/batches", responses=example_answer(BATCH))
async def create_batch(request: Request, body: BatchRequest) -> Json:
    """Begin to answer many messages."""
    ids = [each.custom_id for each in body.requests]
    if len(set(ids)) < len(ids):
        raise InputError("two requests of the batch have one custom_id. Give each its own.")
    rows = b"".join(
        to_json({"custom_id": each.custom_id, "method": "POST", "url": PATH, "body": each.params}) + b"\n"
        for each in body.requests
    )
    batch = Batch(
        new_batch_id("msgbatch_"),
        owner_of(request.scope),
        KIND,
        asking_as(request),
        output_row,
        frozenset({PATH}),
        {"total": len(ids)},
    )
    context_of(request).batches.start(batch, rows)
    return Json(batch_object(request, batch))


@router.get("/v1/messages/batches", responses=example_answer({"data": [BATCH], "has_more": False}))
async def list_batches(request: Request) -> Json:
    """The batches, the newest first."""
    data = [batch_object(request, batch) for batch in context_of(request).batches.list(owner_of(request.scope), KIND)]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return Json({"data": data, "has_more": False, **ends})


@router.get("/v1/messages/batches/{batch_id}", responses=example_answer(BATCH))
async def show_batch(request: Request, batch_id: str) -> Json:
    """How far a batch is."""
    return Json(batch_object(request, own_batch(request, KIND, batch_id)))


@router.get("/v1/messages/batches/{batch_id}/results", response_class=Response, responses=text_answer(LINES))
async def batch_results(request: Request, batch_id: str) -> Response:
    """Its answers, a line each, when it has ended."""
    batch = own_batch(request, KIND, batch_id)
    if batch.result is None:
        raise HttpError(404, batch.error or f"the batch {batch_id} has not ended, so there are no results yet.")
    return FileResponse(batch.result, media_type=LINES)


@router.post("/v1/messages/batches/{batch_id}/cancel", responses=example_answer(BATCH))
async def cancel_batch(request: Request, batch_id: str) -> Json:
    """Ask no more of its requests; those that were answered keep their answers."""
    batch = own_batch(request, KIND, batch_id)
    context_of(request).batches.cancel(batch)
    return Json(batch_object(request, batch))


@router.delete(
    "/v1/messages/batches/{batch_id}", responses=example_answer({"id": "msgbatch_1", "type": "message_batch_deleted"})
)
async def delete_batch(request: Request, batch_id: str) -> Json:
    """Forget a batch that has ended, and its answers."""
    if not own_batch(request, KIND, batch_id).done:
        raise HttpError(400, f"the batch {batch_id} has not ended. Cancel it first.")
    context_of(request).batches.delete(batch_id)
    return Json({"id": batch_id, "type": "message_batch_deleted"})


def output_row(row: Row, outcome: Outcome) -> dict[str, Any]:
    """A line of the results."""
    custom_id = row.value.get("custom_id") if isinstance(row.value, dict) else None
    match outcome:
        case (200, message):
            result: dict[str, Any] = {"type": "succeeded", "message": message}
        case (_, error):
            result = {"type": "errored", "error": error}
        case "cancelled":
            result = {"type": "canceled"}
        case _:
            text = "the server has no room for more answers. Delete batches." if isinstance(outcome, str) else str(outcome)
            result = {"type": "errored", "error": error_body(Problem(400, text))}
    return {"custom_id": custom_id, "result": result}


def batch_object(request: Request, batch: Batch) -> dict[str, Any]:
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
        "expires_at": _time(batch.created + DAY),
        "ended_at": _time(batch.ended),
        "cancel_initiated_at": _time(batch.cancelled_at),
        "archived_at": None,
        "results_url": None if batch.result is None else f"{request.base_url}v1/messages/batches/{batch.id}/results",
    }


def _time(seconds: int | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
