"""POST /glass/…: what can be seen of a model and a text, as the same JSON that the files have, and the tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from glassformer.ground.errors import GlassError, InputError, spelled_by
from glassformer.observe.compare import compare
from glassformer.observe.reading import Reading
from glassformer.observe.recording import CANDIDATES
from glassformer.runtime.model import Model
from glassformer.runtime.prompt import PromptKeywords
from glassformer.runtime.run import Run
from glassformer.serving.http.answers import check_conversation, check_listed
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
from glassformer.serving.http.openapi import schema_answer, view_answer, view_reference
from glassformer.serving.http.python_lines import OPTIONS
from glassformer.serving.http.recording_stream import stream_recording
from glassformer.serving.http.settings import engine_settings, limited_settings, request_spelling
from glassformer.serving.http.view_answers import ViewForm
from glassformer.serving.limits import Limits
from glassformer.tasks.model_description import describe_model
from glassformer.tasks.registry import check_head, find_task
from glassformer.tasks.task import json_value
from glassformer.text.chat.tool_calls import chat_prompt
from glassformer.views.attention import AttentionKind, AttentionMap
from glassformer.views.attention_maps import AttentionMaps
from glassformer.views.compare_texts import TextComparison
from glassformer.views.experts import Experts
from glassformer.views.inside import Inside
from glassformer.views.journey import Journey
from glassformer.views.lens import Lens
from glassformer.views.model_description import ModelDescription
from glassformer.views.parameters import Parameters
from glassformer.views.patching import PatchedPart, Patching
from glassformer.views.receipt import Receipt
from glassformer.views.recording import Recording
from glassformer.views.tokens import TokenizedText
from glassformer.views.trace import Trace
from glassformer.views.tree import Tree
from glassformer.views.why import Whys

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
    """POST /glass/look"""

    prompt: Prompt

    def prompt_of(self, model: Model) -> Any:
        return resolve_prompt(self.prompt, model)


class ReadingRequest(PromptRequest):
    """A text to look into; after a prompt of ids, also those of what was written after it."""

    target: str | None = None  # an encoder-decoder's output
    answer_ids: list[Number] = []

    @property
    def python_reading(self) -> str:
        """What gives `reading` in Python, for `_see`."""
        return "model.read_ids(prompt, answer_ids)" if self.answer_ids else f"model.read(prompt, target, {OPTIONS})"

    def reading(self, model: Model) -> Reading:
        if not self.answer_ids:
            return model.read(self.prompt_of(model), self.target, **self.prompt_options)
        if self.target is not None:
            raise InputError("target and answer_ids are the same text twice: give one of them.")
        ids = [token for token in self.prompt if isinstance(token, int)]
        if not ids:
            raise InputError("answer_ids follow a prompt that is token ids. After a text, leave them out.")
        return model.read_ids(ids, self.answer_ids)


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


class TreeRequest(PromptRequest):
    """POST /glass/tree"""

    width: Annotated[int, Field(ge=1)] = 3
    depth: Annotated[int, Field(ge=1)] = 3


class LensRequest(ReadingRequest):
    """POST /glass/lens; `tuned` names one of this server's tuned lenses."""

    positions: list[Number | str] | None = None
    tuned: str | None = None


class AttentionRequest(ReadingRequest):
    """POST /glass/attention: a head; without one a layer's mean, without a layer all layers' mean."""

    kind: AttentionKind = "self"
    layer: Number | None = None
    head: Number | None = None


class AttentionMapsRequest(ReadingRequest):
    """POST /glass/attention-maps: every head, from a layer on"""

    kind: AttentionKind = "self"
    first: Number = 0


class ExpertsRequest(ReadingRequest):
    """POST /glass/experts"""


class InsideRequest(ReadingRequest):
    """POST /glass/inside: a level by its path, and a position of the text."""

    path: Annotated[str, Field(max_length=200)] = ""
    position: int = -1


class CompareRequest(ModelRequest):
    """POST /glass/compare: two texts in one model."""

    first: str
    second: str
    token: Number | str | None = None


class PatchRequest(CompareRequest):
    """POST /glass/patch: the first text's activations in the second's pass."""

    part: PatchedPart = "residual"
    positions: list[Number | str] | None = None
    answer: Number | str | None = None
    against: Number | str | None = None


class DescriptionRequest(BaseModel):
    """POST /glass/model"""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: str | None = None


