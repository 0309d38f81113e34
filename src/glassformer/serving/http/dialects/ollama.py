"""Ollama's POST /api/chat and /api/generate: answers as lines of JSON."""

from __future__ import annotations

import json
import math
import time
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from glassformer.ground.errors import InputError, ModelNotFound, SettingError, did_you_mean
from glassformer.jobs.formats.openai import finish_reason
from glassformer.runtime.request_settings import Refusal, Settings
from glassformer.serving.http.answers import AnswerPiece, GenerationRequest
from glassformer.serving.http.context import ServingContext, context_of
from glassformer.serving.http.dialect import AnswerForm, RequestBody, iso_time, respond
from glassformer.serving.http.errors import Dialect, Json, Problem, to_json
from glassformer.serving.http.openapi import example_answer
from glassformer.serving.http.settings import limited_settings
from glassformer.serving.limits import Limits
from glassformer.text.chat.tool_calls import ToolCall

router = APIRouter(tags=["Ollama"])
LINES = "application/x-ndjson"
NANOSECONDS = 1_000_000_000
LATEST = ":latest"  # the tag of every model here
NOT_HONOURED = Refusal("cannot be honoured. Leave it out; /api/chat takes whole conversations.", (None, "", []))
RENAMED = {"repeat_penalty": "repetition_penalty", "num_predict": "max_tokens"}
SAME = (
    "temperature", "top_k", "top_p", "min_p", "seed", "stop", "presence_penalty", "frequency_penalty", "mirostat",
    "typical_p", "mirostat_tau", "mirostat_eta",
)  # fmt: skip
WHOLE = ("max_tokens", "seed", "top_k", "mirostat")  # numbers
NEUTRAL = (  # how its own engine uses the machine
    "num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "num_keep", "numa", "low_vram", "f16_kv", "vocab_only",
    "use_mmap", "use_mlock", "logits_all", "penalize_newline",
)  # fmt: skip
ANSWER = {"model": "smollm2", "created_at": "2024-01-01T00:00:00Z", "done": True}


def error_body(problem: Problem) -> dict[str, Any]:
    return {"error": problem.message}


def error_line(problem: Problem, index: int = 0) -> bytes:
    """The last line of a stream that failed."""
    return to_json(error_body(problem)) + b"\n"


DIALECT = Dialect("/api/", error_body, error_line)


def registry_name(context: ServingContext, name: str) -> str:
    """The registry's name for a model that a client may call with a tag."""
    try:
        return context.registry.source(name).name
    except ModelNotFound:
        return context.registry.source(name.removesuffix(LATEST)).name


class OllamaFunction(BaseModel):
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class OllamaToolCall(BaseModel):
    id: str | None = None
    function: OllamaFunction


class OllamaMessage(BaseModel):
    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    images: list[Any] | None = None
    tool_calls: list[OllamaToolCall] | None = None
    tool_name: str | None = None  # of a tool's result
    tool_call_id: str | None = None


