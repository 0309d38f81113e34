"""Anthropic's error bodies."""

from __future__ import annotations

from typing import Any

from glassformer.serving.http.errors import Problem
from glassformer.serving.http.streaming import sse

TYPES = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 503: "overloaded_error",
}  # fmt: skip


def error_body(problem: Problem) -> dict[str, Any]:
    kind = TYPES.get(problem.status, "api_error" if problem.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": problem.message}}


def error_event(problem: Problem) -> bytes:
    """The last event of a stream that failed."""
    return sse(error_body(problem), "error")
