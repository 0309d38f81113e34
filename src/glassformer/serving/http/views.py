"""POST /glass/…: a text that is written, what is no operation by itself, and the tasks; and what all requests share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from glassformer.ground.errors import GlassError, InputError, spelled_by
from glassformer.runtime.model import Model
from glassformer.runtime.run import Run
from glassformer.see.activations import token_ids
from glassformer.see.model_description import ModelDescription
from glassformer.see.reading import Reading
from glassformer.see.receipt import Receipt
from glassformer.see.recording import CANDIDATES, Recording
from glassformer.see.trace import Trace
from glassformer.see.why import Whys
from glassformer.serving.http.answers import check_conversation
from glassformer.serving.http.context import call_in_parts, call_model, context_of
from glassformer.serving.http.dialects.openai_chat import ChatMessage
from glassformer.serving.http.errors import HttpError, Json
from glassformer.serving.http.inspection import (
    DEFAULT_CANDIDATES,
    SiteChange,
    Steering,
    blamed_on,
    changed_model,
    served_receipt,
)
from glassformer.serving.http.openapi import schema_answer, view_reference, view_response
from glassformer.serving.http.recording_stream import stream_recording
from glassformer.serving.http.settings import engine_settings, limited_settings, request_spelling
from glassformer.serving.http.view_responses import OPTIONS, ViewForm
from glassformer.serving.limits import Limits
from glassformer.tasks.registry import check_head, describe_model, find_task
from glassformer.tasks.task import json_value
from glassformer.text.chat.tool_calls import chat_prompt
from glassformer.text.prompt import PromptKeywords

router = APIRouter(tags=["glass"], prefix="/glass")
Number = Annotated[int, Field(ge=0)]
TokenId = Annotated[int, Field(strict=True)]  # checked against the vocabulary later
RUN_ANSWER = {
    "type": "object",
    "properties": {
        "text": {"type": "string"}, "whys": view_reference(Whys), "trace": view_reference(Trace),
        "receipt": view_reference(Receipt),
    },
    "required": ["text", "whys", "trace", "receipt"],
}  # fmt: skip
TASK_ANSWER = {
    "type": "object",
    "properties": {
        "task": {"type": "string"},
        "outputs": {
            "type": "array",
            "items": {"type": "object", "properties": {"output": {}, "error": {"type": "string"}}},  # one of the two
        },
    },
    "required": ["task", "outputs"],
}
Prompt: TypeAlias = str | Annotated[list[TokenId], Field(min_length=1)] | Annotated[list[ChatMessage], Field(min_length=1)]


class ModelRequest(BaseModel):
    """A model, under changes of this request's own."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: str | None = None
    change: dict[str, SiteChange] = {}
    steer: Steering = []
    raw: bool = False  # texts as they are, without the chat template
    system: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def prompt_options(self) -> PromptKeywords:
        return {"raw": self.raw, "system": self.system, "template": self.chat_template_kwargs}

    def changed(self, model: Model) -> Model:
        return changed_model(model, self.change, self.steer)


class PromptRequest(ModelRequest):
    """A prompt to look into."""

    prompt: Prompt

    def prompt_of(self, model: Model) -> Any:
        """The text, the token ids, or the conversation as the model's template takes it."""
        if isinstance(self.prompt, str):
            return self.prompt
        messages = [part.model_dump(exclude_none=True) for part in self.prompt if isinstance(part, ChatMessage)]
        return chat_prompt(model.tokenizer, messages).messages if messages else self.prompt


class ReadingRequest(PromptRequest):
    """A text to look into; after a prompt of ids, also those of what was written after it."""

    target: str | None = None  # an encoder-decoder's output
    answer_ids: list[Number] = []

    @property
    def python_reading(self) -> str:
        """What gives `reading` in Python, for `respond_with_view`."""
        return "model.read_ids(prompt, answer_ids)" if self.answer_ids else f"model.read(prompt, target, {OPTIONS})"

    def reading(self, model: Model) -> Reading:
        if not self.answer_ids:
            return model.read(self.prompt_of(model), self.target, **self.prompt_options)
        if self.target is not None:
            raise InputError("target and answer_ids are the same text twice: give one of them.")
        return model.read_ids(token_ids(self.prompt), self.answer_ids)


class TextRequest(PromptRequest):
    """A text that is to be written: the engine's settings may stand beside these fields."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None


class RecordRequest(TextRequest):
    """POST /glass/record"""

    stream: bool = False  # as server-sent events, while it is being written


class RunRequest(TextRequest):
    """POST /glass/run"""

    candidates: Annotated[int, Field(ge=1)] = DEFAULT_CANDIDATES


class DescriptionRequest(BaseModel):
    """A model, as it is."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: str | None = None


