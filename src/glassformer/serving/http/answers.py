"""One request and one answer for all dialects: submitted to the model's scheduler, read as it grows, ended with the client.

A dialect makes a `GenerationRequest` of a body, and chunks of the answer's pieces (`dialect.py`).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from starlette.requests import Request

from glassformer.decoding import Finish, Step, StepDetail
from glassformer.decoding.policy import NOTHING
from glassformer.ground.errors import Unavailable, spelled_by
from glassformer.ground.sites import Watch
from glassformer.runtime.model import Model
from glassformer.runtime.run import Run, TextStream, runs_of_texts
from glassformer.serving.http.clients import client_of, request_salt
from glassformer.serving.http.context import ServingContext, context_of, prepared
from glassformer.serving.http.errors import ClientDisconnected, HttpError
from glassformer.serving.http.inspection import Inspection, blamed_on
from glassformer.serving.http.settings import check_count, request_spelling
from glassformer.serving.http.streaming import disconnected
from glassformer.serving.registry import ServedModel
from glassformer.serving.scheduler import Event, Generation
from glassformer.text import Tokenizer
from glassformer.text.chat.tool_calls import (
    ContentDelta,
    ParsedMessage,
    ToolCall,
    ToolCallDelta,
    ToolCallParser,
    ToolUse,
    chat_prompt,
)
from glassformer.text.streaming import OPENING, ThoughtReader

Messages = Sequence[Mapping[str, Any]]
PROMPT_END = 8  # tokens in which the mark before thoughts may stand


@dataclass(frozen=True)
class GenerationRequest:
    """What a request asks for, whatever its dialect: the answer to a conversation, or what follows prompts."""

    model: str | None
    settings: Mapping[str, Any]  # as `Model.start` takes them
    messages: Messages | None = None  # a conversation; without one there are prompts
    prompts: Sequence[str | Sequence[int]] = ()
    n: int = 1  # texts for each prompt
    tools: Sequence[Mapping[str, Any]] = ()  # these four as `chat_prompt` takes them
    tool_choice: str = "auto"
    parallel_tool_calls: bool = True
    template: Mapping[str, Any] | None = None
    thoughts: bool = False  # whether they are told from the answer
    inspection: Inspection | None = None
    stream: bool = False


@dataclass(frozen=True, slots=True)
class ThoughtDelta:
    """A further piece of the model's thoughts."""

    text: str


Delta: TypeAlias = ThoughtDelta | ContentDelta | ToolCallDelta


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """What has come of one of an answer's texts since the last piece of it."""

    index: int
    text: str
    steps: tuple[Step, ...]
    finish: Finish | None
    deltas: tuple[Delta, ...]  # the same text as thoughts, content and tool calls

    @property
    def content(self) -> str:
        return "".join(delta.text for delta in self.deltas if isinstance(delta, ContentDelta))

    @property
    def thoughts(self) -> str:
        return "".join(delta.text for delta in self.deltas if isinstance(delta, ThoughtDelta))


