"""GET /health and GET /metrics."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from glassformer.serving.http.context import context_of
from glassformer.serving.http.errors import Json
from glassformer.serving.http.metrics import CONTENT_TYPE
from glassformer.serving.http.openapi import example_answer, text_answer

router = APIRouter(tags=["monitoring"])


@router.get("/health", responses=example_answer({"status": "ok"}))
async def health(request: Request) -> Json:
    """Whether the server runs; 503 while it stops."""
    if context_of(request).registry.closed:
        return Json({"status": "stopping"}, 503)
    return Json({"status": "ok"})


@router.get("/metrics", response_class=Response, responses=text_answer("text/plain"))
async def metrics(request: Request) -> Response:
    """Counts and times for Prometheus."""
    context = context_of(request)
    return Response(context.metrics.text(context.registry), media_type=CONTENT_TYPE)
