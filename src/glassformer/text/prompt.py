"""How a text or a conversation becomes a model's prompt."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Annotated, Any, Protocol, Self, TypeAlias, TypedDict, TypeGuard, cast

from glassformer.ground.errors import (
    ContextExceeded,
    InputError,
    InputTypeError,
    TemplateError,
    UnknownArgument,
    check_ids,
    did_you_mean,
    spell,
)
from glassformer.ground.typecheck import OWN_CHECK, as_python_number, brief
from glassformer.text.tokenizer import Tokenizer

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
    def split(
        cls, keywords: Mapping[str, Any], call: Callable[..., Any], known: Collection[str]
    ) -> tuple[Self, dict[str, Any]]:
        """Keyword arguments of a call as prompt options and the rest, which are settings; `known`: their names."""
        options = {name: value for name, value in keywords.items() if name in cls.__annotations__}
        settings = {name: value for name, value in keywords.items() if name not in options}
        accepted = {*_parameters(call), *cls.__annotations__}
        for name in settings.keys() - {*known}:
            if (near := did_you_mean(name, [*accepted, *known])) and near.split("'")[1] in accepted:
                raise UnknownArgument(f"{call.__name__}() has no argument {name!r}.{near}")
        return cls.of(options, call), settings

    def contents(self, tokenizer: Tokenizer, prompt: Prompt) -> tuple[str, ...] | None:
        """The texts that a chat template stands around; None where there is no template."""
        if self.raw or tokenizer.chat_template is None or is_token_ids(prompt):
            return None
        texts = prompt_texts(cast(str | Sequence[Mapping[str, Any]], prompt))
        return (*(() if self.system is None else (self.system,)), *texts)


def _parameters(call: Callable[..., Any]) -> list[str]:
    """The names of a call's arguments; an operation's model is none of them."""
    parameters = signature(call).parameters.items()
    return [name for name, parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD and name != "model"]


class PromptReader(Protocol):
    """What must be known of a model to make its prompt."""

    @property
    def name(self) -> str: ...

    @property
    def config(self) -> Any: ...

    @property
    def tokenizer(self) -> Tokenizer: ...


def render(model: PromptReader, prompt: Prompt, options: PromptOptions) -> str:
    """The text that the model reads: through its chat template if it has one, unless it is raw."""
    tokenizer = model.tokenizer
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
        if any(isinstance(message, Sequence) and not isinstance(message, str) for message in prompt):
            raise InputTypeError("a prompt is one conversation, and this is a list of several. Pass them one by one.")
        messages = cast(Sequence[Mapping[str, Any]], prompt)
    else:
        raise InputTypeError(f"a prompt is text, a list of messages or token ids, not {type(prompt).__name__}.")
    if raw and not prompt:
        raise InputError("the prompt has no tokens. Say something.")
    if raw:
        raise InputTypeError("a raw prompt is text; messages need the chat template.")
    if system is not None and any(isinstance(message, Mapping) and message.get("role") == "system" for message in messages):
        raise InputError(f"the conversation has a system message already. Leave {spell('system')} out.")
    if system is not None:
        messages = [{"role": "system", "content": system}, *messages]
    if tokenizer.chat_template is None:
        if isinstance(prompt, str) and system is None:
            return prompt
        raise TemplateError(f"{model.name} has no chat template, so it takes plain text only.")
    variables: dict[str, Any] = {"add_generation_prompt": True, **options.template}
    if "enable_thinking" in tokenizer.template().variables:
        variables.setdefault("enable_thinking", False)
    rendered: str = tokenizer.apply_chat_template(messages, tokenize=False, **variables)
    return rendered


def prompt_texts(prompt: str | Sequence[Mapping[str, Any]]) -> list[str]:
    """The texts in a prompt's messages."""
    if isinstance(prompt, str):
        return [prompt]
    texts = []
    for message in prompt:
        content = message.get("content") if isinstance(message, Mapping) else None
        parts = [{"text": content}] if isinstance(content, str) else content if isinstance(content, Sequence) else []
        texts += [part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
    return texts


def is_token_ids(prompt: Prompt) -> TypeGuard[Sequence[int]]:
    """Whether a prompt is encoded already."""
    return (
        not isinstance(prompt, str)
        and isinstance(prompt, Sequence)
        and bool(prompt)
        and all(isinstance(token, int) and not isinstance(token, bool) for token in prompt)
    )


def encode(model: PromptReader, prompt: Prompt, options: PromptOptions, *, fits: bool = True) -> tuple[str, tuple[int, ...]]:
    """The rendered prompt and its ids.

    `fits`: refuse a text that is too long for the context, whatever its tokens are, before it is encoded.
    """
    if is_token_ids(prompt):
        check_ids(prompt, model.config.vocab_size)
        return render(model, prompt, options), tuple(prompt)
    tokenizer, context = model.tokenizer, model.config.context
    text = render(model, prompt, options)
    if fits and len(text) > context and (least := tokenizer.least_tokens(text)) > context:
        raise ContextExceeded(
            f"a prompt of at least {least} tokens does not fit into the model's context of {context}. Shorten it."
        )
    templated = not options.raw and tokenizer.chat_template is not None
    ids = tuple(tokenizer(text, add_special_tokens=not templated)["input_ids"])
    if not ids:
        raise InputError("the prompt has no tokens. Say something.")
    return text, ids
