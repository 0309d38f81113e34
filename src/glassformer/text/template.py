"""Chat templates: how a list of messages becomes the one text that a model was trained on.

Templates come out of model files, so they run in Jinja's immutable sandbox and see only what is handed to them.
The environment is the one that the field's templates are written for: trimmed blocks, loop controls,
`raise_exception`, `strftime_now`, a `tojson` that keeps characters as they are, and `generation` blocks.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Never

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from glassformer.errors import InputTypeError, TemplateError, nearest

# Variables that people pass out of habit to whichever model they have; a template that has no use for one ignores it.
CUSTOMARY = frozenset({"enable_thinking", "tools", "documents", "add_generation_prompt", "messages"})


class _Raised(jinja2.TemplateError):
    """Raised by the template itself, through `raise_exception`."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's words for training; it renders as its content."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node | list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> Never:
    raise _Raised(message)


def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: dt.datetime.now().strftime(form)
    return environment


class ChatTemplate:
    """One template: rendered with messages, special tokens and whatever variables it declares."""

    def __init__(self, source: str) -> None:
        self.source = source

    @cached_property
    def _compiled(self) -> jinja2.Template:
        try:
            return _environment().from_string(self.source)
        except jinja2.TemplateError as error:
            raise TemplateError(
                f"the chat template cannot be parsed: {error}. Pass another with chat_template=…."
            ) from error

    @cached_property
    def variables(self) -> frozenset[str]:
        """The variables that the template asks for."""
        environment = _environment()
        return frozenset(jinja2.meta.find_undeclared_variables(environment.parse(self.source))) - set(environment.globals)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = False,
        special_tokens: Mapping[str, str] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        check_messages(messages)
        compiled = self._compiled
        for name in variables or {}:
            if name not in self.variables and name not in CUSTOMARY:
                known = sorted(self.variables - {"messages"})
                raise TemplateError(
                    f"the chat template has no variable {name!r}.{nearest(name, known)} It uses: {', '.join(known)}."
                )
        given = {**(special_tokens or {}), **(variables or {})}
        try:
            return compiled.render(messages=messages, add_generation_prompt=add_generation_prompt, **given)
        except _Raised as error:
            raise TemplateError(f"the chat template refused the conversation: {error}.") from error
        except Exception as error:  # a template is a small program: anything can come out of it
            raise TemplateError(f"the chat template failed: {type(error).__name__}: {error}.") from error


def check_messages(messages: object) -> None:
    """Messages must be a list of mappings with a role."""
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        raise InputTypeError(
            f"a conversation is a list of messages, not {type(messages).__name__}: [{{'role': 'user', 'content': '…'}}]."
        )
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or "role" not in message:
            raise InputTypeError(f"message {number} is {message!r}; a message is {{'role': 'user', 'content': '…'}}.")
