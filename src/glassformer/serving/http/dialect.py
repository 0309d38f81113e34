"""A dialect is two tables: a body's fields → the engine's settings, and an answer's events → chunks.

```
body ── RequestBody.settings: field → setting, refusals ──▶ GenerationRequest ──▶ ServedAnswer: pieces
                                                                                      │
whole JSON, or a stream of chunks ◀── AnswerForm: start, piece, end; whole; failed ◀──┘
```

A file in `dialects/` holds both, and the little that is its own. [How to add one](docs/adding-a-dialect.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import Response

from glassformer.runtime.request_settings import Refusal, Settings, ToSettings, field_settings, refuse_fields
from glassformer.serving.http.answers import (
    AnswerPiece,
    Delta,
    GenerationRequest,
    ServedAnswer,
    start_generation,
)
from glassformer.serving.http.errors import Json, Problem, dialect_of
from glassformer.serving.http.settings import engine_settings, limited_settings
from glassformer.serving.http.streaming import EventStream
from glassformer.serving.limits import Limits
from glassformer.text.chat.tool_calls import ToolCallDelta


class RequestBody(BaseModel):
    """A request's body; fields that it does not have are kept, to be taken as the engine's settings or refused."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    SETTINGS: ClassVar[Mapping[str, ToSettings]] = {}
    REFUSED: ClassVar[Mapping[str, Refusal]] = {}
    NEUTRAL: ClassVar[tuple[str, ...]] = ()  # fields that change no answer here

    def refuse(self) -> None:
        """Refuse what would change the answer and cannot be honoured."""
        refuse_fields(partial(getattr, self), self.REFUSED)

    def settings(self, limits: Limits) -> Settings:
        """As `Model.start` takes them, within a server's limits."""
        self.refuse()
        return limited_settings(limits, **self.engine_settings() | field_settings(self._plain, self.SETTINGS))

    def _plain(self, name: str) -> Any:
        """A field as JSON has it."""
        value = getattr(self, name)
        return value.model_dump(by_alias=True) if isinstance(value, BaseModel) else value

    def engine_settings(self) -> Settings:
        return engine_settings(self.model_extra, self.NEUTRAL, type(self).model_fields)


Body = TypeVar("Body", bound=BaseModel)


class AnswerForm(ABC, Generic[Body]):
    """How a dialect writes an answer; made for one."""

    media_type = "text/event-stream"

    def __init__(self, answer: ServedAnswer, body: Body) -> None:
        self.answer, self.body = answer, body

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """The answer, when all of its texts are."""

    def start(self) -> Iterator[bytes]:
        """What a stream begins with."""
        yield from ()

    @abstractmethod
    def piece(self, piece: AnswerPiece) -> Iterator[bytes]:
        """What has come since the last piece."""

    @abstractmethod
    def end(self) -> Iterator[bytes]:
        """What a stream ends with."""

    def failed(self, problem: Problem) -> bytes:
        """The last chunk of a stream that failed in the middle."""
        request = self.answer.request
        return dialect_of(request.url.path, request.app.dialects).last_event(problem, 0)

    async def chunks(self) -> AsyncGenerator[bytes]:
        for chunk in self.start():
            yield chunk
        async for piece in self.answer:
            for chunk in self.piece(piece):
                yield chunk
        for chunk in self.end():
            yield chunk


class BlockForm(AnswerForm[Body]):
    """An answer of one text as blocks: thoughts, content, or a call. In a stream each is opened empty, grown and closed."""

    _open: type[Delta] | int | None = None  # the kind of the open block; of a call its index

    def piece(self, piece: AnswerPiece) -> Iterator[bytes]:
        for delta in piece.deltas:
            yield from self.add(delta)

    def add(self, delta: Delta) -> Iterator[bytes]:
        block = delta.index if isinstance(delta, ToolCallDelta) else type(delta)
        if self._open != block:
            yield from self.close()
            self._open = block
            yield from self.opened(delta)
        yield from self.grown(delta)

    def close(self, *, last: bool = False) -> Iterator[bytes]:
        """End the open block, if there is one."""
        if self._open is not None:
            yield from self.closed(last)
            self._open = None

    def blocks(self) -> list[dict[str, Any]]:
        """Those of a whole answer."""
        return [self.block(delta) for delta in self.answer.texts[0].blocks]

    @abstractmethod
    def block(self, delta: Delta) -> dict[str, Any]:
        """The block that a delta is all of."""

    @abstractmethod
    def opened(self, delta: Delta) -> Iterator[bytes]:
        """What begins the block of a delta."""

    @abstractmethod
    def grown(self, delta: Delta) -> Iterator[bytes]:
        """What a delta adds to the open block."""

    @abstractmethod
    def closed(self, last: bool) -> Iterator[bytes]:
        """What ends the open block, after which perhaps none comes."""


def emptied(delta: Delta) -> Delta:
    """What is known of a block when it is opened."""
    return replace(delta, arguments="") if isinstance(delta, ToolCallDelta) else replace(delta, text="")


class ConversationBuilder:
    """Messages as chat templates know them, made of what a dialect sends one by one: texts, calls of tools and results."""

    def __init__(self, before: Iterable[Mapping[str, Any]] = ()) -> None:
        self.messages = [dict(message) for message in before]

    def say(self, role: str, content: Any) -> None:
        self.messages.append({"role": role, "content": content})

    def call(self, call_id: str, name: str, arguments: Any) -> None:
        """The assistant calls a tool, in its last message if that is the latest."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.say("assistant", "")
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self.messages[-1]["tool_calls"] = [*self.messages[-1].get("tool_calls", ()), call]

    def give_result(self, call_id: str, content: Any) -> None:
        """The result of a call, with the name of its tool if that is known."""
        calls = (call for message in self.messages for call in message.get("tool_calls", ()))
        names = [call["function"]["name"] for call in calls if call["id"] == call_id]
        name = {"name": names[0]} if names else {}
        self.messages.append({"role": "tool", "tool_call_id": call_id, **name, "content": content})


def iso_time(seconds: float) -> str:
    """A moment as clients read it.

    >>> iso_time(1700000000)
    '2023-11-14T22:13:20Z'
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


async def respond(
    request: Request, body: Body, wanted: GenerationRequest, form_of: Callable[[ServedAnswer, Body], AnswerForm[Any]]
) -> Response:
    """The answer to a request in a dialect's form, whole or as a stream."""
    answer = await start_generation(request, wanted)
    form = form_of(answer, body)
    if wanted.stream:
        return EventStream(answer, form.chunks(), form.failed, form.media_type)
    try:
        await answer.collect()
        return Json(form.whole())
    finally:
        await answer.close()