@dataclass(eq=False)
class GrowingText:
    """One of an answer's texts."""

    run: Run
    stream: TextStream
    parser: ToolCallParser | None = None  # where the request has tools
    new_reader: Callable[[], ThoughtReader] | None = None  # where thoughts are told from the answer
    finish: Finish | None = None
    _reader: ThoughtReader | None = field(init=False)

    def __post_init__(self) -> None:
        self._reader = None if self.new_reader is None else self.new_reader()

    @property
    def text(self) -> str:
        return self.run.text

    @property
    def steps(self) -> list[Step]:
        return self.run.steps

    @property
    def prompt_steps(self) -> tuple[Step, ...]:
        """The prompt's own tokens, if the request asks for their log-probabilities; known with the last step."""
        return tuple(self.run.prompt_steps)

    @property
    def message(self) -> ParsedMessage:
        """The whole text as content and tool calls."""
        return ParsedMessage(self.text, ()) if self.parser is None else self.parser.message()

    @property
    def parts(self) -> tuple[str, str, tuple[ToolCall, ...]]:
        """The whole text as thoughts, the rest of its content, and tool calls."""
        content, calls = self.message.content, self.message.calls
        thoughts, content = ("", content) if self.new_reader is None else self.new_reader().feed(content, last=True)
        return thoughts, content, calls

    @property
    def blocks(self) -> list[Delta]:
        """The whole text as one delta for its thoughts, one for the rest of its content, and one for each tool call."""
        thoughts, content, calls = self.parts
        blocks: list[Delta] = [ThoughtDelta(thoughts)] if thoughts else []
        blocks += [ContentDelta(content)] if content or not calls else []
        return blocks + [ToolCallDelta(index, call.id, call.name, call.arguments) for index, call in enumerate(calls)]

    @property
    def called(self) -> bool:
        """Whether it calls tools, and calls them completely."""
        return self.parser is not None and self.parser.called

    def add(self, index: int, events: Sequence[Event]) -> AnswerPiece:
        """Take the steps of these events."""
        steps = tuple(event.step for event in events if event.step is not None)
        text = "".join(self.stream.add(event.step, event.seconds) for event in events if event.step is not None)
        return self._piece(index, text, steps, steps[-1].finish)

    def end(self, index: int, finish: Finish) -> AnswerPiece:
        """Take no more steps, for the reason named."""
        return self._piece(index, "", (), finish)

    def _piece(self, index: int, text: str, steps: tuple[Step, ...], finish: Finish | None) -> AnswerPiece:
        self.finish = finish
        return AnswerPiece(index, text, steps, finish, tuple(self._deltas(text, finish is not None)))

    def _deltas(self, text: str, last: bool) -> Iterator[Delta]:
        """A piece of the text by its kinds; a call ends the thoughts."""
        for delta in self._parsed(text, last):
            if self._reader is None:
                yield delta
            elif isinstance(delta, ContentDelta):
                yield from _told_apart(self._reader.feed(delta.text))
            else:
                yield from _told_apart(self._reader.feed("", last=True))
                yield delta
        if last and self._reader is not None:
            yield from _told_apart(self._reader.feed("", last=True))

    def _parsed(self, text: str, last: bool) -> Sequence[ContentDelta | ToolCallDelta]:
        if self.parser is None:
            return [ContentDelta(text)] if text else []
        return [*self.parser.feed(text), *(self.parser.finish() if last else ())]


def _told_apart(read: tuple[str, str]) -> Iterator[Delta]:
    thoughts, content = read
    if thoughts:
        yield ThoughtDelta(thoughts)
    if content:
        yield ContentDelta(content)


@dataclass(frozen=True)
class Submission:
    """A prompt, prepared: its runs, and what each step is to carry."""

    runs: tuple[Run, ...]
    detail: StepDetail = NOTHING
    watch: Watch | None = None
    tool_use: ToolUse | None = None  # where the request has tools
    thoughts: bool = False  # whether they are told from the answer

    def growing_texts(self, tokenizer: Tokenizer) -> list[GrowingText]:
        visible = () if self.tool_use is None else self.tool_use.visible_tokens
        reader = partial(ThoughtReader, begun=self._thinks_already(tokenizer)) if self.thoughts else None
        return [
            GrowingText(
                run, TextStream(run, tokenizer, visible), None if self.tool_use is None else self.tool_use.parser(), reader
            )
            for run in self.runs
        ]

    def _thinks_already(self, tokenizer: Tokenizer) -> bool:
        """Whether the prompt has begun the thoughts."""
        return str(tokenizer.decode(self.runs[0].prompt_ids[-PROMPT_END:])).rstrip().endswith(OPENING)


