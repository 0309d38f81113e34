"""How a text or a conversation becomes a model's prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Annotated, Any, Self, TypeAlias, TypedDict, TypeGuard, cast

from glassformer.decoding import GenerationConfig
from glassformer.ground.errors import (
    ContextExceeded,
    InputError,
    InputTypeError,
    TemplateError,
    UnknownArgument,
    did_you_mean,
    spell,
)
from glassformer.ground.typecheck import OWN_CHECK, as_python_number, brief
from glassformer.text import Tokenizer

Prompt: TypeAlias = Annotated[  # a text, a conversation's messages, or token ids
    str | Sequence[Mapping[str, Any]] | Sequence[int], OWN_CHECK
]
RESERVED = ("prompt", "raw", "system", "tokenize", "conversation", "return_tensors", "return_dict", "self")


class PromptKeywords(TypedDict, total=False):
    """How a text becomes a prompt, as keyword arguments."""

    raw: bool
    system: str | None
    template: Mapping[str, Any] | None


@dataclass(frozen=True)
class PromptOptions:
    """How a text becomes a prompt."""

    raw: bool = False  # the text as it is, without the chat template
    system: str | None = None  # a message before the conversation
    template: Mapping[str, Any] = field(default_factory=dict)  # variables of the chat template

    def __post_init__(self) -> None:
        if reserved := [name for name in RESERVED if name in self.template]:
            raise TemplateError(
                f"{reserved[0]} is no variable of a chat template, but an argument of its own. Pass it as that."
            )

    @classmethod
    def of(cls, keywords: Mapping[str, Any], call: Callable[..., Any]) -> Self:
        """From the keyword arguments of a call; refuses any other, and suggests the nearest that the call takes."""
        if unknown := [name for name in keywords if name not in cls.__annotations__]:
            known = [*_parameters(call), *cls.__annotations__]
            raise UnknownArgument(
                f"{call.__name__}() has no argument {unknown[0]!r}.{did_you_mean(unknown[0], known)} "
                f"It takes: {', '.join(known)}; variables of the chat template go into template={{…}}."
            )
        raw, system, template = keywords.get("raw", False), keywords.get("system"), keywords.get("template")
        raw, template = as_python_number(raw), {} if template is None else template
        if not isinstance(raw, bool):
            raise InputTypeError(f"raw is {brief(raw)}; it must be True or False.")
        if not isinstance(system, str | None):
            raise InputTypeError(f"system is {brief(system)}; it must be a text or None.")
        if not isinstance(template, Mapping):
            raise InputTypeError(f"template is {brief(template)}; it must be a dictionary of the chat template's variables.")
        return cls(raw, system, dict(template))

    @classmethod
    def split(cls, keywords: Mapping[str, Any], call: Callable[..., Any]) -> tuple[Self, dict[str, Any]]:
        """Keyword arguments of a call as prompt options and the rest, which are settings."""
        options = {name: value for name, value in keywords.items() if name in cls.__annotations__}
        settings = {name: value for name, value in keywords.items() if name not in options}
        own, known = {*_parameters(call), *cls.__annotations__}, GenerationConfig.names()
        for name in settings.keys() - {*known}:
            if (near := did_you_mean(name, [*own, *known])) and near.split("'")[1] in own:
                raise UnknownArgument(f"{call.__name__}() has no argument {name!r}.{near}")
        return cls.of(options, call), settings


def _parameters(call: Callable[..., Any]) -> list[str]:
    """The names of a call's own arguments."""
    return [name for name, parameter in signature(call).parameters.items() if parameter.kind is not parameter.VAR_KEYWORD]


def render(tokenizer: Tokenizer, prompt: Prompt, options: PromptOptions, name: str) -> str:
    """The text that the model called `name` reads: through its chat template if it has one, unless it is raw."""
    messages: Sequence[Mapping[str, Any]]
    raw, system = options.raw, options.system
    if is_token_ids(prompt):
        if system is not None or options.template:
            what = "a system message" if system is not None else "variables of the chat template"
            raise InputError(f"a prompt of token ids has no place for {what}. Leave one of the two out.")
        rendered_ids: str = tokenizer.decode(list(prompt))
        return rendered_ids
    if isinstance(prompt, str):
        if not prompt:
            raise InputError("the prompt is empty. Say something.")
        if raw and (system is not None or options.template):
            what = "a system message" if system is not None else "variables of the chat template"
            raise InputError(f"a raw prompt has no place for {what}. Leave one of the two out.")
        if raw:
            return prompt
        messages = [{"role": "user", "content": prompt}]
    elif isinstance(prompt, Sequence):
        messages = cast(Sequence[Mapping[str, Any]], prompt)
    else:
        raise InputTypeError(f"a prompt is text, a list of messages or token ids, not {type(prompt).__name__}.")
    if raw:
        raise InputTypeError("a raw prompt is text; messages need the chat template.")
    if system is not None and any(isinstance(message, Mapping) and message.get("role") == "system" for message in messages):
        raise InputError(f"the conversation has a system message already. Leave {spell('system')} out.")
    if system is not None:
        messages = [{"role": "system", "content": system}, *messages]
    if tokenizer.chat_template is None:
        if isinstance(prompt, str) and system is None:
            return prompt
        raise TemplateError(f"{name} has no chat template, so it takes plain text only.")
    variables: dict[str, Any] = {"add_generation_prompt": True, **options.template}
    if "enable_thinking" in tokenizer.template().variables:
        variables.setdefault("enable_thinking", False)
    rendered: str = tokenizer.apply_chat_template(messages, tokenize=False, **variables)
    return rendered


def is_token_ids(prompt: Prompt) -> TypeGuard[Sequence[int]]:
    """Whether a prompt is encoded already."""
    return (
        not isinstance(prompt, str)
        and isinstance(prompt, Sequence)
        and bool(prompt)
        and all(isinstance(token, int) and not isinstance(token, bool) for token in prompt)
    )


def encode(
    tokenizer: Tokenizer, prompt: Prompt, options: PromptOptions, name: str, context: int | None = None
) -> tuple[str, tuple[int, ...]]:
    """The rendered prompt and its ids. A text that is too long for the `context`, whatever its tokens are, is refused."""
    text = render(tokenizer, prompt, options, name)
    if is_token_ids(prompt):
        return text, tuple(prompt)
    if context is not None and len(text) > context and (least := tokenizer.least_tokens(text)) > context:
        raise ContextExceeded(
            f"a prompt of at least {least} tokens does not fit into the model's context of {context}. Shorten it."
        )
    templated = not options.raw and tokenizer.chat_template is not None
    ids = tuple(tokenizer(text, add_special_tokens=not templated)["input_ids"])
    if not ids:
        raise InputError("the prompt has no tokens. Say something.")
    return text, ids
