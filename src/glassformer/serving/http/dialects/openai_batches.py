"""/v1/files and /v1/batches: files of requests, answered one after another into files of answers.

Files are gone when the server stops.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from glassformer.ground.errors import InputError
from glassformer.jobs.formats.row_format import InputRow
from glassformer.serving.batches import CANCELLED, NO_ROOM, Batch, Outcome
from glassformer.serving.file_store import FileStore, StoredFile
from glassformer.serving.http.answers import new_id
from glassformer.serving.http.batch_routes import BatchForm, page_ends
from glassformer.serving.http.clients import owner_of
from glassformer.serving.http.context import context_of
from glassformer.serving.http.errors import HttpError, Json
from glassformer.serving.http.multipart import parts_of
from glassformer.serving.http.openapi import example_answer, text_answer

router = APIRouter(tags=["OpenAI"])
PURPOSES = ("batch", "batch_output")  # of what is listed
FILE = {
    "id": "file-1", "object": "file", "bytes": 120, "created_at": 1700000000, "filename": "in.jsonl", "purpose": "batch",
    "status": "processed",
}  # fmt: skip
UPLOAD = {
    "requestBody": {
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": ["batch"]},
                    },
                    "required": ["file", "purpose"],
                }
            }
        },
        "required": True,
    }
}
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


class BatchCreation(BaseModel):
    """POST /v1/batches"""

    input_file_id: str
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
    completion_window: str = "24h"
    metadata: dict[str, Any] | None = None


@router.post("/v1/files", responses={**example_answer(FILE), 422: {"description": ""}}, openapi_extra=UPLOAD)
async def upload_file(request: Request) -> Json:
    """Leave a file of requests."""
    store = store_of(request)
    parts = parts_of(await request.body(), request.headers.get("content-type", ""))
    if "file" not in parts or "purpose" not in parts:
        raise InputError("a file needs the fields file and purpose.")
    if (purpose := parts["purpose"].content.decode("utf-8", "replace")) != "batch":
        raise HttpError(400, f"the purpose is {purpose!r}; files are for batches here: 'batch'.", param="purpose")
    name = parts["file"].filename or "file.jsonl"
    return Json(file_object(store.add(owner_of(request.scope), name[:256], purpose, parts["file"].content)))


@router.get("/v1/files", responses=example_answer({"object": "list", "data": [FILE]}))
async def list_files(request: Request) -> Json:
    """The files, those that batches have made included."""
    data = [file_object(file) for file in store_of(request).files(owner_of(request.scope)) if file.purpose in PURPOSES]
    return Json(page_of(data))


@router.get("/v1/files/{file_id}", responses=example_answer(FILE))
async def show_file(request: Request, file_id: str) -> Json:
    """What is known of a file."""
    return Json(file_object(found(request, file_id)))


@router.get("/v1/files/{file_id}/content", response_class=Response, responses=text_answer("application/octet-stream"))
async def file_content(request: Request, file_id: str) -> Response:
    """What is in it."""
    return FileResponse(found(request, file_id).path, media_type="application/octet-stream")


@router.delete("/v1/files/{file_id}", responses=example_answer({"id": "file-1", "object": "file", "deleted": True}))
async def delete_file(request: Request, file_id: str) -> Json:
    """Remove it."""
    store_of(request).delete(found(request, file_id).id)
    return Json({"id": file_id, "object": "file", "deleted": True})


def store_of(request: Request) -> FileStore:
    return context_of(request).batches.store


def found(request: Request, file_id: str) -> StoredFile:
    try:
        file = store_of(request).get(file_id)
    except InputError as error:
        raise HttpError(404, str(error), code="not_found") from None
    if file.purpose not in PURPOSES or file.owner != owner_of(request.scope):
        raise HttpError(404, f"there is no file {file_id!r} here.", code="not_found")
    return file


def file_object(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.id, "object": "file", "bytes": file.bytes, "created_at": file.created, "filename": file.name,
        "purpose": file.purpose, "status": "processed",
    }  # fmt: skip


def page_of(data: list[dict[str, Any]]) -> dict[str, Any]:
    """A list that is not cut into pages."""
    return {"object": "list", "data": data, **page_ends(data), "has_more": False}


def output_row(row: InputRow, outcome: Outcome) -> dict[str, Any]:
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


def batch_object(request: Request, batch: Batch) -> dict[str, Any]:
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


FORM = BatchForm(
    "openai", "/v1/batches", "batch_", batch_object, page_of, output_row, BATCH, {"object": "list", "data": [BATCH]}
)  # fmt: skip
FORM.add_routes(router)


@router.post("/v1/batches", responses=example_answer(BATCH))
async def create_batch(request: Request, body: BatchCreation) -> Json:
    """Begin to answer a file of requests."""
    store, rows = store_of(request), found(request, body.input_file_id).path.read_bytes()
    return FORM.start(request, body.endpoint, body.model_dump(), rows, partial(split_answers, store))
