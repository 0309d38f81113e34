"""Requests of Ollama's API, and what they are as a conversation with settings."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from glassformer.ground.errors import InputError, SettingError, did_you_mean
from glassformer.serving.http.errors import HttpError
from glassformer.serving.http.settings import limited_settings
from glassformer.serving.limits import Limits

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


class Function(BaseModel):
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class ToolCall(BaseModel):
    id: str | None = None
    function: Function


class Message(BaseModel):
    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    images: list[Any] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None  # of a tool's result
    tool_call_id: str | None = None


class OllamaRequest(BaseModel):
    """What chats and completions have in common."""

    model_config = ConfigDict(extra="ignore")

    model: str
    stream: bool = True
    format: Literal["", "json"] | dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    keep_alive: Any = None  # the server's own limits say how long models stay
    think: bool | str | None = None

    def settings(self, limits: Limits) -> dict[str, Any]:
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
        settings = {RENAMED.get(name, name): value for name, value in options.items() if name not in NEUTRAL}
        for name, value in settings.items():
            _check_option(name, value)
        settings |= {name: int(settings[name]) for name in WHOLE if name in settings}
        if settings.get("max_tokens", 0) < 0:  # no limit but the server's
            del settings["max_tokens"]
        if self.format:
            settings["json_schema"] = {"type": "object"} if self.format == "json" else self.format
        return limited_settings(limits, **settings)

    def template_variables(self) -> dict[str, Any]:
        return {} if self.think is None else {"enable_thinking": bool(self.think)}


class ChatRequest(OllamaRequest):
    """POST /api/chat"""

    messages: list[Message] = Field(default_factory=list)
    tools: list[dict[str, Any]] | None = None

    def conversation(self) -> list[dict[str, Any]]:
        """The messages as chat templates know them; a call and its result share an id by their order."""
        messages: list[dict[str, Any]] = []
        waiting: list[str] = []  # ids of calls whose results have not come yet
        for number, message in enumerate(self.messages):
            _refuse_images(message.images, f"message {number}")
            entry: dict[str, Any] = {"role": message.role, "content": message.content}
            if message.tool_calls:
                ids = [call.id or f"call{number:03d}{at:02d}" for at, call in enumerate(message.tool_calls)]
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
        return list(self.tools or [])


class GenerateRequest(OllamaRequest):
    """POST /api/generate"""

    prompt: str = ""
    system: str | None = None
    raw: bool = False
    suffix: str | None = None
    template: str | None = None
    images: list[Any] | None = None
    context: list[int] | None = None

    def check(self) -> None:
        """Refuse what would change the answer and is not here."""
        _refuse_images(self.images, "the request")
        for name in ("suffix", "template", "context"):
            if getattr(self, name):
                raise SettingError(f"{name} cannot be honoured. Leave it out; /api/chat takes whole conversations.")

    def conversation(self) -> list[dict[str, Any]]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": self.prompt}]


class NamedModelRequest(BaseModel):
    """What names a model, by either name of the field."""

    model: str = ""
    name: str = ""  # the older

    @property
    def named(self) -> str:
        if not (self.model or self.name):
            raise HttpError(400, "model is missing. Name one of GET /api/tags.", param="model")
        return self.model or self.name


class ShowRequest(NamedModelRequest):
    """POST /api/show"""

    verbose: bool = False


class PullRequest(NamedModelRequest):
    """POST /api/pull"""

    stream: bool = True
    insecure: bool = False  # no other registry is asked than the catalogue's own and the hub


class DeleteRequest(NamedModelRequest):
    """DELETE /api/delete"""


class CopyRequest(BaseModel):
    """POST /api/copy"""

    source: str
    destination: Annotated[str, Field(pattern=r"^\w[\w.-]*(/\w[\w.-]*)*(:[\w.-]+)?$", max_length=128)]


class EmbedRequest(BaseModel):
    """POST /api/embed"""

    model: str
    input: str | Annotated[list[str], Field(min_length=1)]
    truncate: bool = True
    dimensions: Annotated[int, Field(ge=1)] | None = None
    options: dict[str, Any] | None = None
    keep_alive: Any = None


class EmbeddingsRequest(BaseModel):
    """POST /api/embeddings, the older form: one text."""

    model: str
    prompt: str = ""
    options: dict[str, Any] | None = None
    keep_alive: Any = None


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
