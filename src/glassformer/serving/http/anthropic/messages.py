"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from glassformer.decoding import Finish
from glassformer.ground.errors import SettingError
from glassformer.runtime.model import Model
from glassformer.serving.http.answers import Answer, GrowingText, check_conversation, new_id, start_chat, thoughts_of
from glassformer.serving.http.anthropic.errors import error_event
from glassformer.serving.http.anthropic.schemas import MessagesRequest, PromptRequest
from glassformer.serving.http.context import call_model, context_of
from glassformer.serving.http.errors import Json
from glassformer.serving.http.openapi import example_answer
from glassformer.serving.http.streaming import EventStream, sse
from glassformer.text.chat.thoughts import OPENING, ThoughtReader
from glassformer.text.chat.tool_calls import ContentDelta, ToolCallDelta, chat_prompt

router = APIRouter(tags=["Anthropic"])


MESSAGE = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "smollm2", "content": [{"type": "text"}],
    "stop_reason": "end_turn", "usage": {"input_tokens": 30, "output_tokens": 9},
}  # fmt: skip


@router.post("/v1/messages", responses=example_answer(MESSAGE, streams=True))
async def create_message(request: Request, body: MessagesRequest) -> Response:
    """The answer to a conversation, whole or as a stream of server-sent events."""
    if body.thinking is not None and body.thinking.type == "enabled":
        await check_thinking(request, body.model)
    answer = await start_chat(
        request, body.model, body.conversation(), body.settings(context_of(request).limits), tools=body.functions(),
        tool_choice=body.choice, parallel_tool_calls=body.parallel, template=body.template_variables(),
    )  # fmt: skip
    if body.stream:
        return EventStream(answer, events(answer, body.model, body.thinks), error_event)
    try:
        await answer.collect()
        return Json(message(answer, body.model, body.thinks))
    finally:
        await answer.close()


@router.post("/v1/messages/count_tokens", responses=example_answer({"input_tokens": 30}))
async def count_tokens(request: Request, body: PromptRequest) -> Json:
    """How many tokens a request's prompt has: system, tools and the template's own words included."""
    messages, tools, template = body.conversation(), body.functions(), body.template_variables()
    check_conversation(request, messages, tools)

    def count(model: Model) -> int:
        prompt = chat_prompt(model.tokenizer, messages, tools=tools, template=template)
        return len(model.encode(prompt.messages, template=prompt.template)[1])

    return Json({"input_tokens": await call_model(request, body.model, count, passes=False)})


async def check_thinking(request: Request, model_name: str) -> None:
    """Refuse to ask a model for thoughts that has none."""
    async with context_of(request).use(model_name) as served:
        tokenizer = served.model.tokenizer
        source = tokenizer.get_chat_template() if tokenizer.chat_template else ""
        if not any(word in source for word in ("enable_thinking", OPENING)):
            raise SettingError("this model does not think: its chat template has no place for it. Leave thinking out.")


def message(answer: Answer, model: str, thinks: bool = False) -> dict[str, Any]:
    """A whole answer."""
    text = answer.texts[0]
    parsed = text.message
    content: list[dict[str, Any]] = []
    words = parsed.content
    if thinks:
        thoughts, words = thoughts_of(answer).feed(words, last=True)
        content += [{"type": "thinking", "thinking": thoughts, "signature": ""}] if thoughts else []
    content += [{"type": "text", "text": words}] if words or not parsed.calls else []
    content += [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)} for call in parsed.calls
    ]
    return {**_head(answer, model), "content": content, **_ending(text), "usage": usage(answer, answer.completion_tokens)}


async def events(answer: Answer, model: str, thinks: bool = False) -> AsyncGenerator[bytes]:
    """A streamed answer: the message's head, its blocks one after another, and its end."""
    head = {**_head(answer, model), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage(answer, 0)}
    yield _event("message_start", message=head)
    blocks = _Blocks(thoughts_of(answer) if thinks else None)
    async for piece in answer:
        for delta in piece.deltas:
            for event in blocks.add(delta):
                yield event
    for event in blocks.finish():
        yield event
    yield _event("message_delta", delta=_ending(answer.texts[0]), usage=usage(answer, answer.completion_tokens))
    yield _event("message_stop")


class _Blocks:
    """The content blocks of a stream: thoughts, a text, or a call of a tool, each opened and closed."""

    def __init__(self, thoughts: ThoughtReader | None = None) -> None:
        self._index = -1
        self._open: int | str | None = None  # the index of the open call, 'text' or 'thinking'
        self._thoughts = thoughts

    def add(self, delta: ContentDelta | ToolCallDelta) -> Iterator[bytes]:
        if isinstance(delta, ContentDelta):
            yield from self._words(*(("", delta.text) if self._thoughts is None else self._thoughts.feed(delta.text)))
            return
        if self._open != delta.index:
            if self._thoughts is not None:
                yield from self._words(*self._thoughts.feed("", last=True))
            yield from self._begin(delta.index, {"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}})
        if delta.arguments:
            yield self._delta({"type": "input_json_delta", "partial_json": delta.arguments})

    def finish(self) -> Iterator[bytes]:
        if self._thoughts is not None:
            yield from self._words(*self._thoughts.feed("", last=True))
        yield from self._close()

    def _words(self, thoughts: str, text: str) -> Iterator[bytes]:
        if thoughts:
            if self._open != "thinking":
                yield from self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            yield self._delta({"type": "thinking_delta", "thinking": thoughts})
        if text:
            if self._open != "text":
                yield from self._begin("text", {"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": text})

    def _close(self) -> Iterator[bytes]:
        if self._open is not None:
            if self._open == "thinking":
                yield self._delta({"type": "signature_delta", "signature": ""})
            self._open = None
            yield _event("content_block_stop", index=self._index)

    def _begin(self, which: int | str, block: dict[str, Any]) -> Iterator[bytes]:
        yield from self._close()
        self._open = which
        self._index += 1
        yield _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)


def _event(kind: str, **fields: Any) -> bytes:
    return sse({"type": kind, **fields}, kind)


def _head(answer: Answer, model: str) -> dict[str, Any]:
    return {"id": new_id("msg_"), "type": "message", "role": "assistant", "model": model}


def _ending(text: GrowingText) -> dict[str, Any]:
    """Why a text ended."""
    stop = text.run.stop if text.finish is Finish.STOP else None
    if text.called:
        reason = "tool_use"
    elif text.finish in (Finish.LENGTH, Finish.TIME):
        reason = "max_tokens"
    else:
        reason = "end_turn" if stop is None else "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": stop}


def usage(answer: Answer, output_tokens: int) -> dict[str, Any]:
    """What was read and written; tokens that were read before are counted by themselves."""
    cached = answer.cached_tokens
    return {
        "input_tokens": answer.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output_tokens,
    }
