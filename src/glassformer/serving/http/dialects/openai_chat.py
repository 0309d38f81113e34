"""POST /v1/chat/completions, and what OpenAI's other routes share with it: fields, usage, errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from fastapi import APIRouter
from pydantic import BaseModel, Field, model_validator
from starlette.requests import Request
from starlette.responses import Response

from glassformer.decoding import Step
from glassformer.jobs.formats.openai import (
    CHAT_REFUSED,
    CHAT_SETTINGS,
    NEUTRAL,
    SAMPLING_SETTINGS,
    chat_choice,
    chat_logprobs,
    error_object,
    finish_reason,
)
from glassformer.jobs.formats.row_format import token_usage
from glassformer.runtime.request_settings import chosen_tool, template_variables
from glassformer.serving.http.answers import AnswerPiece, GenerationRequest, GrowingText, ServedAnswer, new_id
from glassformer.serving.http.context import context_of
from glassformer.serving.http.dialect import AnswerForm, RequestBody, respond
from glassformer.serving.http.errors import Dialect, Problem
from glassformer.serving.http.inspection import Inspection
from glassformer.serving.http.openapi import example_answer
from glassformer.serving.http.streaming import sse
from glassformer.serving.limits import Limits
from glassformer.text.chat.tool_calls import ContentDelta, ToolCall, ToolCallDelta

router = APIRouter(tags=["OpenAI"])
ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
COMPLETION = {
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1700000000, "model": "smollm2",
    "choices": [{"index": 0, "message": {"role": "assistant"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 30, "completion_tokens": 9, "total_tokens": 39},
}  # fmt: skip


def error_body(problem: Problem) -> dict[str, Any]:
    kind = ERROR_TYPES.get(problem.status, "server_error" if problem.status >= 500 else "invalid_request_error")
    return error_object(problem.message, kind, problem.param, problem.code)


def error_event(problem: Problem, index: int = 0) -> bytes:
    """The last event of a stream that failed; the official client raises its message."""
    return sse(error_body(problem))


DIALECT = Dialect("", error_body, error_event)  # all paths that are no other dialect's


class StreamOptions(BaseModel):
    include_usage: bool = False
    include_obfuscation: bool = False


class SamplingRequest(RequestBody):
    """What chats and completions have in common."""

    model: str
    max_tokens: int | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None  # vLLM's: go on until the limit
    glass: Inspection | None = None  # ours: what made each token

    NEUTRAL: ClassVar = NEUTRAL
    SETTINGS: ClassVar = SAMPLING_SETTINGS

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options are for a stream. Pass stream: true, or leave them out.")
        return self

    @property
    def usage_wanted(self) -> bool:
        """Whether a stream's last chunk is to count the tokens."""
        return self.stream_options is not None and self.stream_options.include_usage


