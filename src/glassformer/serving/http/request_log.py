"""What is known of every request when it is over: its id, its count and time by route, and a line in the access log."""

from __future__ import annotations

import logging
import re
import secrets
import time
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glassformer.serving.http.metrics import Metrics

METHODS = ("GET", "POST", "OPTIONS", "HEAD")
CLIENT_ID = re.compile(r"[\w.:+/=-]{1,128}", re.ASCII)  # an id that a client or a proxy may give to its request
LONGEST_PATH = 200  # characters of it in a line
log = logging.getLogger("glassformer.access")


class RequestLog:
    """The outermost middleware."""

    def __init__(self, app: ASGIApp, metrics: Metrics | None, lines: bool = False) -> None:
        """`metrics`: where requests are counted, if they are; `lines`: whether each is a line in the log."""
        self.app, self.metrics, self.lines = app, metrics, lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status, request_id = time.perf_counter(), 500, request_id_of(scope)

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                if scope["path"].startswith("/v1/messages"):  # as Anthropic's clients look for it
                    headers["Request-Id"] = request_id
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        finally:
            seconds = time.perf_counter() - began
            route: Any = scope.get("route")
            name = getattr(route, "path", "other")  # never what a client wrote, which would be endless
            method = scope["method"] if scope["method"] in METHODS else "other"
            if self.metrics is not None:
                self.metrics.count_request(name, method, status, seconds)
            if self.lines:
                path = scope.get("raw_path", b"").decode("ascii", "backslashreplace")[:LONGEST_PATH]
                host, _ = scope.get("client") or ("-", 0)
                log.info("%s %s %s %d %.3f s %s", host, method, path, status, seconds, request_id)


def request_id_of(scope: Scope) -> str:
    """The id that a request brings, or a new one."""
    own = Headers(scope=scope).get("x-request-id", "")
    return own if CLIENT_ID.fullmatch(own) else f"req_{secrets.token_hex(12)}"
