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
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import Response

from glassformer.ground.errors import SettingError
from glassformer.serving.http.answers import (
    Delta,
    GenerationRequest,
    Piece,
    ServedAnswer,
    start_generation,
)
from glassformer.serving.http.errors import Json, Problem, dialect_of
from glassformer.serving.http.settings import engine_settings, limited_settings
from glassformer.serving.http.streaming import EventStream
from glassformer.serving.limits import Limits
from glassformer.text.chat.tool_calls import ToolCallDelta

Settings: TypeAlias = dict[str, Any]
ToSettings: TypeAlias = str | Callable[[Any], Settings]  # a setting's name, or what makes settings of a value


class Refusal(NamedTuple):
    """What is said of a field after its name, unless its value changes nothing."""

    sentence: str
    harmless: tuple[Any, ...] = (None, [], {}, False)


class RequestBody(BaseModel):
    """A request's body; fields that it does not have are kept, to be taken as the engine's settings or refused."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    SETTINGS: ClassVar[Mapping[str, ToSettings]] = {}
    REFUSED: ClassVar[Mapping[str, Refusal]] = {}
    NEUTRAL: ClassVar[tuple[str, ...]] = ()  # fields that change no answer here

    def refuse(self) -> None:
        """Refuse what would change the answer and cannot be honoured."""
        for name, (sentence, harmless) in self.REFUSED.items():
            if getattr(self, name) not in harmless:
                raise SettingError(f"{name} {sentence}")

    def settings(self, limits: Limits) -> Settings:
        """As `Model.prepare` takes them, within a server's limits."""
        self.refuse()
        settings: Settings = {}
        for name, to_settings in self.SETTINGS.items():
            if (value := getattr(self, name)) is not None:
                settings |= {to_settings: value} if isinstance(to_settings, str) else to_settings(value)
        return limited_settings(limits, **self.engine_settings() | settings)

    def engine_settings(self) -> Settings:
        return engine_settings(self.model_extra, self.NEUTRAL, type(self).model_fields)


def unless_zero(name: str) -> Callable[[Any], Settings]:
    """A setting that the dialect turns off with 0."""
    return lambda value: {name: value} if value else {}


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
    def piece(self, piece: Piece) -> Iterator[bytes]:
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
    """An answer of one text as blocks, each opened, grown and closed: thoughts, content, or a call."""

    _open: type[Delta] | int | None = None  # the kind of the open block; of a call its index

    def piece(self, piece: Piece) -> Iterator[bytes]:
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

    @abstractmethod
    def opened(self, delta: Delta) -> Iterator[bytes]:
        """What begins the block of a delta."""

    @abstractmethod
    def grown(self, delta: Delta) -> Iterator[bytes]:
        """What a delta adds to the open block."""

    @abstractmethod
    def closed(self, last: bool) -> Iterator[bytes]:
        """What ends the open block, after which perhaps none comes."""


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
