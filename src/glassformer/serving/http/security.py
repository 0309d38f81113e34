"""Who may ask: the Host and Origin of a request, its key, and how much it may send in what time.

A server on this machine is within reach of every web page that its user opens. Two checks keep pages out: the Host must be
one of ours, because a page can point a name of its own at 127.0.0.1 (DNS rebinding) but cannot send another name than
that; and an Origin, which browsers send with every request of a page to another site, must be allowed. Both are checked with
a key too.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glassformer.ground.errors import SettingError
from glassformer.serving.http.body import Body, check_json, give_memory_back, replay
from glassformer.serving.http.clients import CLIENT_KEY, Network, key_digest, network, real_client
from glassformer.serving.http.errors import CLIENT_CLOSED, Dialect, HttpError, Json, Problem, dialect_of, problem_of
from glassformer.serving.limits import Limits

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
OPEN_PATHS = ("/health", "/")  # that need no key: they say nothing but that the server runs
OPEN_FOLDER = "/studio/"  # nor do the studio's files, which browsers ask for without one
PREFLIGHT_SECONDS = "600"
OWN_SITE = ("same-origin", "none")  # of Sec-Fetch-Site: a page of this server, or no page at all
LEAST_KEY = 16  # characters, where others than this machine can try
AUTHORITY = re.compile(r"(?P<name>[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?", re.IGNORECASE)
ORIGIN = re.compile(rf"https?://(?P<authority>{AUTHORITY.pattern})", re.IGNORECASE)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def needs_no_key(path: str) -> bool:
    """Whether anybody whose Host and Origin are allowed may have it.

    >>> needs_no_key("/health"), needs_no_key("/studio/index.js"), needs_no_key("/glass/run")
    (True, True, False)
    """
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)


@dataclass(frozen=True)
class Security:
    """What is asked of every request."""

    host: str = "127.0.0.1"  # that the server listens on
    api_key: str | None = None  # several, separated by commas: each is a client
    allowed_hosts: tuple[str, ...] = ()  # further names that this server is reached by
    allowed_origins: tuple[str, ...] = ()  # further web pages that may use it: https://example.com
    trusted_proxies: tuple[str, ...] = ()  # addresses of those that say whom they have a request from

    def __post_init__(self) -> None:
        if self.api_key is None and not is_loopback(self.host):
            raise SettingError(
                f"{self.host} can be reached from other machines, so a key is needed. Pass --api-key, or set GLASS_API_KEY."
            )
        for key in self.keys:
            if not (key.isascii() and key.isprintable() and key):
                raise SettingError("the API key has characters that a header cannot hold. Use letters, digits and dashes.")
            if len(key) < LEAST_KEY and not is_loopback(self.host):
                raise SettingError(f"the API key has {len(key)} characters; {LEAST_KEY} are the least that is safe.")
        for origin in self.allowed_origins:
            if origin != "*" and not ORIGIN.fullmatch(origin):
                raise SettingError(f"{origin!r} is no origin. It is a scheme and a host, such as https://example.com.")
        _ = self.proxies

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Those that clients may send."""
        return () if self.api_key is None else tuple(key.strip() for key in self.api_key.split(","))

    @cached_property
    def proxies(self) -> tuple[Network, ...]:
        return tuple(map(network, self.trusted_proxies))

    def check_host(self, host: str | None) -> None:
        """Refuse a name that is not ours; an address is no name, and cannot be rebound."""
        name = _host_name(host or "")
        if name is None or not (_is_address(name) or name in self._names):
            raise HttpError(
                403, f"the Host {host or ''!r} is not this server's. Start it with --allow-host {name or 'NAME'}.",
                code="host_not_allowed",
            )  # fmt: skip

    def check_origin(self, origin: str | None, host: str | None) -> None:
        """Refuse a web page of another site."""
        if origin is None or origin in self.allowed_origins or "*" in self.allowed_origins:
            return
        parts = ORIGIN.fullmatch(origin)
        if parts is None or not (_name(parts) in self._names or parts["authority"] == host):
            raise HttpError(
                403, f"pages of {origin!r} may not use this server. Start it with --allow-origin {origin}.",
                code="origin_not_allowed",
            )  # fmt: skip

    def check_key(self, headers: Mapping[str, str]) -> str | None:
        """Refuse a request without a key: `Authorization: Bearer …`, or `x-api-key: …`, as Anthropic's clients send it.

        Returns what tells its key from others, where there are others.
        """
        if not self.keys:
            return None
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        sent = bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if not sent:
            raise HttpError(401, "a key is needed: Authorization: Bearer KEY.", code="missing_api_key")
        found = [key for key in self.keys if hmac.compare_digest(sent.encode("utf-8", "surrogateescape"), key.encode())]
        if not found:
            raise HttpError(401, "the key is not the one that this server was started with.", code="invalid_api_key")
        return key_digest(found[0]) if len(self.keys) > 1 else None

    @cached_property
    def _names(self) -> set[str]:
        names = {*LOOPBACK_NAMES, self.host.lower(), *(host.lower() for host in self.allowed_hosts)}
        return names if is_loopback(self.host) else names | {socket.gethostname().lower()}