class TaskRequest(BaseModel):
    """POST /glass/task/{task}"""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: str | None = None
    inputs: list[Any]
    options: dict[str, Any] = {}


async def respond_with_view(
    request: Request, body: ModelRequest | DescriptionRequest, compute: Callable[[Model], Any], python: str = "", *,
    passes: bool = True,
) -> Json:  # fmt: skip
    """What a function makes of the request's model; `python`: the call that gives the same, as `python_line` takes it.

    `passes`: whether the model runs for it.
    """
    form = ViewForm.of(request, body, python)
    if isinstance(prompt := getattr(body, "prompt", None), list):
        check_conversation(request, [part for part in prompt if isinstance(part, ChatMessage)])

    def work(model: Model) -> dict[str, Any]:
        with spelled_by(request_spelling):
            changed = body.changed(model) if isinstance(body, ModelRequest) else model
            with blamed_on(changed.changes):
                seen = compute(changed)
                return seen if isinstance(seen, dict) else form.data(seen)

    return form.answer(await call_model(request, body.model, work, passes=passes))


def _run_settings(body: TextRequest, limits: Limits, model: Model) -> dict[str, Any]:
    """The settings of a text, within what this server allows; what it leaves out is as in Python and at the command line."""
    tokens = body.max_tokens or model.settings.default_new_tokens
    return limited_settings(
        limits, max_tokens=tokens, temperature=body.temperature, top_p=body.top_p, seed=body.seed, stop=body.stop,
        **engine_settings(body.model_extra, (), type(body).model_fields),
    )  # fmt: skip


@router.post("/run", responses=schema_answer(RUN_ANSWER))
async def run(request: Request, body: RunRequest) -> Json:
    """A text, and everything that made it: why each token was chosen, its trace, and a receipt to write it again."""
    limits = context_of(request).limits
    if body.candidates > limits.top_logprobs:
        raise HttpError(
            400, f"candidates is {body.candidates}; this server allows {limits.top_logprobs} at most.", param="candidates"
        )

    def compute(model: Model) -> dict[str, Any]:
        settings = _run_settings(body, limits, model)
        text = model.watch(body.prompt_of(model), look=body.candidates, **body.prompt_options, **settings)
        receipt = served_receipt(text)
        return {"text": text.text, "whys": text.whys.to_dict(), "trace": text.trace.to_dict(), "receipt": receipt}

    return await respond_with_view(request, body, compute)


@router.post("/record", responses=view_response(Recording, streams=True))
async def record(request: Request, body: RecordRequest) -> Response:
    """A text as a recording, which the studio explores without the model; whole or as a stream of server-sent events."""
    limits = context_of(request).limits
    if body.stream:

        def prepare(model: Model) -> Run:
            changed = body.changed(model)
            return changed.start(body.prompt_of(changed), **body.prompt_options, **_run_settings(body, limits, model))

        return await stream_recording(request, body.model, prepare)

    def compute(model: Model) -> Any:
        settings = _run_settings(body, limits, model)
        return model.watch(body.prompt_of(model), look=CANDIDATES, **body.prompt_options, **settings).recording

    return await respond_with_view(request, body, compute)


@router.post("/model", responses=view_response(ModelDescription))
async def describe(request: Request, body: DescriptionRequest) -> Json:
    """What a model is, and which tasks it is for."""
    limits = context_of(request).limits

    def compute(model: Model) -> Any:
        described = describe_model(model)
        default = described.settings.get("max_new_tokens", limits.new_tokens)
        length = {"max_new_tokens": min(default, limits.new_tokens)} if described.settings else {}
        return replace(described, settings={**described.settings, **length})

    return await respond_with_view(request, body, compute)


@router.post("/task/{task}", responses=schema_answer(TASK_ANSWER))
async def run_task(request: Request, task: str, body: TaskRequest) -> Json:
    """A task over some inputs: for each its output, or the error that it gave in place of one."""
    kind, implied = find_task(task)
    if len(body.inputs) > (most := context_of(request).limits.inputs):
        raise HttpError(400, f"inputs has {len(body.inputs)} entries; this server allows {most} at most.", param="inputs")

    def work(model: Model, inputs: Sequence[Any]) -> list[dict[str, Any]]:
        check_head(kind, model)
        with spelled_by(request_spelling):
            answers = list(kind(model, **{**implied, **body.options}).stream(inputs))
        return [{"error" if isinstance(answer, GlassError) else "output": json_value(answer)} for answer in answers]

    parts = await call_in_parts(request, body.model, body.inputs, work)
    return Json({"task": kind.name, "outputs": [output for outputs in parts for output in outputs]})
