"""OpenAI's error bodies."""

from __future__ import annotations

from typing import Any

from glassformer.serving.http.errors import Problem
from glassformer.serving.http.streaming import sse

TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def error_body(problem: Problem) -> dict[str, Any]:
    kind = TYPES.get(problem.status, "server_error" if problem.status >= 500 else "invalid_request_error")
    return {"error": {"message": problem.message, "type": kind, "param": problem.param, "code": problem.code}}


def error_event(problem: Problem) -> bytes:
    """The last event of a stream that failed; the official client raises its message."""
    return sse(error_body(problem))
