"""GET /v1/models: what can be asked for."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from glassformer.serving.http.context import context_of
from glassformer.serving.http.errors import Json
from glassformer.serving.http.openapi import example_answer
from glassformer.serving.registry import ModelSource

router = APIRouter(tags=["OpenAI"])


MODEL = {"id": "smollm2", "object": "model", "created": 1700000000, "owned_by": "glassformer"}


@router.get("/v1/models", responses=example_answer({"object": "list", "data": [MODEL]}))
async def list_models(request: Request) -> Json:
    """The models by name and alias."""
    sources = context_of(request).registry.sources.values()
    return Json({"object": "list", "data": [entry for source in sources for entry in entries(source)]})


@router.get("/v1/models/{name:path}", responses=example_answer(MODEL))
async def show_model(request: Request, name: str) -> Json:
    """One of them."""
    source = context_of(request).registry.source(name)
    return Json(next(entry for entry in entries(source) if entry["id"] == name))


def entries(source: ModelSource) -> list[dict[str, Any]]:
    return [
        {"id": name, "object": "model", "created": source.created, "owned_by": "glassformer"}
        for name in (source.name, *source.aliases)
    ]
