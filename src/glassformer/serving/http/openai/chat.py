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
from glassformer.serving.http.openai.errors import error_event
from glassformer.serving.http.openai.schemas import ChatCompletionRequest
from glassformer.serving.http.streaming import EventStream, sse
from glassformer.text import Tokenizer

router = APIRouter(tags=["OpenAI"])
DONE = sse(b"[DONE]")
FINISH_REASONS = {Finish.LENGTH: "length", Finish.TIME: "length"}  # all others are "stop"


@router.post("/v1/chat/completions")
async def chat_completions(request: Request, body: ChatCompletionRequest) -> Response:
    """The answer to a conversation, whole or as a stream of server-sent events."""
    settings = body.settings(context_of(request).limits)
    messages = [message.model_dump(exclude_none=True) for message in body.messages]
    answer = await start_chat(request, body.model, messages, settings, n=body.n or 1, template=body.template_variables())
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
        "usage": usage(answer),
        "system_fingerprint": None,
    }


def choice(number: int, text: GrowingText, answer: Answer, body: ChatCompletionRequest) -> dict[str, Any]:
    return {
        "index": number,
        "message": {"role": "assistant", "content": text.text, "refusal": None},
        "logprobs": chat_logprobs(answer.model.tokenizer, text.steps, body.top_logprobs or 0) if body.logprobs else None,
        "finish_reason": finish_reason(text.finish),
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
        yield sse({**head, "choices": [], "usage": usage(answer)})
    yield DONE


def chunk_choices(piece: Piece, answer: Answer, body: ChatCompletionRequest) -> list[dict[str, Any]]:
    """A piece as the choices of one chunk or two: its content, and why the text ended."""
    parts = []
    if piece.text or (body.logprobs and piece.steps):
        logprobs = chat_logprobs(answer.model.tokenizer, piece.steps, body.top_logprobs or 0) if body.logprobs else None
        parts.append(delta(piece.number, {"content": piece.text}, logprobs))
    if piece.finish is not None:
        parts.append(delta(piece.number, {}, finish=finish_reason(piece.finish)))
    return parts


def delta(number: int, content: dict[str, Any], logprobs: Any = None, finish: str | None = None) -> dict[str, Any]:
    return {"index": number, "delta": content, "logprobs": logprobs, "finish_reason": finish}


def finish_reason(finish: Finish | None) -> str:
    assert finish is not None
    return FINISH_REASONS.get(finish, "stop")


def usage(answer: Answer) -> dict[str, Any]:
    prompt, completed = answer.prompt_tokens, answer.completion_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completed,
        "total_tokens": prompt + completed,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
    }


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
