"""POST /v1/completions: what follows a text, without a chat template."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from glassformer.decoding import Finish, Step
from glassformer.serving.http.answers import Answer, GrowingText, new_id, start_completion
from glassformer.serving.http.context import context_of
from glassformer.serving.http.errors import HttpError, Json
from glassformer.serving.http.openai.chat import (
    DONE,
    best_logprobs,
    finish_reason,
    piece_inspection,
    usage,
    whole_inspection,
)
from glassformer.serving.http.openai.errors import error_event
from glassformer.serving.http.openai.schemas import CompletionRequest
from glassformer.serving.http.openapi import example_answer
from glassformer.serving.http.streaming import EventStream, sse
from glassformer.text import Tokenizer

router = APIRouter(tags=["OpenAI"])


COMPLETION = {
    "id": "cmpl-1", "object": "text_completion", "created": 1700000000, "model": "smollm2",
    "choices": [{"index": 0, "text": "I'm fine.", "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
}  # fmt: skip


@router.post("/v1/completions", responses=example_answer(COMPLETION, streams=True))
async def completions(request: Request, body: CompletionRequest) -> Response:
    """What follows each prompt, whole or as a stream of server-sent events."""
    limits, prompts = context_of(request).limits, body.prompts()
    if len(prompts) > limits.prompts:
        message = f"prompt has {len(prompts)} texts; this server allows {limits.prompts} at most."
        raise HttpError(400, message, param="prompt")
    if not prompts:
        raise HttpError(400, "prompt is empty. Give it a text.", param="prompt")
    answer = await start_completion(
        request, body.model, prompts, body.settings(limits), n=body.n or 1, inspection=body.glass
    )
    if body.stream:
        return EventStream(answer, chunks(answer, body), error_event)
    try:
        await answer.collect()
        choices = []
        for number, text in enumerate(answer.texts):
            written, written_steps = ("", ()) if body.prompt_alone else (text.text, text.steps)
            steps = [*(text.prompt_steps if body.echo else ()), *written_steps]
            content = (text.run.prompt if body.echo else "") + written
            logprobs = Logprobs(answer.model.tokenizer, body.logprobs).of(steps) if body.logprobs is not None else None
            seen = whole_inspection(answer, body.glass, text)
            choices.append({**choice(number, content, logprobs, ending(text, body)), **seen})
        return Json({**head(answer, body), "choices": choices, "usage": usage(answer, completion_tokens(answer, body))})
    finally:
        await answer.close()


async def chunks(answer: Answer, body: CompletionRequest) -> AsyncGenerator[bytes]:
    first, tail = head(answer, body), {"usage": None} if body.usage_wanted else {}
    logprobs = [Logprobs(answer.model.tokenizer, body.logprobs or 0) for _ in answer.texts]
    if body.echo:
        for number, growing in enumerate(answer.texts):
            yield sse({**first, "choices": [choice(number, growing.run.prompt)], **tail})
    async for piece in answer:
        scored = logprobs[piece.number].of(piece.steps) if body.logprobs is not None else None
        text = "" if body.prompt_alone else piece.text
        finish = None if piece.finish is None else ending(answer.texts[piece.number], body)
        seen = piece_inspection(answer, body.glass, piece)
        if text or scored or finish or seen:
            yield sse({**first, "choices": [{**choice(piece.number, text, scored, finish), **seen}], **tail})
    if body.usage_wanted:
        yield sse({**first, "choices": [], "usage": usage(answer, completion_tokens(answer, body))})
    yield DONE


def ending(text: GrowingText, body: CompletionRequest) -> str:
    """Why a text ended; of none at all, the limit is the reason."""
    return "length" if body.prompt_alone else finish_reason(text)


def completion_tokens(answer: Answer, body: CompletionRequest) -> int:
    """The tokens of the answer: one that a prompt alone was read with is no part of it."""
    return 0 if body.prompt_alone else answer.completion_tokens


def head(answer: Answer, body: CompletionRequest) -> dict[str, Any]:
    return {
        "id": new_id("cmpl-"), "object": "text_completion", "created": answer.created, "model": body.model,
        "system_fingerprint": None,
    }  # fmt: skip


def choice(number: int, text: str, logprobs: Any = None, finish: str | None = None) -> dict[str, Any]:
    return {"index": number, "text": text, "logprobs": logprobs, "finish_reason": finish}


class Logprobs:
    """The log-probabilities of a text's tokens, in this route's own form; offsets go on from piece to piece."""

    def __init__(self, tokenizer: Tokenizer, count: int) -> None:
        self.tokenizer, self.count, self.offset = tokenizer, count, 0

    def of(self, steps: Sequence[Step]) -> dict[str, Any]:
        shown = [step for step in steps if step.finish is not Finish.EOS]
        tokens = [self._text(step.id) for step in shown]
        offsets = []
        for token in tokens:
            offsets.append(self.offset)
            self.offset += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [step.logprob for step in shown],
            "top_logprobs": [None if step.logprob is None else self._best(step) for step in shown],
            "text_offset": offsets,
        }

    def _best(self, step: Step) -> dict[str, float]:
        return {self._text(token): logprob for token, logprob in best_logprobs(step, self.count)}

    def _text(self, token: int) -> str:
        return self.tokenizer.token_bytes(token).decode("utf-8", "replace")