@dataclass(eq=False)
class ServedAnswer:
    """All texts of a request. Iterate over its pieces, or `collect` it; `close` it in the end."""

    request: Request
    context: ServingContext
    served: ServedModel
    generations: list[Generation] = field(default_factory=list)
    texts: list[GrowingText] = field(default_factory=list)
    created: int = field(default_factory=lambda: int(time.time()))
    first_token: float | None = None  # seconds from the request to it
    _first_texts: dict[int, int] = field(default_factory=dict)  # the index of each generation's first, by its identity
    _events: list[Event] = field(default_factory=list)  # that nobody has taken yet
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _left: bool = False  # whether the client has
    _closed: bool = False
    _watcher: asyncio.Task[None] | None = None
    _started: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.deadline = asyncio.get_running_loop().time() + self.context.limits.seconds

    @property
    def model(self) -> Model:
        return self.served.model

    @property
    def prompt_tokens(self) -> int:
        return sum(len(generation.runs[0].prompt_ids) for generation in self.generations)

    @property
    def cached_tokens(self) -> int:
        return sum(generation.cached_tokens for generation in self.generations)

    @property
    def completion_tokens(self) -> int:
        return sum(len(text.steps) for text in self.texts)

    @property
    def done(self) -> bool:
        return all(text.finish is not None for text in self.texts)

    def submit(self, submissions: Sequence[Submission], cache_salt: str) -> None:
        """Queue the texts. Nothing can come of them before this returns, as events are handed out on this thread."""
        for submission in submissions:
            generation = self.served.scheduler.submit(
                submission.runs, detail=submission.detail, watch=submission.watch, client=client_of(self.request),
                cache_salt=cache_salt,
            )  # fmt: skip
            self._first_texts[id(generation)] = len(self.texts)
            self.generations.append(generation)
            self.texts += submission.growing_texts(self.model.tokenizer)
            self.context.deliveries.listen(generation, self)

    def receive_events(self, events: Sequence[Event]) -> None:
        self._events += events
        self._arrived.set()

    async def begin(self) -> None:
        """Wait for the first token: what fails before it becomes a proper error, not one in the middle of a stream."""
        self._watcher = asyncio.create_task(self._watch_client())
        await self._wait()
        self.first_token = time.perf_counter() - self._started
        _raise_error(self._events[0])

    def __aiter__(self) -> AsyncIterator[AnswerPiece]:
        return self._pieces()

    async def collect(self) -> list[GrowingText]:
        """All texts, when they are whole."""
        async for _ in self:
            pass
        return self.texts

    def check_client(self) -> None:
        """Raise ClientDisconnected where nobody waits for the answer any more."""
        if self._left:
            raise ClientDisconnected

    async def close(self) -> None:
        """Give everything back: a text that is not over is cancelled."""
        if self._closed:
            return
        self._closed = True
        self._cancel()
        for generation in self.generations:
            self.context.deliveries.forget(generation)
        if self._watcher is not None:
            self._watcher.cancel()
        self.context.registry.release(self.served)
        self.context.metrics.count_answer(
            self.served.name, prompt_tokens=self.prompt_tokens, cached_tokens=self.cached_tokens,
            generated_tokens=self.completion_tokens, first_token=self.first_token,
        )  # fmt: skip

    async def _pieces(self) -> AsyncIterator[AnswerPiece]:
        while not self.done:
            try:
                await self._wait()
            except TimeoutError:
                for piece in self._out_of_time():
                    yield piece
                return
            events, self._events = self._events, []
            self._arrived.clear()
            by_text: dict[int, list[Event]] = {}
            for event in events:
                _raise_error(event)
                by_text.setdefault(self._first_texts[id(event.generation)] + event.index, []).append(event)
            for index, text_events in by_text.items():
                yield self.texts[index].add(index, text_events)

    async def _wait(self) -> None:
        """Until there is an event."""
        if not self._events and not self._left:
            async with asyncio.timeout_at(self.deadline):
                await self._arrived.wait()
        self.check_client()

    def _out_of_time(self) -> list[AnswerPiece]:
        """The ends of the texts that took too long; an error where nothing has come at all."""
        self._cancel()
        if not any(text.steps for text in self.texts):
            raise _timed_out(self.context)
        return [text.end(index, Finish.TIME) for index, text in enumerate(self.texts) if text.finish is None]

    def _cancel(self) -> None:
        for generation in self.generations:
            first = self._first_texts[id(generation)]
            if any(text.finish is None for text in self.texts[first : first + len(generation.runs)]):
                generation.cancel()

    async def _watch_client(self) -> None:
        await disconnected(self.request.receive)
        self._left = True
        self._cancel()
        self._arrived.set()