class TokensRequest(DescriptionRequest):
    """POST /glass/tokens"""

    text: str
    special: bool = True  # with the special tokens around it that the model was trained with


class ParametersRequest(DescriptionRequest):
    """POST /glass/parameters: all of them, or those that `only` names; a histogram reads their values."""

    only: str | None = None
    histogram: bool = False


class TaskRequest(BaseModel):
    """POST /glass/task/{task}"""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: str | None = None
    inputs: list[Any]
    options: dict[str, Any] = {}


def resolve_prompt(prompt: str | Sequence[int | ChatMessage], model: Model) -> Any:
    """The text, the token ids, or the conversation as the model's template takes it."""
    if isinstance(prompt, str):
        return prompt
    messages = [part.model_dump(exclude_none=True) for part in prompt if isinstance(part, ChatMessage)]
    return chat_prompt(model.tokenizer, messages).messages if messages else prompt


async def see(request: Request, body: ModelRequest, look: Callable[[Model], Any], python: str = "") -> Json:
    """What a function makes of the request's model; `python`: the call that gives the same, as `python_line` takes it."""
    form = ViewForm.of(request, body, python)
    if isinstance(prompt := getattr(body, "prompt", None), list):
        check_conversation(request, [part for part in prompt if isinstance(part, ChatMessage)])

    def work(model: Model) -> dict[str, Any]:
        with spelled_by(request_spelling):
            changed = body.changed(model)
            with blamed_on(changed.changes):
                seen = look(changed)
                return seen if isinstance(seen, dict) else form.data(seen)

    return form.answer(await call_model(request, body.model, work))


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

    def look(model: Model) -> dict[str, Any]:
        settings = _run_settings(body, limits, model)
        text = model.watch(body.prompt_of(model), look=body.candidates, **body.prompt_options, **settings)
        receipt = served_receipt(text)
        return {"text": text.text, "whys": text.whys.to_dict(), "trace": text.trace.to_dict(), "receipt": receipt}

    return await see(request, body, look)


@router.post("/record", responses=view_answer(Recording, streams=True))
async def record(request: Request, body: RecordRequest) -> Response:
    """A text as a recording, which the studio explores without the model; whole or as a stream of server-sent events."""
    limits = context_of(request).limits
    if body.stream:

        def prepare(model: Model) -> Run:
            changed = body.changed(model)
            return changed.prepare(body.prompt_of(changed), **body.prompt_options, **_run_settings(body, limits, model))

        return await stream_recording(request, body.model, prepare)

    def look(model: Model) -> Any:
        settings = _run_settings(body, limits, model)
        return model.watch(body.prompt_of(model), look=CANDIDATES, **body.prompt_options, **settings).recording

    return await see(request, body, look)


@router.post("/look", responses=view_answer(Journey))
async def look(request: Request, body: PromptRequest) -> Json:
    """A prompt's journey to the next token: ids, shapes, scores."""
    python = f"model.look(prompt, {OPTIONS})"
    return await see(request, body, lambda model: model.look(body.prompt_of(model), **body.prompt_options), python)


@router.post("/tree", responses=view_answer(Tree))
async def tree(request: Request, body: TreeRequest) -> Json:
    """The likeliest continuations of a prompt."""

    def look(model: Model) -> Any:
        return model.tree(body.prompt_of(model), width=body.width, depth=body.depth, **body.prompt_options)

    return await see(request, body, look, f"model.tree(prompt, width=width, depth=depth, {OPTIONS})")


@router.post("/trace", responses=view_answer(Trace))
async def trace(request: Request, body: PromptRequest) -> Json:
    """What the model thought of each token of a text."""

    def look(model: Model) -> Any:
        return model.read(body.prompt_of(model), **body.prompt_options).trace()

    return await see(request, body, look, f"model.read(prompt, {OPTIONS}).trace()")


@router.post("/lens", responses=view_answer(Lens))
async def lens(request: Request, body: LensRequest) -> Json:
    """What each layer would have predicted."""

    def look(model: Model) -> Any:
        assert model.library is not None  # a server's models know no more than the operator's folders
        tuned = None if body.tuned is None else model.library.tuned_lens(body.tuned, model.load_lens)
        return body.reading(model).lens(body.positions, tuned=tuned)

    return await see(request, body, look, f"{body.python_reading}.lens(positions)")


