"""Requests of OpenAI's API, as far as they are honoured.

A field that would change the answer and cannot be honoured is refused; one that changes nothing here is ignored
(`NEUTRAL`). The engine's other settings (`settings.ENGINE_SETTINGS`) may stand beside OpenAI's own.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from glassformer.ground.errors import SettingError
from glassformer.runtime.request_settings import chosen_tool, response_schema, template_variables
from glassformer.serving.http.inspection import Inspection
from glassformer.serving.http.settings import engine_settings, limited_settings
from glassformer.serving.limits import Limits

NEUTRAL = (  # for the provider's own accounts and caches, or for speed alone
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "prediction",
)  # fmt: skip
LEGACY_TOKENS = 16  # of a completion, where a request does not say: OpenAI's own default
TokenIds = list[int]


class ApiRequest(BaseModel):
    """A request's body; fields that it does not have are kept, to be taken as settings or refused."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    def refuse(self, *names: str, reason: str) -> None:
        """Refuse a field that is set to more than nothing."""
        for name in names:
            if getattr(self, name, None) not in (None, [], {}, False):
                raise SettingError(f"{name} cannot be honoured: {reason}")


def as_inputs(value: str | TokenIds | list[str] | list[TokenIds]) -> list[str | TokenIds]:
    """One text or many, one list of token ids or many, as many."""
    inputs: list[Any] = [value] if isinstance(value, str) else list(value)
    return [inputs] if inputs and isinstance(inputs[0], int) else inputs


class StreamOptions(BaseModel):
    include_usage: bool = False
    include_obfuscation: bool = False


class SamplingRequest(ApiRequest):
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

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options are for a stream. Pass stream: true, or leave them out.")
        return self

    @property
    def usage_wanted(self) -> bool:
        """Whether a stream's last chunk is to count the tokens."""
        return self.stream_options is not None and self.stream_options.include_usage

    def common_settings(self, limits: Limits, *, max_tokens: int | None, **more: Any) -> dict[str, Any]:
        extra = engine_settings(self.model_extra, NEUTRAL, type(self).model_fields)
        if self.ignore_eos:
            extra["eos_token_id"] = []
        return limited_settings(
            limits, max_tokens=max_tokens, temperature=self.temperature, top_p=self.top_p or None, n=self.n or 1,
            seed=self.seed, stop=self.stop, frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty, logit_bias=self.logit_bias, **{**extra, **more},
        )  # fmt: skip


class JsonSchemaFormat(BaseModel):
    name: str = ""
    description: str | None = None
    json_schema: dict[str, Any] | bool = Field(default=True, alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class CalledFunction(ApiRequest):
    name: str
    arguments: str | dict[str, Any] | None = None


class MessageToolCall(ApiRequest):
    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(ApiRequest):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None


class FunctionDefinition(ApiRequest):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(ApiRequest):
    type: Literal["function"] = "function"
    function: FunctionDefinition


class NamedFunction(BaseModel):
    name: str


class NamedTool(BaseModel):
    type: Literal["function"] = "function"
    function: NamedFunction


class ChatCompletionRequest(SamplingRequest):
    """POST /v1/chat/completions"""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: int | None = None  # the newer name of max_tokens
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
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

    @model_validator(mode="after")
    def _top_logprobs_need_logprobs(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs need logprobs: true.")
        return self

    def settings(self, limits: Limits) -> dict[str, Any]:
        self.refuse("functions", "function_call", reason="pass tools and tool_choice, which replaced it.")
        self.refuse("audio", "web_search_options", reason="models here read and write text alone. Leave it out.")
        if self.modalities not in (None, ["text"]):
            raise SettingError("modalities can only be ['text']. Leave it out.")
        if self.verbosity not in (None, "medium"):
            raise SettingError("verbosity cannot be honoured. Say it in the system message, or leave it out.")
        limit = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        schema = None if self.response_format is None else response_schema(self.response_format.model_dump(by_alias=True))
        return self.common_settings(
            limits, max_tokens=limit, logprobs=self.top_logprobs or 0 if self.logprobs else None,
            **({} if schema is None else {"json_schema": schema}),
        )  # fmt: skip

    def tool_definitions(self) -> list[dict[str, Any]]:
        return [tool.model_dump(exclude_none=True) for tool in self.tools or ()]

    def choice(self) -> str:
        """'none', 'auto', 'required', or the name of a tool."""
        choice = self.tool_choice.model_dump() if isinstance(self.tool_choice, NamedTool) else self.tool_choice
        return chosen_tool(choice, self.tools)

    def template_variables(self) -> dict[str, Any]:
        return template_variables(self.chat_template_kwargs, self.reasoning_effort)


class CompletionRequest(SamplingRequest):
    """POST /v1/completions"""

    prompt: str | TokenIds | list[str] | list[TokenIds]
    logprobs: Annotated[int, Field(ge=0)] | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None

    def settings(self, limits: Limits) -> dict[str, Any]:
        if self.best_of not in (None, self.n or 1):
            raise SettingError(f"best_of cannot be other than n, which is {self.n or 1}. Leave it out.")
        if self.suffix:
            raise SettingError("suffix cannot be honoured: models here go on at a text's end. Leave it out.")
        more: dict[str, Any] = {}
        if self.scores_prompt:
            if self.stream:
                raise SettingError("a prompt's logprobs come with the whole answer. Leave stream out, or echo.")
            more = {"prompt_logprobs": self.logprobs}
        tokens = LEGACY_TOKENS if self.max_tokens is None else self.max_tokens
        if self.prompt_alone:
            tokens = 1  # which is left out of the answer
        return self.common_settings(limits, max_tokens=tokens, logprobs=self.logprobs, **more)

    @property
    def scores_prompt(self) -> bool:
        """Whether the prompt's own tokens are to have log-probabilities."""
        return bool(self.echo) and self.logprobs is not None

    @property
    def prompt_alone(self) -> bool:
        """Whether the prompt, with its scores or without, is all that is wanted."""
        return bool(self.echo) and self.max_tokens == 0

    def prompts(self) -> list[str | TokenIds]:
        return as_inputs(self.prompt)


class EmbeddingRequest(ApiRequest):
    """POST /v1/embeddings"""

    model: str
    input: str | TokenIds | list[str] | list[TokenIds]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