class OllamaRequest(RequestBody):
    """What chats and completions have in common."""

    model_config = ConfigDict(extra="ignore")

    model: str
    stream: bool = True
    format: Literal["", "json"] | dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    keep_alive: Any = None  # the server's own limits say how long models stay
    think: bool | str | None = None

    def settings(self, limits: Limits) -> Settings:
        self.refuse()
        options = {name: value for name, value in (self.options or {}).items() if value is not None}
        repeats_over = options.pop("repeat_last_n", -1)
        if options.get("repeat_penalty", 1) != 1 and repeats_over != -1:
            raise SettingError(f"repeat_last_n is {repeats_over}; the penalty here covers the whole text: -1.")
        if options.pop("tfs_z", 1) != 1:
            raise SettingError("tfs_z cannot be honoured. Leave it out.")
        known = (*SAME, *RENAMED, *NEUTRAL, "repeat_last_n", "tfs_z")
        for name in options:
            if name not in known:
                raise SettingError(f"there is no option {name!r}.{did_you_mean(name, known)} Leave it out.")
        settings: Settings = {RENAMED.get(name, name): value for name, value in options.items() if name not in NEUTRAL}
        for name, value in settings.items():
            _check_option(name, value)
        settings |= {name: int(settings[name]) for name in WHOLE if name in settings}
        if settings.get("max_tokens", 0) < 0:  # no limit but the server's
            del settings["max_tokens"]
        if self.format:
            settings["json_schema"] = {"type": "object"} if self.format == "json" else self.format
        return limited_settings(limits, **settings)

    @abstractmethod
    def conversation(self) -> list[dict[str, Any]]:
        """The messages as chat templates know them."""

    def generation(self, context: ServingContext) -> GenerationRequest:
        return GenerationRequest(
            registry_name(context, self.model), self.settings(context.limits), self.conversation(),
            template={} if self.think is None else {"enable_thinking": bool(self.think)}, thoughts=bool(self.think),
            stream=self.stream,
        )  # fmt: skip


class ChatRequest(OllamaRequest):
    """POST /api/chat"""

    messages: list[OllamaMessage] = Field(default_factory=list)
    tools: list[dict[str, Any]] | None = None

    def conversation(self) -> list[dict[str, Any]]:
        """A call and its result share an id by their order."""
        messages: list[dict[str, Any]] = []
        waiting: list[str] = []  # ids of calls whose results have not come yet
        for index, message in enumerate(self.messages):
            _refuse_images(message.images, f"message {index}")
            entry: dict[str, Any] = {"role": message.role, "content": message.content}
            if message.tool_calls:
                ids = [call.id or f"call{index:03d}{place:02d}" for place, call in enumerate(message.tool_calls)]
                waiting += ids
                entry["tool_calls"] = [
                    {"id": call_id, "type": "function", "function": call.function.model_dump()}
                    for call_id, call in zip(ids, message.tool_calls, strict=True)
                ]
            if message.role == "tool":
                entry["tool_call_id"] = message.tool_call_id or (waiting.pop(0) if waiting else "call00000")
                entry |= {} if message.tool_name is None else {"name": message.tool_name}
            messages.append(entry)
        return messages

    def functions(self) -> list[dict[str, Any]]:
        for tool in self.tools or []:
            function = tool.get("function")
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise InputError("a tool is {'type': 'function', 'function': {'name': …, 'parameters': …}}.")
        return self.tools or []

    def generation(self, context: ServingContext) -> GenerationRequest:
        return replace(super().generation(context), tools=self.functions())


class GenerateRequest(OllamaRequest):
    """POST /api/generate"""

    prompt: str = ""
    system: str | None = None
    raw: bool = False
    suffix: str | None = None
    template: str | None = None
    images: list[Any] | None = None
    context: list[int] | None = None

    REFUSED: ClassVar = dict.fromkeys(("suffix", "template", "context"), NOT_HONOURED)

    def refuse(self) -> None:
        _refuse_images(self.images, "the request")
        super().refuse()

    def conversation(self) -> list[dict[str, Any]]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": self.prompt}]

    def generation(self, context: ServingContext) -> GenerationRequest:
        wanted = super().generation(context)
        return replace(wanted, messages=None, prompts=[self.prompt]) if self.raw else wanted


def _check_option(name: str, value: Any) -> None:
    if name == "stop":
        if not isinstance(value, str | list) or not all(isinstance(text, str) for text in value):
            raise SettingError("the option stop is a text, or a list of texts.")
    elif isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise SettingError(f"the option {name} is {value!r}; it must be a number.")
    elif name in WHOLE and value != int(value):
        raise SettingError(f"the option {name} is {value!r}; it must be a whole number.")


def _refuse_images(images: Any, where: str) -> None:
    if images:
        raise InputError(f"{where} has images, which models here cannot read. Send text alone.")


