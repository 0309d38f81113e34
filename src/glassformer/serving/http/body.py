"""A request's body: how it is read, how much of it, and what it leaves behind.

Parsing and checking JSON holds Python's lock from beginning to end, and all clients wait for it. How long that takes follows
from the number of values, not from the length of texts; so the values of a large body are counted first, beside the event
loop and without the lock. And a body of many mistakes is refused for the first of them: listing all takes far longer.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaValidator
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glassformer.serving.http.errors import HttpError
from glassformer.serving.limits import Limits

DISCARDED_BODIES = 8  # the most that is read of a request that is refused, in largest bodies
LARGE_BODY = 2**20  # bytes; after one, freed memory is given back to the system
SMALL_BODY = 2**16  # bytes; its mistakes may as well be listed
UTF8 = ("utf-8", "utf-8-sig")


class Body:
    """What comes of a request's body, within a time that begins now."""

    def __init__(self, headers: Headers, receive: Receive, limits: Limits) -> None:
        self._headers, self._receive, self._limits = headers, receive, limits
        self._deadline = asyncio.get_running_loop().time() + limits.body_seconds
        self._read = 0  # bytes
        self._ended = self._left = False

    async def read(self) -> bytes | None:
        """The whole body; None when the client leaves before its end."""
        most = self._limits.body_bytes
        too_large = HttpError(
            413, f"the body is larger than {most} bytes, which is the most that is read.", code="too_large"
        )
        if self._announced > most:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout_at(self._deadline):
                while not self._ended:
                    body += await self._next()
                    if len(body) > most:
                        raise too_large
        except TimeoutError:
            raise HttpError(
                408, f"the body did not arrive within {self._limits.body_seconds:g} seconds.", code="timeout"
            ) from None
        return None if self._left else bytes(body)

    async def discard(self) -> bool:
        """Read what is left of it, within reason, and keep nothing; whether the client is still there.

        A connection that is closed with unread bytes is reset, and the client would not see the answer.
        """
        most = DISCARDED_BODIES * self._limits.body_bytes
        if self._announced > most or (self._headers.get("expect", "").lower() == "100-continue" and not self._read):
            return True  # too much; or a client that asks first
        try:
            async with asyncio.timeout_at(self._deadline):
                while not self._ended and self._read <= most:
                    await self._next()
        except TimeoutError:
            pass
        return not self._left

    @property
    def _announced(self) -> float:
        """How many bytes the client says it sends."""
        length = self._headers.get("content-length", "0")
        return int(length) if length.isdecimal() and len(length) < 20 else np.inf

    async def _next(self) -> bytes:
        message = await self._receive()
        self._left = message["type"] == "http.disconnect"
        self._ended = self._left or not message.get("more_body", False)
        part: bytes = message.get("body", b"")
        self._read += len(part)
        return part


async def check_json(body: bytes, headers: Headers, limits: Limits) -> None:
    """Refuse JSON with more values than can be read without keeping others waiting."""
    if len(body) <= limits.json_values or headers.get("content-type", "").startswith("multipart/"):
        return
    if json.detect_encoding(body) not in UTF8:
        raise HttpError(400, "the body is not JSON in UTF-8.", code="invalid_json")
    if (count := await asyncio.to_thread(json_values, body)) > limits.json_values:
        raise HttpError(
            400, f"the body has {count:,} values; this server reads {limits.json_values:,} at most. Send fewer at once.",
            code="too_many_values",
        )  # fmt: skip


def json_values(body: bytes) -> int:
    r"""How many values JSON can have: one for each comma, bracket and brace that is outside of its texts, and one more.

    >>> json_values(b'{"a": [1, 2, "3, \\"4, {"]}')
    5
    """
    codes = np.frombuffer(body.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
    in_text = np.add.accumulate(codes == ord('"'), dtype=np.uint8) & 1
    begins = (codes == ord(",")) | (codes == ord("[")) | (codes == ord("{"))
    return 1 + int(np.count_nonzero(begins & (in_text == 0)))


class FirstMistake:
    """In front of a route: refuses a large body for its first mistake."""

    def __init__(self, app: ASGIApp, model: Any) -> None:
        self.app = app
        self._validator = SchemaValidator(_failing_fast(TypeAdapter(model).core_schema))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        if len(body := message.get("body", b"")) > SMALL_BODY:
            await asyncio.to_thread(self.check, body)
        await self.app(scope, replay(message, receive), send)

    def check(self, body: bytes) -> None:
        try:
            self._validator.validate_python(json.loads(body))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise RequestValidationError([{**first, "loc": ("body", *first["loc"])}]) from None
        except (ValueError, RecursionError):
            pass  # no JSON, of which the route tells


def _failing_fast(schema: Any) -> Any:
    """The schema of a model, whose lists are checked up to the first value that is wrong."""
    if isinstance(schema, dict):
        entries = {name: _failing_fast(value) for name, value in schema.items()}
        return {**entries, "fail_fast": True} if schema.get("type") == "list" else entries
    return [_failing_fast(value) for value in schema] if isinstance(schema, list) else schema


def replay(first: Message, receive: Receive) -> Receive:
    """A message that was read, once more; then whatever else comes, which is that the client leaves."""
    pending = [first]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed


async def give_memory_back(size: int) -> None:
    """After a body of this size: what was freed goes back to the system, where the C library would keep it."""
    if size >= LARGE_BODY and (trim := malloc_trim()) is not None:
        await asyncio.to_thread(trim, 0)


@cache
def malloc_trim() -> Callable[[int], int] | None:
    """The C library's own function, if it has one."""
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
    return trim
