"""The app: routers of every dialect behind one guard, and every error in the words of the path that it happened at.

GET / and GET /studio/{name} are the studio, a page over the routes under /glass. Its files are the same for everybody and
need no key; what the page asks for does. They are looked up by name among those of the build, so no path leads out of it.
"""

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
    operation_routes,
    view_list,
    views,
)
from glassformer.serving.http import training as training_routes
from glassformer.serving.http.body import FirstMistake
from glassformer.serving.http.context import ServingContext, context_of
from glassformer.serving.http.dialects import DIALECTS
from glassformer.serving.http.dialects import ROUTERS as DIALECT_ROUTERS
from glassformer.serving.http.errors import CLIENT_CLOSED, ClientDisconnected, HttpError, Json, problem_of
from glassformer.serving.http.metrics import CONTENT_TYPE, Metrics, RequestLog
from glassformer.serving.http.openapi import DocumentedApp, example_answer, text_answer
from glassformer.serving.http.security import Guard, JsonBodies, Security, error_response
from glassformer.serving.limits import Limits
from glassformer.serving.registry import STOPPING, Permissions, Registry
from glassformer.studio import static_files

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
FOREVER = "public, max-age=31536000, immutable"  # a name holds the hash of its content
monitoring, studio = APIRouter(tags=["monitoring"]), APIRouter(tags=["studio"])
ROUTERS = (
    *DIALECT_ROUTERS, views.router, operation_routes.router, view_list.router, training_routes.router,
    monitoring, studio,
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


@monitoring.get("/health", responses=example_answer({"status": "ok"}))
async def health(request: Request) -> Json:
    """Whether the server runs; 503 while it stops."""
    if context_of(request).registry.closed:
        return Json({"status": "stopping"}, 503)
    return Json({"status": "ok"})


@monitoring.get("/metrics", response_class=Response, responses=text_answer("text/plain"))
async def metrics(request: Request) -> Response:
    """Counts and times for Prometheus."""
    context = context_of(request)
    return Response(context.metrics.text(context.registry), media_type=CONTENT_TYPE)


@studio.get("/", response_class=Response, responses=text_answer("text/html"))
async def page() -> Response:
    """The studio's page."""
    return _file("index.html", "no-cache")


@studio.head("/", response_class=Response, responses=text_answer("text/html"))
async def running() -> Response:
    """That the server runs: what Ollama's clients ask first."""
    return Response(media_type="text/html")


@studio.get("/studio/{name}", response_class=Response, responses=text_answer("*/*"))
async def asset(name: str) -> Response:
    """A script, a style, a picture or the data that the page opens with."""
    return _file(f"studio/{name}", FOREVER)


def _file(path: str, caching: str) -> Response:
    file = static_files().get(path)
    if file is None:
        raise HttpError(
            404, "the studio has no such file. Load the page again: it may be of another version.", code="not_found"
        )
    return Response(file.content, media_type=file.media_type, headers={**HEADERS, "Cache-Control": caching})