class LinesForm(AnswerForm[OllamaRequest]):
    """A line for each piece that adds something, and a last one that counts."""

    media_type = LINES

    def whole(self) -> dict[str, Any]:
        return {**head(self.body), **self.fields(*self.answer.texts[0].parts), **self._ending}

    def piece(self, piece: AnswerPiece) -> Iterator[bytes]:
        if piece.content or piece.thoughts:
            yield self.line(self.fields(piece.thoughts, piece.content), {"done": False})

    def end(self) -> Iterator[bytes]:
        yield self.line(self.fields(), self._ending)

    def line(self, fields: dict[str, Any], ending: dict[str, Any]) -> bytes:
        return to_json({**head(self.body), **fields, **ending}) + b"\n"

    @staticmethod
    def fields(thoughts: str = "", content: str = "", calls: tuple[ToolCall, ...] = ()) -> dict[str, Any]:
        """A text, or a piece of one."""
        return {"response": content, **({"thinking": thoughts} if thoughts else {})}

    @property
    def _ending(self) -> dict[str, Any]:
        """Why the answer ended, its tokens, and its nanoseconds."""
        text = self.answer.texts[0]
        first, total = (int(seconds * NANOSECONDS) for seconds in (text.run.seconds_to_first, text.run.seconds))
        return {
            "done": True,
            "done_reason": finish_reason(text.finish),
            "total_duration": total,
            "load_duration": 0,
            "prompt_eval_count": self.answer.prompt_tokens,
            "prompt_eval_duration": first,
            "eval_count": self.answer.completion_tokens,
            "eval_duration": total - first,
        }


class ChatLinesForm(LinesForm):
    """Thoughts and content come in pieces, calls of tools when they are whole."""

    _sent = 0  # calls

    def piece(self, piece: AnswerPiece) -> Iterator[bytes]:
        calls = self.answer.texts[0].message.calls[self._sent :]
        if piece.content or piece.thoughts or calls:
            yield self.line(self.fields(piece.thoughts, piece.content, calls, self._sent), {"done": False})
            self._sent += len(calls)

    @staticmethod
    def fields(thoughts: str = "", content: str = "", calls: tuple[ToolCall, ...] = (), first: int = 0) -> dict[str, Any]:
        """A message, or a piece of one; `first`: the index of the first of these calls in the whole answer."""
        message: dict[str, Any] = {"role": "assistant", "content": content, **({"thinking": thoughts} if thoughts else {})}
        if calls:
            message["tool_calls"] = [
                {"id": call.id, "function": {"index": index, "name": call.name, "arguments": json.loads(call.arguments)}}
                for index, call in enumerate(calls, first)
            ]
        return {"message": message}


def head(body: OllamaRequest) -> dict[str, Any]:
    return {"model": body.model, "created_at": iso_time(time.time())}


@router.post("/api/chat", responses=example_answer(ANSWER, streams=True, stream_type=LINES))
async def chat(request: Request, body: ChatRequest) -> Response:
    """The answer to a conversation; without one, the model is loaded."""
    if not body.messages:
        return await _load(request, body, ChatLinesForm.fields())
    return await respond(request, body, body.generation(context_of(request)), ChatLinesForm)


@router.post("/api/generate", responses=example_answer(ANSWER, streams=True, stream_type=LINES))
async def generate(request: Request, body: GenerateRequest) -> Response:
    """What follows a prompt, through the chat template unless it is raw; without one, the model is loaded."""
    body.refuse()
    if not body.prompt:
        return await _load(request, body, LinesForm.fields())
    return await respond(request, body, body.generation(context_of(request)), LinesForm)


async def _load(request: Request, body: OllamaRequest, empty: dict[str, Any]) -> Response:
    context = context_of(request)
    async with context.use(registry_name(context, body.model)):
        return Json({**head(body), **empty, "done": True, "done_reason": "load"})
