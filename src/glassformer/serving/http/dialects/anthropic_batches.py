"""/v1/messages/batches: many messages in one request, answered one after another."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from glassformer.ground.errors import InputError
from glassformer.jobs.formats.row_format import InputRow
from glassformer.serving.batches import Batch, Outcome
from glassformer.serving.http.batch_routes import BatchForm, page_ends
from glassformer.serving.http.context import context_of
from glassformer.serving.http.dialects.anthropic import error_body
from glassformer.serving.http.errors import HttpError, Json, Problem, to_json
from glassformer.serving.http.openapi import example_answer, text_answer

router = APIRouter(tags=["Anthropic"])
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


class MessageBatchCreation(BaseModel):
    """POST /v1/messages/batches"""

    requests: Annotated[list[BatchedRequest], Field(min_length=1)]


def output_row(row: InputRow, outcome: Outcome) -> dict[str, Any]:
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


FORM = BatchForm(
    "anthropic", "/v1/messages/batches", "msgbatch_", batch_object,
    lambda data: {"data": data, "has_more": False, **page_ends(data)}, output_row, BATCH,
    {"data": [BATCH], "has_more": False},
)  # fmt: skip
FORM.add_routes(router)


@router.post("/v1/messages/batches", responses=example_answer(BATCH))
async def create_batch(request: Request, body: MessageBatchCreation) -> Json:
    """Begin to answer many messages."""
    ids = [each.custom_id for each in body.requests]
    if len(set(ids)) < len(ids):
        raise InputError("two requests of the batch have one custom_id. Give each its own.")
    rows = b"".join(
        to_json({"custom_id": each.custom_id, "method": "POST", "url": PATH, "body": each.params}) + b"\n"
        for each in body.requests
    )
    return FORM.start(request, PATH, {"total": len(ids)}, rows)


@router.get("/v1/messages/batches/{batch_id}/results", response_class=Response, responses=text_answer(LINES))
async def batch_results(request: Request, batch_id: str) -> Response:
    """Its answers, a line each, when it has ended."""
    batch = FORM.batch(request, batch_id)
    if batch.result is None:
        raise HttpError(404, batch.error or f"the batch {batch_id} has not ended, so there are no results yet.")
    return FileResponse(batch.result, media_type=LINES)


@router.delete(
    "/v1/messages/batches/{batch_id}", responses=example_answer({"id": "msgbatch_1", "type": "message_batch_deleted"})
)
async def delete_batch(request: Request, batch_id: str) -> Json:
    """Forget a batch that has ended, and its answers."""
    if not FORM.batch(request, batch_id).done:
        raise HttpError(400, f"the batch {batch_id} has not ended. Cancel it first.")
    context_of(request).batches.delete(batch_id)
    return Json({"id": batch_id, "type": "message_batch_deleted"})
