"""Requests of Anthropic's Messages API, and what they are as a conversation with tools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from glassformer.ground.errors import InputError, SettingError
from glassformer.serving.http.settings import engine_settings, limited_settings
from glassformer.serving.limits import Limits
from glassformer.text.chat.tool_calls.messages import joined_text

NEUTRAL = (  # for the provider's own accounts and caches
    "metadata", "service_tier", "cache_control", "container", "betas", "inference_geo", "diagnostics", "speed",
    "user_profile_id", "workspace_id",
)  # fmt: skip


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


class Message(BaseModel):
    role: Literal["user", "assistant"]
    content: str | list[ContentBlock]


class TextBlock(BaseModel):
    type: Literal["text"]
    text: str


class Tool(BaseModel):
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
        """As `start_chat` takes it."""
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


class PromptRequest(BaseModel):
    """POST /v1/messages/count_tokens: what a prompt is made of."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    model: str
    messages: Annotated[list[Message], Field(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None

    def conversation(self) -> list[dict[str, Any]]:
        """The messages as chat templates know them: results of tools have a role of their own."""
        parts = [part.model_dump() for part in self.system] if isinstance(self.system, list) else self.system
        system = joined_text(parts, "system")
        messages = [{"role": "system", "content": system}] if system else []
        names: dict[str, str] = {}  # of the tools that were called, by the id of the call
        for number, message in enumerate(self.messages):
            for part in _parts(message, f"message {number}", names):
                if messages and part["role"] == messages[-1]["role"] != "tool":  # turns of one speaker are one
                    _append(messages[-1], part)
                else:
                    messages.append(part)
        return messages

    def functions(self) -> list[dict[str, Any]]:
        return [tool.as_function() for tool in self.tools or []]

    def template_variables(self) -> dict[str, Any]:
        """An answer that the request begins is continued."""
        begun = self.messages[-1].role == "assistant"
        thinking = {} if self.thinking is None else {"enable_thinking": self.thinking.type != "disabled"}
        return thinking | ({"add_generation_prompt": False, "continue_final_message": True} if begun else {})


class MessagesRequest(PromptRequest):
    """POST /v1/messages"""

    max_tokens: Annotated[int, Field(ge=1)]
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None

    def settings(self, limits: Limits) -> dict[str, Any]:
        extra = engine_settings(self.model_extra, NEUTRAL, type(self).model_fields)
        if self.output_config is not None and self.output_config.format is not None:
            extra["json_schema"] = self.output_config.format.json_schema
        if self.top_k:
            extra["top_k"] = self.top_k
        return limited_settings(
            limits, max_tokens=self.max_tokens, temperature=self.temperature, top_p=self.top_p or None,
            stop=self.stop_sequences, **extra,
        )  # fmt: skip

    @property
    def thinks(self) -> bool:
        """Whether thoughts are asked for."""
        return self.thinking is not None and self.thinking.type != "disabled"

    @property
    def choice(self) -> str:
        return "auto" if self.tool_choice is None else self.tool_choice.setting()

    @property
    def parallel(self) -> bool:
        return self.tool_choice is None or not self.tool_choice.disable_parallel_tool_use


def _parts(message: Message, where: str, names: dict[str, str]) -> Iterator[dict[str, Any]]:
    """A message as one for each of its parts: texts, calls of tools, and their results."""
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
        return
    for block in message.content:
        match block.type, message.role:
            case "text", role:
                yield {"role": role, "content": block.text}
            case (("thinking" | "redacted_thinking"), "assistant"):  # templates leave earlier thoughts out
                continue
            case "tool_use", "assistant":
                names[block.id] = block.name
                function = {"name": block.name, "arguments": block.input}
                yield {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"id": block.id, "type": "function", "function": function}],
                }
            case "tool_result", "user":
                result = joined_text(block.content, f"the result of {block.tool_use_id!r}")
                name = {"name": names[block.tool_use_id]} if block.tool_use_id in names else {}
                yield {"role": "tool", "tool_call_id": block.tool_use_id, **name, "content": result}
            case kind, role:
                raise InputError(
                    f"{where} has a block of type {kind!r}, which a {role}'s message cannot have here. Leave it out."
                )


def _append(message: dict[str, Any], part: dict[str, Any]) -> None:
    """Put a further part into a message of the same role."""
    message["content"] = "\n".join(text for text in (message["content"], part["content"]) if text)
    if "tool_calls" in part:
        message["tool_calls"] = [*message.get("tool_calls", []), *part["tool_calls"]]
