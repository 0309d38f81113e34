"""/v1/responses. Nothing is kept between two requests, so each brings its whole conversation; unless the operator allows it.

Then an answer is stored, as OpenAI does it, where the request does not say otherwise, and a later request can go on from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from glassformer.ground.errors import InputError, SettingError
from glassformer.jobs.formats.openai import NEUTRAL, finish_reason
from glassformer.runtime.request_settings import Refusal, Settings, response_schema, template_variables, unless_zero
from glassformer.serving.http.answers import Delta, GenerationRequest, ServedAnswer, new_id
from glassformer.serving.http.context import ResponseStore, StoredResponse, context_of
from glassformer.serving.http.dialect import BlockForm, ConversationBuilder, RequestBody, emptied, respond
from glassformer.serving.http.dialects.openai_chat import error_body
from glassformer.serving.http.dialects.openai_files import page_of
from glassformer.serving.http.errors import Dialect, HttpError, Json, Problem
from glassformer.serving.http.openapi import example_answer
from glassformer.serving.http.streaming import sse
from glassformer.serving.limits import Limits
from glassformer.text.chat.tool_calls import ContentDelta, ToolCallDelta

router = APIRouter(tags=["OpenAI"])
NOT_STORED = "nothing is kept between requests."
STATELESS = Refusal(f"cannot be honoured: {NOT_STORED} Send the whole conversation as input.")
TEXT_PARTS = ("input_text", "output_text", "text")
RESPONSE = {
    "id": "resp_1", "object": "response", "created_at": 1700000000, "model": "smollm2", "status": "completed",
    "output": [{"type": "message"}], "usage": {"input_tokens": 30, "output_tokens": 9, "total_tokens": 39},
}  # fmt: skip


def error_event(problem: Problem, index: int) -> bytes:
    """The last event, with its index in the stream."""
    error = {"code": problem.code, "message": problem.message, "param": problem.param}
    return sse({"type": "error", "sequence_number": index, **error}, "error")


DIALECT = Dialect("/v1/responses", error_body, error_event)


class FunctionTool(BaseModel):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def as_function(self) -> dict[str, Any]:
        return {"type": "function", "function": self.model_dump(exclude={"type", "strict"}, exclude_none=True)}


class ChosenFunction(BaseModel):
    type: Literal["function"]
    name: str


class TextFormat(BaseModel):
    model_config = ConfigDict(protected_namespaces=())

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextOptions(BaseModel):
    format: TextFormat = Field(default_factory=TextFormat)
    verbosity: str | None = None


def text_settings(text: Mapping[str, Any]) -> Settings:
    """The settings of the field `text`."""
    wanted = text["format"]
    if wanted["type"] == "json_schema" and wanted["schema"] is None:
        raise SettingError("text.format of type json_schema needs a schema.")
    return {"json_schema": response_schema({**wanted, "json_schema": wanted})}


class Reasoning(BaseModel):
    model_config = ConfigDict(extra="allow")

    effort: str | None = None


class ResponsesRequest(RequestBody):
    """POST /v1/responses"""

    model: str
    input: str | Annotated[list[dict[str, Any]], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenFunction | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    stream: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    conversation: Any = None
    background: bool | None = None
    prompt: Any = None
    top_logprobs: int | None = None

    NEUTRAL: ClassVar = (*NEUTRAL, "include", "max_tool_calls", "stream_options", "prompt_cache_options")
    REFUSED: ClassVar = {
        "conversation": STATELESS,
        "prompt": STATELESS,
        "background": Refusal("cannot be honoured: answers come with their requests. Leave it out."),
        "top_logprobs": Refusal("cannot be honoured: ask /v1/chat/completions for log-probabilities."),
        "truncation": Refusal("cannot be 'auto': a prompt that does not fit is refused. Leave it out.", (None, "disabled")),
    }
    SETTINGS: ClassVar = {
        "max_output_tokens": "max_tokens",
        "temperature": "temperature",
        "top_p": unless_zero("top_p"),
        "text": text_settings,
    }

    def items(self) -> list[dict[str, Any]]:
        return [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input

    def messages(self, before: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
        """The input as messages, those of calls and their results included, after those `before` it."""
        conversation = ConversationBuilder(before)
        for index, item in enumerate(self.items()):
            _add_item(conversation, item, f"input item {index}")
        return conversation.messages

    @property
    def choice(self) -> str:
        return self.tool_choice.name if isinstance(self.tool_choice, ChosenFunction) else self.tool_choice or "auto"

    def generation(self, limits: Limits, messages: Sequence[Mapping[str, Any]]) -> GenerationRequest:
        """What it asks for, after these messages."""
        instructions = [{"role": "system", "content": self.instructions}] if self.instructions else []
        return GenerationRequest(
            self.model, self.settings(limits), [*instructions, *messages],
            tools=[tool.as_function() for tool in self.tools or ()], tool_choice=self.choice,
            parallel_tool_calls=self.parallel_tool_calls is not False,
            template=template_variables(reasoning_effort=None if self.reasoning is None else self.reasoning.effort),
            stream=bool(self.stream),
        )  # fmt: skip


def _add_item(conversation: ConversationBuilder, item: Mapping[str, Any], where: str) -> None:
    """Put an item of the input behind the messages before it."""
    match item.get("type", "message"):
        case "message":
            role = item.get("role")
            if role not in ("system", "developer", "user", "assistant"):
                raise InputError(f"{where} has the role {role!r}. Use 'system', 'developer', 'user' or 'assistant'.")
            conversation.say(role, _content(item.get("content"), where))
        case "function_call":
            name, arguments, call_id = (_text(item, field, where) for field in ("name", "arguments", "call_id"))
            conversation.call(call_id, name, arguments)
        case "function_call_output":
            conversation.give_result(_text(item, "call_id", where), _content(item.get("output"), where))
        case "reasoning":  # templates leave earlier thoughts out
            pass
        case kind:
            raise InputError(f"{where} is of type {kind!r}, which cannot be honoured. Leave it out.")


def _text(item: Mapping[str, Any], name: str, where: str) -> str:
    if not isinstance(text := item.get(name), str):
        raise InputError(f"{where} has no text as its {name!r}. Add one.")
    return text


def _content(content: Any, where: str) -> Any:
    """A text, or parts of text as messages have them."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, Mapping) for part in content):
        raise InputError(f"{where} has no content that is a text or a list of parts.")
    return [{**part, "type": "text"} if part.get("type") in TEXT_PARTS else part for part in content]


