"""POST /v1/completions: what follows a text, without a chat template."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from glassformer.ground.errors import SettingError
from glassformer.jobs.formats.openai import COMPLETION_REFUSED, COMPLETION_SETTINGS, CompletionLogprobs, completion_choice
from glassformer.runtime.request_settings import Settings
from glassformer.serving.http.answers import AnswerPiece, GenerationRequest, GrowingText
from glassformer.serving.http.context import context_of
from glassformer.serving.http.dialect import respond
from glassformer.serving.http.dialects.openai_chat import ChoiceForm, SamplingRequest
from glassformer.serving.http.errors import HttpError
from glassformer.serving.http.openapi import example_answer
from glassformer.serving.limits import Limits

router = APIRouter(tags=["OpenAI"])
DEFAULT_TOKENS = 16  # where a request does not say: OpenAI's own default
TokenIds = list[int]
COMPLETION = {
    "id": "cmpl-1", "object": "text_completion", "created": 1700000000, "model": "smollm2",
    "choices": [{"index": 0, "text": "I'm fine.", "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
}  # fmt: skip


def as_inputs(value: str | TokenIds | list[str] | list[TokenIds]) -> list[str | TokenIds]:
    """One text or many, one list of token ids or many, as many."""
    inputs: list[Any] = [value] if isinstance(value, str) else list(value)
    return [inputs] if inputs and isinstance(inputs[0], int) else inputs


class CompletionRequest(SamplingRequest):
    """POST /v1/completions"""

    prompt: str | TokenIds | list[str] | list[TokenIds]
    logprobs: Annotated[int, Field(ge=0)] | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None

    REFUSED: ClassVar = COMPLETION_REFUSED
    SETTINGS: ClassVar = COMPLETION_SETTINGS

    def settings(self, limits: Limits) -> Settings:
        if self.best_of not in (None, self.n or 1):
            raise SettingError(f"best_of cannot be other than n, which is {self.n or 1}. Leave it out.")
        tokens = 1 if self.prompt_alone else DEFAULT_TOKENS if self.max_tokens is None else self.max_tokens
        settings = super().settings(limits) | {"max_new_tokens": min(tokens, limits.new_tokens)}
        if self.echo and self.logprobs is not None:
            if self.stream:
                raise SettingError("a prompt's logprobs come with the whole answer. Leave stream out, or echo.")
            settings["prompt_logprobs"] = self.logprobs
        return settings

    @property
    def prompt_alone(self) -> bool:
        """Whether the prompt, with its scores or without, is all that is wanted; a token is written, and left out."""
        return bool(self.echo) and self.max_tokens == 0

    def generation(self, limits: Limits) -> GenerationRequest:
        prompts = as_inputs(self.prompt)
        if len(prompts) > limits.prompts:
            message = f"prompt has {len(prompts)} texts; this server allows {limits.prompts} at most."
            raise HttpError(400, message, param="prompt")
        if not prompts:
            raise HttpError(400, "prompt is empty. Give it a text.", param="prompt")
        return GenerationRequest(
            self.model,
            self.settings(limits),
            prompts=prompts,
            n=self.n or 1,
            inspection=self.glass,
            stream=bool(self.stream),
        )


class CompletionForm(ChoiceForm[CompletionRequest]):
    """Of a stream the prompts come first, if they are to be echoed."""

    id_prefix, object, chunk_object = "cmpl-", "text_completion", "text_completion"

    def whole(self) -> dict[str, Any]:
        choices = []
        for index, text in enumerate(self.answer.texts):
            echoed, prompt_steps = (text.run.prompt, text.prompt_steps) if self.body.echo else ("", ())
            written, steps = ("", []) if self.body.prompt_alone else (text.text, text.steps)
            logprobs = None if self.body.logprobs is None else self._new_logprobs().of([*prompt_steps, *steps])
            choice = completion_choice(index, echoed + written, logprobs, self.ending(text))
            choices.append(choice | self.seen_of_text(text))
        return {**self.head, "system_fingerprint": None, "choices": choices, "usage": self.usage}

    def start(self) -> Iterator[bytes]:
        self._logprobs = [self._new_logprobs() for _ in self.answer.texts]
        for index, text in enumerate(self.answer.texts if self.body.echo else ()):
            yield self.chunk([completion_choice(index, text.run.prompt)])

    def piece(self, piece: AnswerPiece) -> Iterator[bytes]:
        logprobs = None if self.body.logprobs is None else self._logprobs[piece.index].of(piece.steps)
        text = "" if self.body.prompt_alone else piece.text
        finish = None if piece.finish is None else self.ending(self.answer.texts[piece.index])
        seen = self.seen_of_piece(piece)
        if text or logprobs or finish or seen:
            yield self.chunk([completion_choice(piece.index, text, logprobs, finish) | seen])

    def ending(self, text: GrowingText) -> str:
        """Of no text at all, the limit is the reason of the end."""
        return "length" if self.body.prompt_alone else super().ending(text)

    @property
    def completion_tokens(self) -> int:
        return 0 if self.body.prompt_alone else super().completion_tokens

    def _new_logprobs(self) -> CompletionLogprobs:
        return CompletionLogprobs(self.answer.model.tokenizer, self.body.logprobs or 0)


@router.post("/v1/completions", responses=example_answer(COMPLETION, streams=True))
async def completions(request: Request, body: CompletionRequest) -> Response:
    """What follows each prompt, whole or as a stream of server-sent events."""
    return await respond(request, body, body.generation(context_of(request).limits), CompletionForm)
