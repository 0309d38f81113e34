"""The front of a server with replicas: the guard and the limits of `glass serve`, and behind them a cluster.

The front reads a request as a whole, checks who asks, and hands it to the replica that the router chooses; what the
replica's app sends goes back as it comes. A client that leaves takes its request along. A request whose replica is lost
before it has answered anything is given to another; afterwards its connection is closed, so that no client takes half an
answer for a whole one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.schema import LoggingConfig
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from glassformer.errors import ExecutorError, GlassError, QueueFull, SettingError, Unavailable
from glassformer.scale.cluster import NAMESPACE, Allotment
from glassformer.scale.prefix_router import PrefixRouter
from glassformer.scale.prefixes import prefix_keys
from glassformer.scale.replica import SCOPE_FIELDS, ForwardedRequest, Replica
from glassformer.serving.http.app import DIALECTS
from glassformer.serving.http.errors import problem_of
from glassformer.serving.http.metrics import CONTENT_TYPE, sum_metrics
from glassformer.serving.http.security import Guard, Security, error_response
from glassformer.serving.http.streaming import disconnected
from glassformer.serving.limits import Limits

APPLICATION = "glass-serve"
ATTEMPTS = 3  # of a request whose replica is lost
CLOSING_SECONDS = 5.0  # for replicas to say that they are closed, beyond what running texts may take
log = logging.getLogger("glassformer")


@contextmanager
def deployed(ray: Any, make_sources: Any, limits: Limits, allotment: Allotment, folder: str) -> Iterator[Any]:
    """Replicas on a cluster, as a handle of Ray Serve; they are gone when the context ends."""
    lease = _lease(ray)
    requests = (limits.running + limits.queued) * limits.loaded_models
    quiet = LoggingConfig(log_level="ERROR", enable_access_log=False)
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    deployment = serve.deployment(
        Replica, num_replicas=allotment.workers, ray_actor_options=allotment.options, max_ongoing_requests=requests,
        max_queued_requests=limits.queued, graceful_shutdown_timeout_s=CLOSING_SECONDS, logging_config=quiet,
        request_router_config=RequestRouterConfig(request_router_class=PrefixRouter),
    )  # fmt: skip
    try:
        serve.start(proxy_location="Disabled", logging_config=quiet)
        try:
            handle = serve.run(deployment.bind(make_sources, limits, folder), name=APPLICATION, route_prefix=None)
        except RuntimeError as error:
            raise ExecutorError(f"the replicas could not be started: {str(error).strip()}") from error
        yield handle
    finally:
        with suppress(Exception):  # the cluster may be gone
            serve.delete(APPLICATION)
        ray.kill(lease)


def _lease(ray: Any) -> Any:
    """An actor that lives as long as this process, by whose name another server sees that this cluster has one."""
    try:
        return ray.remote(num_cpus=0)(_Lease).options(name=APPLICATION, namespace=NAMESPACE).remote()
    except ValueError as error:
        raise SettingError("this cluster has a `glass serve` already. Stop that first, or use another cluster.") from error


class _Lease: ...


class Replicas:
    """All replicas, as the server closes them."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def close(self, seconds: float = 0) -> None:
        with suppress(RayError, TimeoutError):
            self.handle.broadcast("close", seconds).results(timeout_s=seconds + CLOSING_SECONDS)

    async def metrics(self) -> str:
        """The sums of all replicas' numbers."""
        return sum_metrics(await asyncio.to_thread(self.handle.broadcast("metrics").results))


@dataclass(frozen=True)
class FrontContext:
    """What the server needs of its app."""

    registry: Replicas
    limits: Limits


def create_front(handle: Any, limits: Limits, security: Security) -> Starlette:
    """The app that the server runs: all requests go to the replicas."""
    app = Starlette()
    app.state.context = FrontContext(Replicas(handle), limits)
    app.router.default = Front(handle, limits)
    app.add_middleware(Guard, security=security, limits=limits, dialects=DIALECTS)
    return app


class Front:
    """The app behind the guard."""

    def __init__(self, handle: Any, limits: Limits) -> None:
        self.replicas = Replicas(handle)
        self.stream = handle.options(method_name="answer", stream=True)
        self.limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive()).get("body", b"")  # the guard has read it as a whole
        if (scope["method"], scope["path"]) == ("GET", "/metrics"):
            await Response(await self.replicas.metrics(), media_type=CONTENT_TYPE)(scope, receive, send)
            return
        request = ForwardedRequest({name: scope[name] for name in SCOPE_FIELDS if name in scope}, body, prefix_keys(body))
        relaying = asyncio.create_task(self._relay(request, send))
        leaving = asyncio.create_task(disconnected(receive))
        try:
            await asyncio.wait((relaying, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not relaying.done():
                return
            await relaying
        except GlassError as error:
            await error_response(scope["path"], problem_of(error), DIALECTS)(scope, receive, send)
        finally:
            leaving.cancel()
            relaying.cancel()

    async def _relay(self, request: ForwardedRequest, send: Send) -> None:
        """Send what a replica answers; raises a `GlassError` where there is no answer."""
        for _ in range(ATTEMPTS):
            began = False
            answer = self.stream.remote(request)
            messages = answer.__aiter__()
            try:
                async with asyncio.timeout(self.limits.seconds):
                    first: Iterable[Message] = await anext(messages)
                began = True
                await _send_all(first, send)
                async for more in messages:
                    await _send_all(more, send)
                return
            except BackPressureError as error:
                raise QueueFull("all replicas have as many requests as they may have. Try again later.") from error
            except TimeoutError:
                raise Unavailable(f"no replica was ready within {self.limits.seconds:g} seconds.") from None
            except (RayError, RayServeException) as error:
                log.warning(f"a replica was lost while it answered {request.scope['path']}: {type(error).__name__}.")
                if began:
                    return
            finally:
                answer.cancel()
        raise Unavailable("the replicas that this request was given to were lost. Try again later.")


async def _send_all(messages: Iterable[Message], send: Send) -> None:
    for message in messages:
        await send(message)
