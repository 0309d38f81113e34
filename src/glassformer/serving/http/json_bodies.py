"""Bodies are JSON, whatever a client calls them: `curl -d` says they are a form, and some libraries say nothing.

A web page of another site can send a form or plain text without asking first. Browsers send its Origin along, which the
guard checks; where there is none, what they say of the page's site is checked here.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Receive, Scope, Send

from glassformer.serving.http.errors import Dialect, HttpError, problem_of
from glassformer.serving.http.security import error_response

OWN_SITE = ("same-origin", "none")  # of Sec-Fetch-Site: a page of this server, or no page at all


class JsonBodies:
    """The middleware that has a body read as JSON unless it comes in parts."""

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