@router.post("/attention", responses=view_answer(AttentionMap))
async def attention(request: Request, body: AttentionRequest) -> Json:
    """Who attended to whom in a text."""

    def look(model: Model) -> Any:
        return body.reading(model).attention(body.layer, body.head, kind=body.kind)

    return await see(request, body, look, f"{body.python_reading}.attention(layer, head, kind=kind)")


@router.post("/attention-maps", responses=view_answer(AttentionMaps))
async def attention_maps(request: Request, body: AttentionMapsRequest) -> Json:
    """Every head's attention in a text, a byte for each weight."""

    def look(model: Model) -> Any:
        return body.reading(model).attention_maps(body.first, kind=body.kind)

    return await see(request, body, look, f"{body.python_reading}.attention_maps(first, kind=kind)")


@router.post("/experts", responses=view_answer(Experts))
async def experts(request: Request, body: ExpertsRequest) -> Json:
    """To which experts of a mixture each token went."""
    return await see(request, body, lambda model: body.reading(model).experts(), f"{body.python_reading}.experts()")


@router.post("/inside", responses=view_answer(Inside))
async def inside(request: Request, body: InsideRequest) -> Json:
    """One level of a model with a text's numbers: a block, a head, a neuron, one dot product."""

    def look(model: Model) -> Any:
        return body.reading(model).inside(body.path, body.position)

    return await see(request, body, look, f"{body.python_reading}.inside(path, position)")


@router.post("/compare", responses=view_answer(TextComparison))
async def compare_texts(request: Request, body: CompareRequest) -> Json:
    """Where two texts part in one model, and what the same token is in each."""

    def look(model: Model) -> Any:
        first, second = (model.read(text, **body.prompt_options) for text in (body.first, body.second))
        return compare(first, second, token=body.token)

    python = f"glassformer.compare(model.read(first, {OPTIONS}), model.read(second, {OPTIONS}), token=token)"
    return await see(request, body, look, python)


@router.post("/patch", responses=view_answer(Patching))
async def patch(request: Request, body: PatchRequest) -> Json:
    """Which of the first text's activations bring its answer back in the second."""

    def look(model: Model) -> Any:
        return model.patch(
            body.first, body.second, body.part, body.positions, answer=body.answer, against=body.against,
            **body.prompt_options,
        )  # fmt: skip

    python = f"model.patch(first, second, part, positions, answer=answer, against=against, {OPTIONS})"
    return await see(request, body, look, python)


@router.post("/model", responses=view_answer(ModelDescription))
async def describe(request: Request, body: DescriptionRequest) -> Json:
    """What a model is, and which tasks it is for."""
    form, limits = ViewForm.of(request), context_of(request).limits

    def look(model: Model) -> dict[str, Any]:
        described = describe_model(model)
        own = described.settings.get("max_new_tokens", limits.new_tokens)
        length = {"max_new_tokens": min(own, limits.new_tokens)} if described.settings else {}
        return form.data(replace(described, settings={**described.settings, **length}))

    return form.answer(await call_model(request, body.model, look))


@router.post("/tokens", responses=view_answer(TokenizedText))
async def tokens(request: Request, body: TokensRequest) -> Json:
    """A text's tokens, each with its id, its bytes and its place in the text."""
    form = ViewForm.of(request, body, "model.tokens(text, special=special)")

    def look(model: Model) -> dict[str, Any]:
        check_listed(request, len(model.tokenizer(body.text)["input_ids"]))
        return form.data(model.tokens(body.text, special=body.special))

    return form.answer(await call_model(request, body.model, look, passes=False))


@router.post("/parameters", responses=view_answer(Parameters))
async def parameters(request: Request, body: ParametersRequest) -> Json:
    """A model's parameters by module; on request with a histogram of their values."""
    context = context_of(request)
    form = ViewForm.of(request, body, "model.parameters(only=only, histogram=histogram)")

    def work(model: Model) -> dict[str, Any]:
        listed = model.parameters(only=body.only)
        if not body.histogram:
            return form.data(listed)
        if listed.tree.elements > (most := context.limits.parameter_values):
            raise HttpError(
                400,
                f"a histogram of {listed.tree.elements:,} values was asked for; this server reads {most:,} at most. "
                "Name one tensor with 'only'.",
                param="only",
            )
        return form.data(model.parameters(only=body.only, histogram=True))

    return form.answer(await call_model(request, body.model, work, passes=False))  # weights are read


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