def _raise_error(event: Event) -> None:
    """What ended a text, if anything did."""
    watch = event.generation.watch
    with blamed_on({} if watch is None else watch.changes):
        if event.error is not None:
            raise event.error


def _timed_out(context: ServingContext) -> Unavailable:
    return Unavailable(f"the answer did not begin within {context.limits.seconds:g} seconds. Try again later.")


def new_id(prefix: str) -> str:
    """An identifier as clients expect it.

    >>> len(new_id("chatcmpl-"))
    33
    """
    return prefix + secrets.token_hex(12)


async def start_generation(request: Request, wanted: GenerationRequest) -> ServedAnswer:
    """The answer to a request, begun."""
    if wanted.messages is not None:
        check_conversation(request, wanted.messages, wanted.tools)

    def prepare(model: Model) -> list[Submission]:
        changed, detail, watch = inspected(request, model, wanted.inspection)
        if wanted.messages is None:
            runs = [changed.start(prompt, raw=True, **wanted.settings) for prompt in wanted.prompts]
            return [Submission(runs_of_texts(run, wanted.n), detail, watch, thoughts=wanted.thoughts) for run in runs]
        prompt = chat_prompt(
            model.tokenizer, wanted.messages, tools=wanted.tools, tool_choice=wanted.tool_choice,
            parallel_tool_calls=wanted.parallel_tool_calls, template=wanted.template,
        )  # fmt: skip
        run = changed.start(prompt.messages, template=prompt.template, **{**wanted.settings, **prompt.settings})
        return [Submission(runs_of_texts(run, wanted.n), detail, watch, prompt.tool_use, wanted.thoughts)]

    return await start(request, wanted.model, prepare)


def check_conversation(request: Request, messages: Sequence[Any], tools: Sequence[Any] = ()) -> None:
    """Refuse more messages or tools than this server allows."""
    limits = context_of(request).limits
    check_count("messages", messages, limits.messages)
    check_count("tools", tools, limits.tools)


def check_listed(request: Request, tokens: int) -> None:
    """Refuse to list more tokens than can be written without keeping others waiting."""
    if tokens > (most := context_of(request).limits.json_values):
        raise HttpError(400, f"the text has {tokens:,} tokens; this server lists {most:,} at most. Send it in parts.")


async def start(request: Request, model_name: str | None, prepare: Callable[[Model], list[Submission]]) -> ServedAnswer:
    """Submit what `prepare` makes of a model, and wait for the first token."""
    context = context_of(request)
    answer = ServedAnswer(request, context, await context.acquire(model_name))

    def submissions() -> list[Submission]:
        with spelled_by(request_spelling):
            return prepare(answer.model)

    try:
        answer.submit(await prepared(request, submissions), await request_salt(request))
        await answer.begin()
    except TimeoutError:
        await answer.close()
        raise _timed_out(context) from None
    except BaseException:
        await answer.close()
        raise
    return answer


def inspected(request: Request, model: Model, inspection: Inspection | None) -> tuple[Model, StepDetail, Watch | None]:
    """The model under a request's changes, what each step carries, and what its passes read and change."""
    if inspection is None:
        return model, NOTHING, None
    limits = context_of(request).limits
    inspection.check(limits)
    changed = inspection.changed(model)
    return changed, StepDetail.of(inspection.depth), inspection.watch(changed, limits)
