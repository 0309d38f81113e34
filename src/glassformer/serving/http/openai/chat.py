"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from glassformer.decoding import Finish, Step
from glassformer.serving.http.answers import Answer, GrowingText, Piece, new_id, start_chat
from glassformer.serving.http.context import context_of
from glassformer.serving.http.errors import Json
from glassformer.serving.http.inspection import Inspection
from glassformer.serving.http.openai.errors import error_event
from glassformer.serving.http.openai.schemas import ChatCompletionRequest
from glassformer.serving.http.openapi import example_answer
from glassformer.serving.http.streaming import EventStream, sse
from glassformer.text import Tokenizer
from glassformer.text.chat.tool_calls import ContentDelta, ToolCall, ToolCallDelta

router = APIRouter(tags=["OpenAI"])
DONE = sse(b"[DONE]")
FINISH_REASONS = {Finish.LENGTH: "length", Finish.TIME: "length"}  # all others are "stop"


COMPLETION = {
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1700000000, "model": "smollm2",
    "choices": [{"index": 0, "message": {"role": "assistant"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 30, "completion_tokens": 9, "total_tokens": 39},
}  # fmt: skip


@router.post("/v1/chat/completions", responses=example_answer(COMPLETION, streams=True))
async def chat_completions(request: Request, body: ChatCompletionRequest) -> Response:
    """The answer to a conversation, whole or as a stream of server-sent events."""
    settings = body.settings(context_of(request).limits)
    messages = [message.model_dump(exclude_none=True) for message in body.messages]
    answer = await start_chat(
        request, body.model, messages, settings, n=body.n or 1, tools=body.tool_definitions(), tool_choice=body.choice(),
        parallel_tool_calls=body.parallel_tool_calls is not False, template=body.template_variables(),
        inspection=body.glass,
    )  # fmt: skip
    if body.stream:
        return EventStream(answer, chunks(answer, body), error_event)
    try:
        await answer.collect()
        return Json(completion(answer, body))
    finally:
        await answer.close()


def completion(answer: Answer, body: ChatCompletionRequest) -> dict[str, Any]:
    """A whole answer."""
    return {
        "id": new_id("chatcmpl-"),
        "object": "chat.completion",
        "created": answer.created,
        "model": body.model,
        "choices": [choice(number, text, answer, body) for number, text in enumerate(answer.texts)],
        "usage": usage(answer, answer.completion_tokens),
        "system_fingerprint": None,
    }


def choice(number: int, text: GrowingText, answer: Answer, body: ChatCompletionRequest) -> dict[str, Any]:
    return {
        "index": number,
        "message": text.message.to_dict(),
        "logprobs": logprobs_of(answer, body, text.steps),
        "finish_reason": finish_reason(text),
        **whole_inspection(answer, body.glass, text),
    }


async def chunks(answer: Answer, body: ChatCompletionRequest) -> AsyncGenerator[bytes]:
    """A streamed answer: the role first, then pieces of content, the reason of the end, and the tokens if asked for."""
    head = {
        "id": new_id("chatcmpl-"), "object": "chat.completion.chunk", "created": answer.created, "model": body.model,
        "system_fingerprint": None,
    }  # fmt: skip
    tail = {"usage": None} if body.usage_wanted else {}
    for number in range(len(answer.texts)):
        yield sse({**head, "choices": [delta(number, {"role": "assistant", "content": ""})], **tail})
    async for piece in answer:
        for part in chunk_choices(piece, answer, body):
            yield sse({**head, "choices": [part], **tail})
    if body.usage_wanted:
        yield sse({**head, "choices": [], "usage": usage(answer, answer.completion_tokens)})
    yield DONE


def chunk_choices(piece: Piece, answer: Answer, body: ChatCompletionRequest) -> list[dict[str, Any]]:
    """A piece as the choices of some chunks: its content and calls, and why the text ended."""
    logprobs, parts = logprobs_of(answer, body, piece.steps) if piece.steps else None, []
    for part in piece.deltas or ((ContentDelta(""),) if logprobs is not None else ()):
        content = {"content": part.text} if isinstance(part, ContentDelta) else {"tool_calls": [call_delta(part)]}
        parts.append(delta(piece.number, content, logprobs))
        logprobs = None
    if piece.finish is not None:
        parts.append(delta(piece.number, {}, finish=finish_reason(answer.texts[piece.number])))
    if seen := piece_inspection(answer, body.glass, piece):
        parts = parts or [delta(piece.number, {})]
        parts[-1] |= seen
    return parts


def call_delta(part: ToolCallDelta) -> dict[str, Any]:
    """A piece of a call: the first has its id and name, the others more of its arguments."""
    if part.name is not None:
        return {"index": part.index, **ToolCall(part.id, part.name, part.arguments).to_dict()}
    return {"index": part.index, "function": {"arguments": part.arguments}}


def delta(number: int, content: dict[str, Any], logprobs: Any = None, finish: str | None = None) -> dict[str, Any]:
    return {"index": number, "delta": content, "logprobs": logprobs, "finish_reason": finish}


def finish_reason(text: GrowingText) -> str:
    """Why a text ended, in OpenAI's words."""
    assert text.finish is not None
    return "tool_calls" if text.called else FINISH_REASONS.get(text.finish, "stop")


def whole_inspection(answer: Answer, inspection: Inspection | None, text: GrowingText) -> dict[str, Any]:
    """The field `glass` of a whole text, if the request has one."""
    if inspection is None:
        return {}
    steps = inspection.steps_data(answer.model.tokenizer, text.steps)
    return {"glass": {"steps": steps, **inspection.end_data(text.run)}}


def piece_inspection(answer: Answer, inspection: Inspection | None, piece: Piece) -> dict[str, Any]:
    """The same of a piece, whose steps are its text's last; with the text's end, what there is to see of the whole."""
    if inspection is None or not (piece.steps or piece.finish):
        return {}
    text = answer.texts[piece.number]
    steps = inspection.steps_data(answer.model.tokenizer, piece.steps, len(text.steps) - len(piece.steps))
    return {"glass": {"steps": steps, **({} if piece.finish is None else inspection.end_data(text.run))}}


def usage(answer: Answer, completion_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": answer.prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
    }


def logprobs_of(answer: Answer, body: ChatCompletionRequest, steps: Sequence[Step]) -> dict[str, Any] | None:
    """The log-probabilities of some steps, if the request asks for them."""
    return chat_logprobs(answer.model.tokenizer, steps, body.top_logprobs or 0) if body.logprobs else None


def chat_logprobs(tokenizer: Tokenizer, steps: Sequence[Step], count: int) -> dict[str, Any]:
    """The log-probability of each token and of the best few; the token that ended the text is no part of it."""
    content = [
        {
            **token_logprob(tokenizer, step.id, step.logprob),
            "top_logprobs": [token_logprob(tokenizer, *pair) for pair in best_logprobs(step, count)],
        }
        for step in steps
        if step.finish is not Finish.EOS
    ]
    return {"content": content, "refusal": None}


def best_logprobs(step: Step, count: int) -> list[tuple[int, float]]:
    """The ids that the model thought likeliest, and their log-probabilities."""
    if step.candidates is None:
        return []
    return list(zip(step.candidates.ids.tolist(), step.candidates.logprobs.tolist(), strict=True))[:count]


def token_logprob(tokenizer: Tokenizer, token: int, logprob: float | None) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token)
    return {"token": raw.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(raw)}
