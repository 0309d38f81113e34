"""The app: routers of every dialect behind one guard, and every error in the words of the path that it happened at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.params import Form
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from glassformer.ground.errors import GlassError, Unavailable
from glassformer.serving.followed_training import FollowedTraining
from glassformer.serving.http import (
    gradient_views,
    operation_routes,
    patching_views,
    studio,
    text_views,
    view_list,
    views,
)
from glassformer.serving.http import training as training_routes
from glassformer.serving.http.body import FirstMistake
from glassformer.serving.http.context import ServingContext, context_of
from glassformer.serving.http.dialects import DIALECTS
from glassformer.serving.http.dialects import ROUTERS as DIALECT_ROUTERS
from glassformer.serving.http.errors import CLIENT_CLOSED, ClientDisconnected, Json, problem_of
from glassformer.serving.http.json_bodies import JsonBodies
from glassformer.serving.http.metrics import CONTENT_TYPE, Metrics
from glassformer.serving.http.openapi import DocumentedApp, example_answer, text_answer
from glassformer.serving.http.request_log import RequestLog
from glassformer.serving.http.security import Guard, Security, error_response
from glassformer.serving.limits import Limits
from glassformer.serving.registry import STOPPING, Permissions, Registry

router = APIRouter(tags=["monitoring"])
ROUTERS = (
    *DIALECT_ROUTERS, views.router, operation_routes.router, gradient_views.router, patching_views.router,
    text_views.router, view_list.router, training_routes.router, router, studio.router,
)  # fmt: skip


def create_app(
    registry: Registry, limits: Limits | None = None, security: Security | None = None, *, guarded: bool = True,
    access_log: bool = False, training: Path | None = None, permissions: Permissions | None = None,
) -> FastAPI:  # fmt: skip
    """The API over a registry of models; not `guarded` where requests were checked before they come here.

    `training`: the folder of one that the studio follows. `permissions`: what clients may do beyond asking.
    """
    limits, security = limits or registry.limits, security or Security()
    followed = None if training is None else FollowedTraining(training)
    context = ServingContext(registry, limits, security, Metrics(), followed, permissions or Permissions())
    app = DocumentedApp(title="Glassformer", lifespan=_lifespan, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.dialects = DIALECTS
    app.state.context = context
    app.router.routes.extend(routes())
    for error in (GlassError, RequestValidationError, HTTPException):
        app.add_exception_handler(error, _answer_error)
    app.add_exception_handler(ClientDisconnected, _answer_nobody)
    app.add_exception_handler(Exception, _answer_error)  # Starlette passes it on to the server, which logs it
    app.add_middleware(JsonBodies, dialects=DIALECTS)
    if guarded:
        app.add_middleware(Guard, security=security, limits=limits, dialects=DIALECTS)
    app.add_middleware(RequestLog, metrics=context.metrics, lines=access_log)
    return app


@cache
def routes() -> list[BaseRoute]:
    """Those of all routers; a large body is refused for its first mistake."""
    found = [route for router in ROUTERS for route in router.routes]
    for route in found:
        if (
            isinstance(route, APIRoute)
            and (field := route.body_field) is not None
            and not isinstance(field.field_info, Form)
        ):
            route.app = FirstMistake(route.app, field.field_info.annotation)
    return found


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """While the server runs, events come to its loop, and idle models are unloaded."""
    context: ServingContext = app.state.context
    context.deliveries.start(asyncio.get_running_loop())
    context.registry.deliver_to(context.deliveries.deliver)
    unloading = asyncio.create_task(context.unload_idle_models())
    try:
        yield
    finally:
        unloading.cancel()
        with suppress(asyncio.CancelledError):
            await unloading
        await context.close()
        await asyncio.to_thread(context.registry.close)
        context.preparation.close(Unavailable(STOPPING), 0)


async def _answer_error(request: Request, error: Exception) -> Response:
    return error_response(request.url.path, problem_of(error), DIALECTS)


async def _answer_nobody(request: Request, error: Exception) -> Response:
    """The client has left; the status is for the metrics alone."""
    return Response(status_code=CLIENT_CLOSED)


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
