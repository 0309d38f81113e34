"""Every error as an HTTP answer: its status and what it says; the body is each dialect's own.

| error | status |
|---|---|
| a request that cannot be honoured: settings, prompts, templates, sites, an extra that is not installed | 400 |
| no key, or a wrong one | 401 |
| a Host or an Origin that is not allowed | 403 |
| a model or a path that is not there | 404 |
| a full queue | 429, with Retry-After |
| a server that is stopping or took too long | 503, with Retry-After |
| everything else, which is ours | 500 |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from glassformer.ground.errors import (
    ContextExceeded,
    GlassError,
    InputError,
    InputTypeError,
    MissingExtra,
    ModelNotFound,
    QueueFull,
    SettingError,
    SiteError,
    TemplateError,
    Unavailable,
    UnknownArgument,
)

CLIENT_CLOSED = 499  # as nginx logs it: nobody is there to read the answer
STATUS: Sequence[tuple[type[GlassError], int]] = (
    (ModelNotFound, 404),
    (QueueFull, 429),
    (Unavailable, 503),
    *(
        (error, 400)
        for error in (InputError, InputTypeError, MissingExtra, SettingError, SiteError, TemplateError, UnknownArgument)
    ),
)
RETRY_AFTER = {429: "1", 503: "5"}  # seconds


@dataclass(frozen=True)
class Problem:
    """Why a request has no answer, before it is put into a dialect's words."""

    status: int
    message: str
    code: str | None = None  # for programs, such as model_not_found
    param: str | None = None  # the request's field that it is about
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Dialect:
    """How the clients of some paths expect to be told of a problem."""

    prefix: str  # of the paths
    error_body: Callable[[Problem], dict[str, Any]]
    last_event: Callable[[Problem, int], bytes]  # of a stream that failed after this count of events


def dialect_of(path: str, dialects: Iterable[Dialect]) -> Dialect:
    """The first whose prefix fits; one fits all paths."""
    return next(dialect for dialect in dialects if path.startswith(dialect.prefix))


class HttpError(GlassError):
    """A problem that only this API has, such as a missing key."""

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.problem = Problem(status, message, code, param)


class ClientDisconnected(Exception):
    """The client has left; there is nobody to answer."""


class Json(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return to_json(content)


def to_json(value: Any) -> bytes:
    """Compact JSON; what no encoding can hold, such as half a surrogate pair, is escaped."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def problem_of(error: BaseException) -> Problem:
    """What an exception means to a client."""
    problem = _problem_of(error)
    if (seconds := RETRY_AFTER.get(problem.status)) is not None:
        problem = Problem(
            problem.status, problem.message, problem.code, problem.param, {"Retry-After": seconds, **problem.headers}
        )
    return problem


def _problem_of(error: BaseException) -> Problem:
    match error:
        case HttpError():
            return error.problem
        case ModelNotFound():
            return Problem(404, str(error), "model_not_found", "model")
        case ContextExceeded():
            return Problem(400, str(error), "context_length_exceeded")
        case RequestValidationError():
            return _validation_problem(error)
        case HTTPException(status_code=404):
            return Problem(404, "there is no such path. docs/serving.md lists those that there are.", "not_found")
        case HTTPException(status_code=405):
            return Problem(405, "this path does not take this method.", "method_not_allowed", headers=error.headers or {})
        case HTTPException():
            return Problem(error.status_code, str(error.detail), headers=error.headers or {})
        case GlassError():
            status = next((status for kind, status in STATUS if isinstance(error, kind)), 500)
            return Problem(status, str(error))
    return Problem(500, "the server failed at this request; its log says why.", "internal_error")


def _validation_problem(error: RequestValidationError) -> Problem:
    """The first thing that is wrong with a request's body."""
    first = error.errors()[0]
    path = [str(part) for part in first["loc"] if part not in ("body", "query", "path")]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "it cannot be read")
        return Problem(400, f"the body is not JSON: {reason}.", "invalid_json")
    message = str(first["msg"]).removeprefix("Value error, ")
    where = ".".join(path)
    return Problem(400, f"{where}: {message}" if where else message, "invalid_value", where or None)
