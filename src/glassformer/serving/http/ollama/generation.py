"""POST /api/chat and /api/generate: answers as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from glassformer.decoding import Finish
from glassformer.serving.http.answers import Answer, Piece, start_chat, start_completion, thoughts_of
from glassformer.serving.http.context import context_of
from glassformer.serving.http.errors import Json, to_json
from glassformer.serving.http.ollama.errors import error_line
from glassformer.serving.http.ollama.names import registry_name
from glassformer.serving.http.ollama.schemas import ChatRequest, GenerateRequest
from glassformer.serving.http.openapi import example_answer
from glassformer.serving.http.streaming import EventStream
from glassformer.text.chat.thoughts import ThoughtReader
from glassformer.text.chat.tool_calls import ContentDelta, ToolCall

router = APIRouter(tags=["Ollama"])
LINES = "application/x-ndjson"
NANOSECONDS = 1_000_000_000
EMPTY_CHAT: Mapping[str, Any] = {"message": {"role": "assistant", "content": ""}}
EMPTY_TEXT: Mapping[str, Any] = {"response": ""}


ANSWER = {"model": "smollm2", "created_at": "2024-01-01T00:00:00Z", "done": True}


@router.post("/api/chat", responses=example_answer(ANSWER, streams=True, stream_type=LINES))
async def chat(request: Request, body: ChatRequest) -> Response:
    """The answer to a conversation; without one, the model is loaded."""
    name = registry_name(request, body.model)
    if not body.messages:
        return await _load(request, name, body.model, EMPTY_CHAT)
    answer = await start_chat(
        request, name, body.conversation(), body.settings(context_of(request).limits), tools=body.functions(),
        template=body.template_variables(),
    )  # fmt: skip
    reader = thoughts_of(answer) if body.think else None
    if body.stream:
        return EventStream(answer, lines(answer, body.model, chat_delta(answer, reader), EMPTY_CHAT), error_line, LINES)
    try:
        await answer.collect()
        parsed = answer.texts[0].message
        thoughts, content = told_apart(reader, parsed.content)
        message = chat_message(content, parsed.calls, thoughts=thoughts)
        return Json({**head(body.model), "message": message, **ending(answer)})
    finally:
        await answer.close()


@router.post("/api/generate", responses=example_answer(ANSWER, streams=True, stream_type=LINES))
async def generate(request: Request, body: GenerateRequest) -> Response:
    """What follows a prompt, through the chat template unless it is raw; without one, the model is loaded."""
    name = registry_name(request, body.model)
    body.check()
    if not body.prompt:
        return await _load(request, name, body.model, EMPTY_TEXT)
    settings = body.settings(context_of(request).limits)
    if body.raw:
        answer = await start_completion(request, name, [body.prompt], settings)
    else:
        answer = await start_chat(request, name, body.conversation(), settings, template=body.template_variables())
    reader = thoughts_of(answer) if body.think else None
    if body.stream:
        return EventStream(answer, lines(answer, body.model, text_delta(reader), EMPTY_TEXT), error_line, LINES)
    try:
        await answer.collect()
        thoughts, text = told_apart(reader, answer.texts[0].text)
        return Json({**head(body.model), **text_fields(thoughts, text), **ending(answer)})
    finally:
        await answer.close()


async def _load(request: Request, name: str, model: str, empty: Mapping[str, Any]) -> Response:
    async with context_of(request).use(name):
        return Json({**head(model), **empty, "done": True, "done_reason": "load"})


async def lines(
    answer: Answer, model: str, fields: Callable[[Piece], dict[str, Any] | None], empty: Mapping[str, Any]
) -> AsyncGenerator[bytes]:
    """A streamed answer: a line for each piece that adds something, which `fields` says, and a last one that counts."""
    async for piece in answer:
        if (content := fields(piece)) is not None:
            yield to_json({**head(model), **content, "done": False}) + b"\n"
    yield to_json({**head(model), **empty, **ending(answer)}) + b"\n"


def told_apart(reader: ThoughtReader | None, text: str, *, last: bool = True) -> tuple[str, str]:
    """The thoughts in a text or a piece of it, if they are asked for, and the answer."""
    return ("", text) if reader is None else reader.feed(text, last=last)


def text_delta(reader: ThoughtReader | None = None) -> Callable[[Piece], dict[str, Any] | None]:
    """What a piece adds to a text."""

    def fields(piece: Piece) -> dict[str, Any] | None:
        thoughts, text = told_apart(reader, piece.text, last=piece.finish is not None)
        return text_fields(thoughts, text) if text or thoughts else None

    return fields


def text_fields(thoughts: str, text: str) -> dict[str, Any]:
    return {"response": text, **({"thinking": thoughts} if thoughts else {})}


def chat_delta(answer: Answer, reader: ThoughtReader | None = None) -> Callable[[Piece], dict[str, Any] | None]:
    """What a piece adds to a chat: thoughts and content as they come, calls of tools when they are whole."""
    sent = 0

    def fields(piece: Piece) -> dict[str, Any] | None:
        nonlocal sent
        content = "".join(delta.text for delta in piece.deltas if isinstance(delta, ContentDelta))
        thoughts, content = told_apart(reader, content, last=piece.finish is not None)
        calls = answer.texts[0].message.calls[sent:]
        message = chat_message(content, calls, sent, thoughts)
        sent += len(calls)
        return {"message": message} if content or calls or thoughts else None

    return fields


def chat_message(content: str, calls: tuple[ToolCall, ...] = (), first: int = 0, thoughts: str = "") -> dict[str, Any]:
    """`first`: the index of the first of these calls in the whole answer."""
    message: dict[str, Any] = {"role": "assistant", "content": content, **({"thinking": thoughts} if thoughts else {})}
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "function": {"index": index, "name": call.name, "arguments": json.loads(call.arguments)}}
            for index, call in enumerate(calls, first)
        ]
    return message


def head(model: str) -> dict[str, Any]:
    return {"model": model, "created_at": datetime.now(UTC).isoformat().replace("+00:00", "Z")}


def ending(answer: Answer) -> dict[str, Any]:
    """Why an answer ended, its tokens, and its nanoseconds."""
    text = answer.texts[0]
    first, total = (int(seconds * NANOSECONDS) for seconds in (text.run.seconds_to_first, text.run.seconds))
    return {
        "done": True,
        "done_reason": "length" if text.finish in (Finish.LENGTH, Finish.TIME) else "stop",
        "total_duration": total,
        "load_duration": 0,
        "prompt_eval_count": answer.prompt_tokens,
        "prompt_eval_duration": first,
        "eval_count": answer.completion_tokens,
        "eval_duration": total - first,
    }
