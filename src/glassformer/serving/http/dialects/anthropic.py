"""Anthropic's Messages API: POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from glassformer.decoding import Finish
from glassformer.ground.errors import InputError, SettingError
from glassformer.runtime.model import Model
from glassformer.runtime.request_settings import unless_zero
from glassformer.serving.http.answers import (
    Delta,
    GenerationRequest,
    ThoughtDelta,
    check_conversation,
    new_id,
)
from glassformer.serving.http.context import call_model, context_of
from glassformer.serving.http.dialect import BlockForm, ConversationBuilder, RequestBody, emptied, respond
from glassformer.serving.http.errors import Dialect, Json, Problem
from glassformer.serving.http.openapi import example_answer
from glassformer.serving.http.streaming import sse
from glassformer.serving.limits import Limits
from glassformer.text.chat.tool_calls import ContentDelta, ToolCallDelta, chat_prompt
from glassformer.text.chat.tool_calls.prompt import joined_text
from glassformer.text.streaming import OPENING

router = APIRouter(tags=["Anthropic"])
ERROR_TYPES = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 503: "overloaded_error",
}  # fmt: skip
MESSAGE = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "smollm2", "content": [{"type": "text"}],
    "stop_reason": "end_turn", "usage": {"input_tokens": 30, "output_tokens": 9},
}  # fmt: skip


DELTAS: Mapping[type[Delta], tuple[str, str]] = {  # what a block grows by, and the field that has it
    ThoughtDelta: ("thinking_delta", "thinking"),
    ContentDelta: ("text_delta", "text"),
    ToolCallDelta: ("input_json_delta", "partial_json"),
}


def error_body(problem: Problem) -> dict[str, Any]:
    kind = ERROR_TYPES.get(problem.status, "api_error" if problem.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": problem.message}}


def error_event(problem: Problem, index: int = 0) -> bytes:
    """The last event of a stream that failed."""
    return sse(error_body(problem), "error")


DIALECT = Dialect("/v1/messages", error_body, error_event)


class ContentBlock(BaseModel):
    """Of every type; which fields it has depends on that."""

    model_config = ConfigDict(extra="allow")

    type: str
    text: str = ""
    id: str = ""  # of a tool_use
    name: str = ""
    input: dict[str, Any] = Field(default_factory=dict)
    tool_use_id: str = ""  # of a tool_result
    content: str | list[dict[str, Any]] | None = None
    is_error: bool | None = None


class AnthropicMessage(BaseModel):
    role: Literal["user", "assistant"]
    content: str | list[ContentBlock]


class TextBlock(BaseModel):
    type: Literal["text"]
    text: str


class AnthropicTool(BaseModel):
    """A tool of the client's; those that run at the provider are of other types, and not here."""

    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any]

    def as_function(self) -> dict[str, Any]:
        description = {} if self.description is None else {"description": self.description}
        return {"type": "function", "function": {"name": self.name, **description, "parameters": self.input_schema}}