@router.post("/v1/responses", responses=example_answer(RESPONSE, streams=True))
async def create_response(request: Request, body: ResponsesRequest) -> Response:
    """The answer to an input, whole or as a stream of server-sent events."""
    context = context_of(request)
    conversation = StoredConversation(body, context.responses)
    wanted = body.generation(context.limits, conversation.messages)
    return await respond(request, body, wanted, partial(ResponseForm, conversation=conversation))


@router.get("/v1/responses/{response_id}", responses=example_answer(RESPONSE))
async def show_response(request: Request, response_id: str) -> Json:
    """A response that is stored."""
    return Json(_store_of(request).get(response_id).body)


@router.get("/v1/responses/{response_id}/input_items", responses=example_answer({"object": "list", "data": [{}]}))
async def list_input(request: Request, response_id: str) -> Json:
    """What it answers."""
    items = _store_of(request).get(response_id).items
    data = [{"type": "message", **item, "id": item.get("id") or f"item_{index}"} for index, item in enumerate(items)]
    return Json(page_of(data))


@router.delete("/v1/responses/{response_id}", responses=example_answer({"id": "resp_1", "deleted": True}))
async def delete_response(request: Request, response_id: str) -> Json:
    """Forget it."""
    _store_of(request).delete(response_id)
    return Json({"id": response_id, "object": "response.deleted", "deleted": True})


def _store_of(request: Request) -> ResponseStore:
    if (store := context_of(request).responses) is None:
        raise HttpError(404, f"{NOT_STORED} Start the server with --store-responses.", code="not_found")
    return store


class StoredConversation:
    """What a request goes on from, and what is kept of it."""

    def __init__(self, body: ResponsesRequest, store: ResponseStore | None) -> None:
        self._body, self._store = body, None if body.store is False else store
        before: Sequence[dict[str, Any]] = ()
        if body.previous_response_id is not None:
            if store is None:
                raise SettingError(
                    f"previous_response_id cannot be honoured: {NOT_STORED} Send the whole conversation as input, or start "
                    "the server with --store-responses."
                )
            before = store.get(body.previous_response_id).messages
        self.messages = body.messages(before)

    @property
    def kept(self) -> bool:
        return self._store is not None

    def keep(self, response: dict[str, Any], answer: ServedAnswer) -> dict[str, Any]:
        """The response, which is stored if it is to be."""
        response = {**response, "store": self.kept}
        if self._store is not None:
            messages = [*self.messages, answer.texts[0].message.to_dict()]
            self._store.add(StoredResponse(response, self._body.items(), messages))
        return response


