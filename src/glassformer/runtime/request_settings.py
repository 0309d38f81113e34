"""The fields of a request, as OpenAI's API and those like it have them, as the engine's settings.

One mapping for all who take such requests: the server, and batch jobs. A dialect has two tables of its fields: which setting
each is, and which are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from glassformer.decoding.settings_table import SETTINGS
from glassformer.ground.errors import InputTypeError, SettingError
from glassformer.ground.typecheck import brief

Settings: TypeAlias = dict[str, Any]
ToSettings: TypeAlias = str | Callable[[Any], Settings]  # a setting's name, or what makes settings of a value
NO_THINKING = ("none", "minimal")  # efforts for which a model does not think before it answers


class Refusal(NamedTuple):
    """What is said of a field after its name, unless its value changes nothing."""

    sentence: str
    harmless: tuple[Any, ...] = (None, [], {}, False)


def refuse_fields(value_of: Callable[[str], Any], refused: Mapping[str, Refusal]) -> None:
    """Refuse what would change an answer and cannot be honoured."""
    for name, (sentence, harmless) in refused.items():
        if value_of(name) not in harmless:
            raise SettingError(f"{name} {sentence}")


def field_settings(value_of: Callable[[str], Any], table: Mapping[str, ToSettings]) -> Settings:
    """The settings of the fields that a request has, as `sampling_settings` takes them.

    >>> field_settings({"length": 8, "variety": 0}.get, {"length": "max_tokens", "variety": unless_zero("top_k")})
    {'max_tokens': 8}
    """
    settings: Settings = {}
    for name, to_settings in table.items():
        if (value := value_of(name)) is not None:
            settings |= {to_settings: value} if isinstance(to_settings, str) else to_settings(value)
    return settings


def unless_zero(name: str) -> Callable[[Any], Settings]:
    """A setting that a dialect turns off with 0."""
    return lambda value: {name: value} if value else {}


def sampling_settings(
    *,
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    n: int = 1,
    seed: int | None = None,
    stop: str | Sequence[str] | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    logit_bias: Mapping[str, float] | None = None,
    logprobs: int | None = None,
    json_schema: Any = None,
    **others: Any,
) -> dict[str, Any]:
    """Settings for `Model.start`; what is None is left to the model's own. `others`: settings under the engine's names.

    Temperature 0 takes the best token each time, and what shapes a draw then has no say. Any other value draws, as do
    several texts of one prompt, which would be equal otherwise. Values are not checked here: `Model.start` does so.

    >>> sampling_settings(max_tokens=8, temperature=0, top_p=0.9)
    {'max_new_tokens': 8, 'do_sample': False}
    >>> sampling_settings(top_p=0.9, stop=["."])
    {'do_sample': True, 'stop_strings': ['.'], 'top_p': 0.9}
    """
    shaping = {"temperature": temperature, "top_p": top_p}
    shaping |= {name: others.pop(name) for name in list(others) if SETTINGS[name].needs == "do_sample"}
    shaping = {name: value for name, value in shaping.items() if value is not None}
    do_sample = others.pop("do_sample", None)
    if temperature == 0 or do_sample is False:
        do_sample, shaping = False, {}
    elif shaping or n != 1:
        do_sample = True
    settings = {
        "max_new_tokens": max_tokens,
        "do_sample": do_sample,
        "seed": seed % 2**64 if type(seed) is int else seed,
        "stop_strings": stop or None,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "logit_bias": None if not logit_bias else {_token(token): bias for token, bias in logit_bias.items()},
        "logprobs": logprobs,
        "json_schema": json_schema,
        **shaping,
        **others,
    }
    return {name: value for name, value in settings.items() if value is not None}


def response_schema(response_format: Any) -> Any:
    """The JSON schema that a request's `response_format` asks answers to fit; None for free text.

    >>> response_schema({"type": "json_object"})
    {'type': 'object'}
    """
    kind = response_format.get("type") if isinstance(response_format, Mapping) else response_format
    match kind:
        case None | "text":
            return None
        case "json_object":
            return {"type": "object"}
        case "json_schema":
            named = response_format.get("json_schema") if isinstance(response_format, Mapping) else None
            schema = named.get("schema", True) if isinstance(named, Mapping) else None
            if isinstance(schema, Mapping | bool):
                return schema
            raise SettingError("response_format of type json_schema needs json_schema: {name, schema}.")
    raise SettingError(
        f"response_format is {brief(response_format)}; its type must be 'text', 'json_object', or 'json_schema'."
    )


def template_variables(chat_template_kwargs: Any = None, reasoning_effort: Any = None) -> dict[str, Any]:
    """The variables of the chat template that a request sets, by themselves or with a `reasoning_effort`.

    >>> template_variables({"greeting": "Hello"}, "low")
    {'reasoning_effort': 'low', 'enable_thinking': True, 'greeting': 'Hello'}
    """
    if not isinstance(chat_template_kwargs, Mapping | None):
        raise InputTypeError(
            f"chat_template_kwargs is {brief(chat_template_kwargs)}; it must be an object of the chat template's variables."
        )
    if not isinstance(reasoning_effort, str | None):
        raise InputTypeError(f"reasoning_effort is {brief(reasoning_effort)}; it must be a text, such as 'low'.")
    variables = {}
    if reasoning_effort is not None:
        variables = {"reasoning_effort": reasoning_effort, "enable_thinking": reasoning_effort not in NO_THINKING}
    return variables | dict(chat_template_kwargs or {})


def chosen_tool(tool_choice: Any, tools: Sequence[Any] | None) -> str:
    """What a request's `tool_choice` says: 'none', 'auto', 'required', or the name of a tool.

    >>> chosen_tool({"type": "function", "function": {"name": "weather"}}, [...])
    'weather'
    """
    match tool_choice:
        case None:
            return "auto"
        case "none":
            return "none"
        case "auto" | "required" as choice:
            pass
        case {"function": {"name": str(choice)}}:
            pass
        case _:
            raise SettingError(
                f"tool_choice is {brief(tool_choice)}; it must be 'none', 'auto', 'required', or "
                "{type: 'function', function: {name}}."
            )
    if not tools:
        raise SettingError("tool_choice needs tools. Pass them, or leave it out.")
    return choice


def _token(key: str) -> int | str:
    """A key of logit_bias: an id as JSON must write it, or a token's text."""
    return int(key) if key.isascii() and key.isdecimal() else key