class JsonSchemaFormat(BaseModel):
    name: str = ""
    description: str | None = None
    json_schema: dict[str, Any] | bool = Field(default=True, alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class CalledFunction(RequestBody):
    name: str
    arguments: str | dict[str, Any] | None = None


class MessageToolCall(RequestBody):
    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(RequestBody):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None


class FunctionDefinition(RequestBody):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatTool(RequestBody):
    type: Literal["function"] = "function"
    function: FunctionDefinition


class FunctionName(BaseModel):
    name: str


class NamedTool(BaseModel):
    type: Literal["function"] = "function"
    function: FunctionName


class ChatCompletionRequest(SamplingRequest):
    """POST /v1/chat/completions"""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: int | None = None  # the newer name of max_tokens
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[ChatTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None  # for a template that knows how to think
    chat_template_kwargs: dict[str, Any] | None = None  # vLLM's: variables of the chat template
    modalities: list[str] | None = None
    audio: Any = None
    web_search_options: Any = None
    functions: Any = None
    function_call: Any = None
    verbosity: str | None = None

    REFUSED: ClassVar = CHAT_REFUSED
    SETTINGS: ClassVar = CHAT_SETTINGS

    @model_validator(mode="after")
    def _top_logprobs_need_logprobs(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs need logprobs: true.")
        return self

    def generation(self, limits: Limits) -> GenerationRequest:
        choice = self.tool_choice.model_dump() if isinstance(self.tool_choice, NamedTool) else self.tool_choice
        return GenerationRequest(
            self.model, self.settings(limits), dumped(self.messages), n=self.n or 1, tools=dumped(self.tools),
            tool_choice=chosen_tool(choice, self.tools), parallel_tool_calls=self.parallel_tool_calls is not False,
            template=template_variables(self.chat_template_kwargs, self.reasoning_effort), inspection=self.glass,
            stream=bool(self.stream),
        )  # fmt: skip


def dumped(models: Sequence[BaseModel] | None) -> list[dict[str, Any]]:
    """Messages or tools as chat templates know them."""
    return [model.model_dump(exclude_none=True) for model in models or ()]


Sampled = TypeVar("Sampled", bound=SamplingRequest)


class ChoiceForm(AnswerForm[Sampled]):
    """What whole and streamed answers have in common: choices with a head, and a count of the tokens."""

    id_prefix: ClassVar[str]
    object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, answer: ServedAnswer, body: Sampled) -> None:
        super().__init__(answer, body)
        self.head = {
            "id": new_id(self.id_prefix), "object": self.object, "created": answer.created, "model": body.model,
        }  # fmt: skip

    def chunk(self, choices: list[dict[str, Any]], **usage: Any) -> bytes:
        tail = usage or ({"usage": None} if self.body.usage_wanted else {})
        head = {**self.head, "object": self.chunk_object, "system_fingerprint": None}
        return sse({**head, "choices": choices, **tail})

    def end(self) -> Iterator[bytes]:
        if self.body.usage_wanted:
            yield self.chunk([], usage=self.usage)
        yield sse(b"[DONE]")

    @property
    def completion_tokens(self) -> int:
        return self.answer.completion_tokens

    @property
    def usage(self) -> dict[str, Any]:
        usage = token_usage(self.answer.prompt_tokens, self.completion_tokens)
        return {**usage, "prompt_tokens_details": {"cached_tokens": self.answer.cached_tokens}}

    def ending(self, text: GrowingText) -> str:
        """Why a text ended, in OpenAI's words."""
        return finish_reason(text.finish, text.called)

    def seen_of_text(self, text: GrowingText) -> dict[str, Any]:
        """The field `glass` of a whole text, if the request has one."""
        inspection = self.body.glass
        if inspection is None:
            return {}
        steps = inspection.steps_data(self.answer.model.tokenizer, text.steps)
        return {"glass": {"steps": steps, **inspection.end_data(text.run)}}

    def seen_of_piece(self, piece: AnswerPiece) -> dict[str, Any]:
        """The field `glass` of a piece, whose steps are its text's last; with the text's end, what the whole has."""
        inspection = self.body.glass
        if inspection is None or not (piece.steps or piece.finish):
            return {}
        text = self.answer.texts[piece.index]
        steps = inspection.steps_data(self.answer.model.tokenizer, piece.steps, len(text.steps) - len(piece.steps))
        return {"glass": {"steps": steps, **({} if piece.finish is None else inspection.end_data(text.run))}}


class ChatForm(ChoiceForm[ChatCompletionRequest]):
    """Of a stream the role comes first, then pieces of content, the reason of the end, and the tokens if asked for."""

    id_prefix, object, chunk_object = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def whole(self) -> dict[str, Any]:
        choices = [
            chat_choice(index, text.message.to_dict(), self._logprobs(text.steps), self.ending(text))
            | self.seen_of_text(text)
            for index, text in enumerate(self.answer.texts)
        ]
        return {**self.head, "choices": choices, "usage": self.usage, "system_fingerprint": None}

    def start(self) -> Iterator[bytes]:
        for index in range(len(self.answer.texts)):
            yield self.chunk([_choice(index, {"role": "assistant", "content": ""})])

    def piece(self, piece: AnswerPiece) -> Iterator[bytes]:
        logprobs, choices = self._logprobs(piece.steps) if piece.steps else None, []
        for delta in piece.deltas or ((ContentDelta(""),) if logprobs is not None else ()):
            content = {"tool_calls": [_call(delta)]} if isinstance(delta, ToolCallDelta) else {"content": delta.text}
            choices.append(_choice(piece.index, content, logprobs))
            logprobs = None
        if piece.finish is not None:
            choices.append(_choice(piece.index, {}, finish=self.ending(self.answer.texts[piece.index])))
        if seen := self.seen_of_piece(piece):
            choices = choices or [_choice(piece.index, {})]
            choices[-1] |= seen
        for choice in choices:
            yield self.chunk([choice])

    def _logprobs(self, steps: Sequence[Step]) -> dict[str, Any] | None:
        """The log-probabilities of some steps, if the request asks for them."""
        count = self.body.top_logprobs or 0
        return chat_logprobs(self.answer.model.tokenizer, steps, count) if self.body.logprobs else None


def _choice(index: int, delta: dict[str, Any], logprobs: Any = None, finish: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def _call(delta: ToolCallDelta) -> dict[str, Any]:
    """A piece of a call: the first has its id and name, the others more of its arguments."""
    if delta.name is not None:
        return {"index": delta.index, **ToolCall(delta.id, delta.name, delta.arguments).to_dict()}
    return {"index": delta.index, "function": {"arguments": delta.arguments}}


@router.post("/v1/chat/completions", responses=example_answer(COMPLETION, streams=True))
async def chat_completions(request: Request, body: ChatCompletionRequest) -> Response:
    """The answer to a conversation, whole or as a stream of server-sent events."""
    return await respond(request, body, body.generation(context_of(request).limits), ChatForm)