def text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class ResponseForm(BlockForm[ResponsesRequest]):
    """Output items, which grow in a stream; each event is numbered."""

    def __init__(self, answer: ServedAnswer, body: ResponsesRequest, conversation: StoredConversation) -> None:
        super().__init__(answer, body)
        self._id, self._conversation = new_id("resp_"), conversation
        self._output: list[dict[str, Any]] = []
        self._number = 0

    def whole(self) -> dict[str, Any]:
        self._output = self.blocks()
        return self._kept()

    def start(self) -> Iterator[bytes]:
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self._response("in_progress"))

    def end(self) -> Iterator[bytes]:
        if not self._output:
            yield from self.add(ContentDelta(""))
        yield from self.close(last=True)
        yield self._event(f"response.{self._status}", response=self._kept())

    def failed(self, problem: Problem) -> bytes:
        error = {"code": problem.code or "server_error", "message": problem.message}
        failed = {**self._response("failed"), "error": error}
        return self._event("response.failed", response=failed) + error_event(problem, self._number)

    def block(self, delta: Delta) -> dict[str, Any]:
        if isinstance(delta, ToolCallDelta):
            return {
                "type": "function_call", "id": new_id("fc_"), "call_id": delta.id, "name": delta.name or "",
                "arguments": delta.arguments, "status": "completed",
            }  # fmt: skip
        return {
            "type": "message", "id": new_id("msg_"), "status": self._status, "role": "assistant",
            "content": [text_part(delta.text)],
        }  # fmt: skip

    def opened(self, delta: Delta) -> Iterator[bytes]:
        item = {**self.block(emptied(delta)), "status": "in_progress"}
        self._output.append(item)
        shown = item if isinstance(delta, ToolCallDelta) else {**item, "content": []}
        yield self._event("response.output_item.added", output_index=len(self._output) - 1, item=shown)
        if item["type"] == "message":
            yield self._event("response.content_part.added", **self._place, content_index=0, part=text_part(""))

    def grown(self, delta: Delta) -> Iterator[bytes]:
        item = self._output[-1]
        if isinstance(delta, ToolCallDelta):
            item["arguments"] += delta.arguments
            if delta.arguments:
                yield self._event("response.function_call_arguments.delta", **self._place, delta=delta.arguments)
        elif delta.text:
            item["content"][0]["text"] += delta.text
            yield self._event("response.output_text.delta", **self._place, content_index=0, delta=delta.text, logprobs=[])

    def closed(self, last: bool) -> Iterator[bytes]:
        item = self._output[-1]
        item["status"] = self._status if last and not self.answer.texts[0].called else "completed"
        if item["type"] == "function_call":
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield self._event("response.function_call_arguments.done", **self._place, **done)
        else:
            part = item["content"][0]
            yield self._event("response.output_text.done", **self._place, content_index=0, text=part["text"], logprobs=[])
            yield self._event("response.content_part.done", **self._place, content_index=0, part=part)
        yield self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}

    @property
    def _status(self) -> str:
        return "incomplete" if finish_reason(self.answer.texts[0].finish) == "length" else "completed"

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = sse({"type": kind, "sequence_number": self._number, **fields}, kind)
        self._number += 1
        return event

    def _kept(self) -> dict[str, Any]:
        return self._conversation.keep(self._response(self._status), self.answer)

    def _response(self, status: str) -> dict[str, Any]:
        """A response object, finished or not."""
        body, answer = self.body, self.answer
        choice = body.tool_choice.model_dump() if isinstance(body.tool_choice, ChosenFunction) else body.choice
        text = TextOptions() if body.text is None else body.text
        usage = {
            "input_tokens": answer.prompt_tokens,
            "input_tokens_details": {"cached_tokens": answer.cached_tokens},
            "output_tokens": answer.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        }
        return {
            "id": self._id,
            "object": "response",
            "created_at": answer.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": (body.model_extra or {}).get("metadata") or {},
            "model": body.model,
            "output": [*self._output],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": None if body.reasoning is None else body.reasoning.effort, "summary": None},
            "store": self._conversation.kept,
            "temperature": body.temperature,
            "text": text.model_dump(by_alias=True, exclude_none=True),
            "tool_choice": choice,
            "tools": [tool.model_dump() for tool in body.tools or []],
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": None if status == "in_progress" else usage,
        }