class ToolChoice(BaseModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False

    def setting(self) -> str:
        """As `chat_prompt` takes it."""
        if self.type == "tool" and not self.name:
            raise SettingError("tool_choice of type tool needs the name of one.")
        return {"any": "required", "tool": self.name or ""}.get(self.type, self.type)


class Thinking(BaseModel):
    """Whether the model is to think before it answers; `max_tokens` bounds thoughts and answer together."""

    model_config = ConfigDict(extra="allow")

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Annotated[int, Field(ge=1)] | None = None


class OutputFormat(BaseModel):
    model_config = ConfigDict(protected_namespaces=())

    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(BaseModel):
    effort: str | None = None
    format: OutputFormat | None = None


class CountedRequest(RequestBody):
    """POST /v1/messages/count_tokens: what a prompt is made of."""

    model: str
    messages: Annotated[list[AnthropicMessage], Field(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None

    def conversation(self) -> list[dict[str, Any]]:
        """The messages as chat templates know them: results of tools have a role of their own."""
        parts = [part.model_dump() for part in self.system] if isinstance(self.system, list) else self.system
        system = joined_text(parts, "system")
        conversation = ConversationBuilder([{"role": "system", "content": system}] if system else ())
        for index, message in enumerate(self.messages):
            _add_message(conversation, message, f"message {index}")
        return conversation.messages

    def functions(self) -> list[dict[str, Any]]:
        return [tool.as_function() for tool in self.tools or []]

    def template_variables(self) -> dict[str, Any]:
        """An answer that the request begins is continued."""
        begun = self.messages[-1].role == "assistant"
        thinking = {} if self.thinking is None else {"enable_thinking": self.thinking.type != "disabled"}
        return thinking | ({"add_generation_prompt": False, "continue_final_message": True} if begun else {})


class MessagesRequest(CountedRequest):
    """POST /v1/messages"""

    max_tokens: Annotated[int, Field(ge=1)]
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None

    NEUTRAL: ClassVar = (  # for the provider's own accounts and caches
        "metadata", "service_tier", "cache_control", "container", "betas", "inference_geo", "diagnostics", "speed",
        "user_profile_id", "workspace_id",
    )  # fmt: skip
    SETTINGS: ClassVar = {
        "max_tokens": "max_tokens",
        "temperature": "temperature",
        "top_p": unless_zero("top_p"),
        "top_k": unless_zero("top_k"),
        "stop_sequences": "stop",
        "output_config": lambda config: {"json_schema": config["format"] and config["format"]["schema"]},
    }

    def generation(self, limits: Limits) -> GenerationRequest:
        choice = self.tool_choice or ToolChoice(type="auto")
        return GenerationRequest(
            self.model, self.settings(limits), self.conversation(), tools=self.functions(), tool_choice=choice.setting(),
            parallel_tool_calls=not choice.disable_parallel_tool_use, template=self.template_variables(),
            thoughts=self.thinking is not None and self.thinking.type != "disabled", stream=bool(self.stream),
        )  # fmt: skip


def _add_message(conversation: ConversationBuilder, message: AnthropicMessage, where: str) -> None:
    """Put a message's texts, calls of tools and their results behind the messages before it."""
    if isinstance(message.content, str):
        _say(conversation, message.role, message.content)
        return
    for block in message.content:
        match block.type, message.role:
            case "text", role:
                _say(conversation, role, block.text)
            case (("thinking" | "redacted_thinking"), "assistant"):  # templates leave earlier thoughts out
                continue
            case "tool_use", "assistant":
                conversation.call(block.id, block.name, block.input)
            case "tool_result", "user":
                result = joined_text(block.content, f"the result of {block.tool_use_id!r}")
                conversation.give_result(block.tool_use_id, result)
            case kind, role:
                raise InputError(
                    f"{where} has a block of type {kind!r}, which a {role}'s message cannot have here. Leave it out."
                )


def _say(conversation: ConversationBuilder, role: str, text: str) -> None:
    """Turns of one speaker are one."""
    last = conversation.messages[-1] if conversation.messages else {}
    if last.get("role") == role:
        last["content"] = "\n".join(each for each in (last["content"], text) if each)
    else:
        conversation.say(role, text)


class MessageForm(BlockForm[MessagesRequest]):
    """Of a stream the message's head comes first, then its blocks one after another, and its end."""

    _index = -1  # of the block

    def whole(self) -> dict[str, Any]:
        usage = self._usage(self.answer.completion_tokens)
        return {**self._head, "content": self.blocks(), **self._ending, "usage": usage}

    def start(self) -> Iterator[bytes]:
        empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": self._usage(0)}
        yield _event("message_start", message={**self._head, **empty})

    def end(self) -> Iterator[bytes]:
        yield from self.close()
        yield _event("message_delta", delta=self._ending, usage=self._usage(self.answer.completion_tokens))
        yield _event("message_stop")

    def block(self, delta: Delta) -> dict[str, Any]:
        match delta:
            case ThoughtDelta(text):
                return {"type": "thinking", "thinking": text, "signature": ""}
            case ContentDelta(text):
                return {"type": "text", "text": text}
            case ToolCallDelta():
                return {"type": "tool_use", "id": delta.id, "name": delta.name, "input": json.loads(delta.arguments or "{}")}

    def opened(self, delta: Delta) -> Iterator[bytes]:
        self._index += 1
        yield _event("content_block_start", index=self._index, content_block=self.block(emptied(delta)))

    def grown(self, delta: Delta) -> Iterator[bytes]:
        kind, name = DELTAS[type(delta)]
        if piece := delta.arguments if isinstance(delta, ToolCallDelta) else delta.text:
            yield self._delta(kind, **{name: piece})

    def closed(self, last: bool) -> Iterator[bytes]:
        if self._open is ThoughtDelta:
            yield self._delta("signature_delta", signature="")
        yield _event("content_block_stop", index=self._index)

    def _delta(self, kind: str, **fields: Any) -> bytes:
        return _event("content_block_delta", index=self._index, delta={"type": kind, **fields})

    @property
    def _head(self) -> dict[str, Any]:
        return {"id": new_id("msg_"), "type": "message", "role": "assistant", "model": self.body.model}

    @property
    def _ending(self) -> dict[str, Any]:
        """Why the text ended."""
        text = self.answer.texts[0]
        stop = text.run.stop if text.finish is Finish.STOP else None
        if text.called:
            reason = "tool_use"
        elif text.finish in (Finish.LENGTH, Finish.TIME):
            reason = "max_tokens"
        else:
            reason = "end_turn" if stop is None else "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": stop}

    def _usage(self, output_tokens: int) -> dict[str, Any]:
        """What was read and written; tokens that were read before are counted by themselves."""
        cached = self.answer.cached_tokens
        return {
            "input_tokens": self.answer.prompt_tokens - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": output_tokens,
        }


def _event(kind: str, **fields: Any) -> bytes:
    return sse({"type": kind, **fields}, kind)


@router.post("/v1/messages", responses=example_answer(MESSAGE, streams=True))
async def create_message(request: Request, body: MessagesRequest) -> Response:
    """The answer to a conversation, whole or as a stream of server-sent events."""
    if body.thinking is not None and body.thinking.type == "enabled":
        await check_thinking(request, body.model)
    return await respond(request, body, body.generation(context_of(request).limits), MessageForm)


@router.post("/v1/messages/count_tokens", responses=example_answer({"input_tokens": 30}))
async def count_tokens(request: Request, body: CountedRequest) -> Json:
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
