"""/v1/files: what clients leave with the server, and what batches make for them. Files are gone when the server stops."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from glassformer.ground.errors import InputError
from glassformer.serving.file_store import FileStore, StoredFile
from glassformer.serving.http.clients import owner_of
from glassformer.serving.http.context import context_of
from glassformer.serving.http.errors import HttpError, Json
from glassformer.serving.http.openapi import example_answer, text_answer

router = APIRouter(tags=["OpenAI"])
BOUNDARY = re.compile(r'boundary="?([^";,\s]{1,70})"?', re.IGNORECASE)
PARAMETER = re.compile(r';\s*(name|filename)="([^"]*)"', re.IGNORECASE)
MAX_PARTS = 16
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


def page_ends(data: list[dict[str, Any]]) -> dict[str, Any]:
    """The ids at both ends of a list that is not cut into pages."""
    return {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}


def page_of(data: list[dict[str, Any]]) -> dict[str, Any]:
    """A list that is not cut into pages."""
    return {"object": "list", "data": data, **page_ends(data), "has_more": False}


@dataclass(frozen=True)
class FormPart:
    content: bytes
    filename: str | None  # None for a field


def parts_of(body: bytes, content_type: str) -> dict[str, FormPart]:
    """The parts of a multipart/form-data body (RFC 7578) by name, as far as an upload needs it: small fields and one file.

    >>> body = b'--x\\r\\nContent-Disposition: form-data; name="purpose"\\r\\n\\r\\nbatch\\r\\n--x--\\r\\n'
    >>> parts_of(body, "multipart/form-data; boundary=x")["purpose"].content
    b'batch'
    """
    boundary = BOUNDARY.search(content_type)
    if not content_type.lower().startswith("multipart/form-data") or boundary is None:
        raise InputError("a file is sent as multipart/form-data, with the fields file and purpose.")
    sections = (b"\r\n" + body).split(b"\r\n--" + boundary[1].encode("latin-1"))
    if len(sections) < 3 or not sections[-1].startswith(b"--") or len(sections) > MAX_PARTS + 2:
        raise InputError(f"the body is not from 1 to {MAX_PARTS} parts of a form, as its Content-Type says.")
    parts: dict[str, FormPart] = {}
    for section in sections[1:-1]:
        head, blank, content = section.partition(b"\r\n\r\n")
        lines = head.decode("utf-8", "replace").splitlines()
        disposition = next((line for line in lines if line.lower().startswith("content-disposition:")), "")
        fields = {name.lower(): value for name, value in PARAMETER.findall(disposition)}
        if not blank or "name" not in fields:
            raise InputError("a part of the form has no name.")
        parts[fields["name"]] = FormPart(content, fields.get("filename"))
    return parts
