"""The front of a server with replicas: the guard and the limits of `glass serve`, and behind them a cluster.

The front reads a request as a whole, checks who asks, and hands it to the replica that the router chooses; what the
replica's app sends goes back as it comes. A client that leaves takes its request along. A request whose replica is lost
before it has answered anything is given to another. Afterwards a stream ends with an error event, and the connection of any
other answer is closed, so that no client takes half an answer for a whole one.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica
from ray.serve.schema import LoggingConfig
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from glassformer.ground.errors import ExecutorError, GlassError, QueueFull, SettingError, Unavailable
from glassformer.scale.cluster import NAMESPACE, Allotment
from glassformer.scale.prefixes import PrefixIndex, prefix_keys
from glassformer.scale.replica import SCOPE_FIELDS, ForwardedRequest, Replica
from glassformer.serving.http.clients import cache_salt
from glassformer.serving.http.dialects import DIALECTS
from glassformer.serving.http.errors import dialect_of, problem_of
from glassformer.serving.http.metrics import CONTENT_TYPE, RequestLog, sum_metrics
from glassformer.serving.http.security import Guard, Security, error_response
from glassformer.serving.http.streaming import disconnected
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource

APPLICATION = "glass-serve"
ATTEMPTS = 3  # of a request whose replica is lost
STREAMS = ("text/event-stream", "application/x-ndjson")
LOST = "the replica that wrote this text was lost before its end. Ask again."
CLOSING_SECONDS = 5.0  # for replicas to say that they are closed, beyond what running texts may take
log = logging.getLogger("glassformer")


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """Prefers the replica that has read the longest part of the prompt, unless it has more than its share to do.

    In every process that has a handle to the replicas. See `prefixes` for whom it prefers. Interface:
    https://docs.ray.io/en/latest/serve/advanced-guides/custom-request-router.html
    """

    def initialize_state(self, **_: Any) -> None:
        self.index: PrefixIndex[ReplicaID] = PrefixIndex()
        self.running: Counter[ReplicaID] = Counter()  # requests of this process, by replica

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        if pending_request is None or not candidate_replicas:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        replicas = {replica.replica_id: replica for replica in candidate_replicas}
        loads = {replica_id: self._load(replica_id) for replica_id in replicas}
        return [[replicas[replica_id]] for replica_id in self.index.rank(_keys(pending_request), loads)]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        self.running[replica_id] += 1
        self.index.record(_keys(pending_request), replica_id)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        self.running[replica_id] = max(0, self.running[replica_id] - 1)

    def _load(self, replica_id: ReplicaID) -> int:
        """Requests in progress: those of this process, and of others as far as the replica has told of them lately."""
        return max(self.running[replica_id], self.replica_queue_len_cache.get(replica_id) or 0)


def _keys(request: PendingRequest) -> tuple[int, ...]:
    """The keys of a forwarded request; other calls have none."""
    return getattr(request.args[0], "keys", ()) if request.args else ()


class Replicas:
    """The replicas of a cluster, which all fronts share."""

    def __init__(self, ray: Any, handle: Any, lease: str) -> None:
        self._ray = ray
        self._lease = lease
        self.handle = handle

    def close(self, seconds: float = 0) -> None:
        """Let running texts go on for so long, and end the others; unless another front needs the replicas."""
        if not fronts(self._ray, besides=self._lease):
            with suppress(RayError, RayServeException, TimeoutError):  # there may be none any more
                self.handle.broadcast("close", seconds).results(timeout_s=seconds + CLOSING_SECONDS)

    async def metrics(self) -> str:
        """The sums of all replicas' numbers."""
        try:
            return sum_metrics(await asyncio.to_thread(self.handle.broadcast("metrics").results))
        except (RayError, RayServeException) as error:
            raise Unavailable("a replica was lost while it counted. Ask again.") from error


@contextmanager
def deployed(
    ray: Any, make_sources: Callable[[], Sequence[ModelSource]], limits: Limits, allotment: Allotment, settings: str
) -> Iterator[Replicas]:
    """Replicas on a cluster; those of another front, if it has the same `settings`. The last front takes them along.

    A front is known to the others by the name of an actor, its lease, which Ray ends with this process, however it ends.
    """
    kind = f"{APPLICATION}-{hashlib.sha256(settings.encode()).hexdigest()[:16]}"
    others = fronts(ray)
    if any(not name.startswith(kind) for name in others):
        raise SettingError(
            "this cluster has a `glass serve` with other models or options. Stop that first, or use the same."
        )
    name = f"{kind}-{uuid.uuid4().hex}"
    lease = ray.remote(num_cpus=0)(_Lease).options(name=name, namespace=NAMESPACE).remote()
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    try:
        handle = serve.get_app_handle(APPLICATION) if others else _deploy(make_sources, limits, allotment)
        yield Replicas(ray, handle, name)
    finally:
        with suppress(Exception):  # the cluster may be gone
            if not fronts(ray, besides=name):
                serve.delete(APPLICATION)
        ray.kill(lease)