def _host_name(host: str) -> str | None:
    """The name in a Host header, in lower case and without its port; None where it is malformed."""
    return None if (parts := AUTHORITY.fullmatch(host)) is None else _name(parts)


def _name(parts: re.Match[str]) -> str:
    return parts["name"].strip("[]").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """The middleware in front of all routes. What it lets through has a whole body of the allowed size."""

    def __init__(self, app: ASGIApp, security: Security, limits: Limits, dialects: Iterable[Dialect]) -> None:
        self.app, self.security, self.limits, self.dialects = app, security, limits, tuple(dialects)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        preflight = scope["method"] == "OPTIONS" and "access-control-request-method" in headers
        incoming = Body(headers, receive, self.limits)
        try:
            self._check_host_and_origin(headers)
            if preflight and origin is not None:  # browsers send no key with it
                await _preflight(headers)(scope, receive, _with_origin(send, origin))
                return
            scope["client"] = real_client(scope, self.security.proxies)
            if not needs_no_key(scope["path"]):
                scope[CLIENT_KEY] = self.security.check_key(headers)
            body = await incoming.read()
            if body is not None:
                await check_json(body, headers, self.limits)
        except HttpError as error:
            if await incoming.discard():
                await self.refuse(scope, receive, send, problem_of(error))
            return
        if body is None:
            return
        size, whole = len(body), replay({"type": "http.request", "body": body, "more_body": False}, receive)
        del body
        try:
            await self.app(scope, whole, send if origin is None else _with_origin(send, origin))
        finally:
            await give_memory_back(size)

    def _check_host_and_origin(self, headers: Headers) -> None:
        if len(hosts := headers.getlist("host")) > 1:
            raise HttpError(403, "a request has one Host.", code="host_not_allowed")
        host = hosts[0] if hosts else None
        self.security.check_host(host)
        self.security.check_origin(headers.get("origin"), host)

    async def refuse(self, scope: Scope, receive: Receive, send: Send, problem: Problem) -> None:
        """Answer with an error, in the dialect of the path, and close: what follows on the connection is not read."""
        response = error_response(scope["path"], problem, self.dialects)
        response.headers["Connection"] = "close"
        if problem.status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        await response(scope, receive, send)


def error_response(path: str, problem: Problem, dialects: Iterable[Dialect]) -> Json:
    """An error as the clients of a path expect it."""
    status = 400 if problem.status == CLIENT_CLOSED else problem.status
    return Json(dialect_of(path, dialects).error_body(problem), status, headers=dict(problem.headers))


def _with_origin(send: Send, origin: str) -> Send:
    """Tell the browser that the page may read the answer."""

    async def send_with_origin(message: Message) -> None:
        if message["type"] == "http.response.start":
            pairs = [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"Origin")]
            message["headers"] = [*message.get("headers", []), *pairs]
        await send(message)

    return send_with_origin


def _preflight(headers: Headers) -> Json:
    asked = {
        "Access-Control-Allow-Methods": "GET, HEAD, POST, DELETE, OPTIONS",
        "Access-Control-Allow-Headers": headers.get("access-control-request-headers", "content-type"),
        "Access-Control-Max-Age": PREFLIGHT_SECONDS,
    }
    return Json({}, 200, headers=asked)


class JsonBodies:
    """The middleware that has a body read as JSON unless it comes in parts, whatever a client calls it.

    `curl -d` says that a body is a form, and some libraries say nothing. A web page of another site can send a form or
    plain text without asking first. Browsers send its Origin along, which the guard checks; where there is none, what they
    say of the page's site is checked here.
    """

    def __init__(self, app: ASGIApp, dialects: Iterable[Dialect]) -> None:
        self.app, self.dialects = app, tuple(dialects)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_json(kind := media_type(headers := Headers(scope=scope))):
            if (
                "origin" not in headers
                and headers.get("sec-fetch-site", "none") not in OWN_SITE
                and scope["method"] == "POST"
            ):
                problem = problem_of(
                    HttpError(403, "pages of other sites may not use this server. Start it with --allow-origin ORIGIN.")
                )
                await error_response(scope["path"], problem, self.dialects)(scope, receive, send)
                return
            if kind != "multipart/form-data":
                scope = {**scope, "headers": list(scope["headers"])}
                MutableHeaders(scope=scope)["content-type"] = "application/json"
        await self.app(scope, receive, send)


def media_type(headers: Headers) -> str:
    """What a body is called, without its parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def is_json(kind: str) -> bool:
    """Whether a body is called JSON.

    >>> is_json("application/json"), is_json("application/problem+json"), is_json("")
    (True, True, False)
    """
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
