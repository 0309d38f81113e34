"""GET /health and GET /metrics."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from glassformer.serving.http.context import context_of
from glassformer.serving.http.errors import Json
from glassformer.serving.http.metrics import CONTENT_TYPE

router = APIRouter(tags=["monitoring"])


@router.get("/health")
async def health(request: Request) -> Json:
    """Whether the server runs; 503 while it stops."""
    if context_of(request).registry.closed:
        return Json({"status": "stopping"}, 503)
    return Json({"status": "ok"})


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Counts and times for Prometheus."""
    context = context_of(request)
    return Response(context.metrics.text(context.registry), media_type=CONTENT_TYPE)