def _deploy(make_sources: Callable[[], Sequence[ModelSource]], limits: Limits, allotment: Allotment) -> Any:
    """Start replicas, and wait until they are ready."""
    quiet = LoggingConfig(log_level="ERROR", enable_access_log=False)
    deployment = serve.deployment(
        Replica, num_replicas=allotment.workers, ray_actor_options=allotment.options,
        max_ongoing_requests=(limits.running + limits.queued) * limits.loaded_models, max_queued_requests=limits.queued,
        graceful_shutdown_timeout_s=CLOSING_SECONDS, logging_config=quiet,
        request_router_config=RequestRouterConfig(request_router_class=PrefixRouter),
    )  # fmt: skip
    serve.start(proxy_location="Disabled", logging_config=quiet)
    serve.delete(APPLICATION)  # what a front left that was killed
    try:
        return serve.run(deployment.bind(make_sources, limits, str(Path.cwd())), name=APPLICATION, route_prefix=None)
    except RuntimeError as error:
        raise ExecutorError(f"the replicas could not be started: {str(error).strip()}") from error


def fronts(ray: Any, besides: str = "") -> list[str]:
    """The names of the leases of all fronts."""
    names = (actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True) if actor["namespace"] == NAMESPACE)
    return [name for name in names if name.startswith(APPLICATION) and name != besides]


class _Lease: ...


@dataclass(frozen=True)
class FrontContext:
    """What the server needs of its app."""

    registry: Replicas
    limits: Limits
    security: Security


def create_front(replicas: Replicas, limits: Limits, security: Security, *, access_log: bool = False) -> Starlette:
    """The app that the server runs: all requests go to the replicas."""
    app = Starlette()
    app.state.context = FrontContext(replicas, limits, security)
    app.router.default = Front(replicas, limits)
    app.add_middleware(Guard, security=security, limits=limits, dialects=DIALECTS)
    app.add_middleware(RequestLog, metrics=None, lines=access_log)  # the replicas count
    return app


class Front:
    """The app behind the guard."""

    def __init__(self, replicas: Replicas, limits: Limits) -> None:
        self.replicas = replicas
        self.stream = replicas.handle.options(method_name="answer", stream=True)
        self.limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive()).get("body", b"")  # the guard has read it as a whole
        if (scope["method"], scope["path"]) == ("GET", "/metrics"):
            await (await self._metrics())(scope, receive, send)
            return
        keys = await asyncio.to_thread(prefix_keys, body, partial(cache_salt, scope))
        request = ForwardedRequest({name: scope[name] for name in SCOPE_FIELDS if name in scope}, body, keys)
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

    async def _metrics(self) -> Response:
        try:
            return Response(await self.replicas.metrics(), media_type=CONTENT_TYPE)
        except Unavailable as error:
            return error_response("/metrics", problem_of(error), DIALECTS)

    async def _relay(self, request: ForwardedRequest, send: Send) -> None:
        """Send what a replica answers; raises a `GlassError` where there is no answer."""
        for _ in range(ATTEMPTS):
            sent = SentAnswer(send)
            answer = self.stream.remote(request)
            messages = answer.__aiter__()
            try:
                async with asyncio.timeout(self.limits.seconds):
                    first: Iterable[Message] = await anext(messages)
                await sent.add(first)
                async for more in messages:
                    await sent.add(more)
                return
            except BackPressureError as error:
                raise QueueFull("all replicas have as many requests as they may have. Try again later.") from error
            except TimeoutError:
                raise Unavailable(f"no replica was ready within {self.limits.seconds:g} seconds.") from None
            except (RayError, RayServeException) as error:
                log.warning(f"a replica was lost while it answered {request.scope['path']}: {type(error).__name__}.")
                if sent.began:
                    await sent.end_stream(request.scope["path"], Unavailable(LOST))
                    return
            finally:
                answer.cancel()
        raise Unavailable("the replicas that this request was given to were lost. Try again later.")


class SentAnswer:
    """What a client has been sent of its answer."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.began = False
        self._streams = False
        self._events = 0  # of a stream

    async def add(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if message["type"] == "http.response.start":
                self.began = True
                self._streams = Headers(raw=message["headers"]).get("content-type", "").startswith(STREAMS)
            elif self._streams:
                self._events += message.get("body", b"").count(b"\n\n")
                self._streams = message.get("more_body", False)
            await self._send(message)

    async def end_stream(self, path: str, error: GlassError) -> None:
        """If it is a stream that has not ended, end it with an error, as clients of this path understand it."""
        if self._streams:
            event = dialect_of(path, DIALECTS).last_event(problem_of(error), self._events)
            await self._send({"type": "http.response.body", "body": event, "more_body": False})
