"""Chat templates: how a list of messages becomes the one text that a model was trained on.

Templates come out of model files, so they run in Jinja's immutable sandbox and see only what is handed to them.
The environment is the one that the field's templates are written for: trimmed blocks, loop controls,
`raise_exception`, `strftime_now`, a `tojson` that keeps characters as they are, and `generation` blocks.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Never

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from glassformer.errors import InputError, InputTypeError, TemplateError, nearest

# Variables that people pass out of habit to whichever model they have; a template that has no use for one ignores it.
CUSTOMARY = frozenset({"enable_thinking", "tools", "documents"})


class _Raised(jinja2.TemplateError):
    """Raised by the template itself, through `raise_exception`."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's words for training; it renders as its content."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node | list[jinja2.nodes.Node]:
        line = next(parser.stream).lineno
        return jinja2.nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


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


@lru_cache(maxsize=16)  # a conversation renders the same template at every turn, and parsing is most of the work
def _parsed(source: str) -> tuple[jinja2.Template, frozenset[str]]:
    """The template ready to run, and the variables that it asks for."""
    environment = _environment()
    try:
        asked = jinja2.meta.find_undeclared_variables(environment.parse(source))
        return environment.from_string(source), frozenset(asked) - set(environment.globals)
    except (jinja2.TemplateError, SyntaxError, RecursionError) as error:  # the last two when nested too deeply
        raise TemplateError(
            f"the chat template cannot be parsed: {_said(error)}. Pass another with chat_template=…."
        ) from error


class ChatTemplate:
    """One template: rendered with messages, special tokens and whatever variables it declares."""

    def __init__(self, source: str) -> None:
        self.source = source

    @property
    def variables(self) -> frozenset[str]:
        """The variables that the template asks for."""
        return _parsed(self.source)[1]

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = False,
        special_tokens: Mapping[str, str] | None = None,
        variables: Mapping[str, Any] | None = None,
        also: Iterable[str] = (),
    ) -> str:
        """The conversation as one text; `also` names what a misspelt variable may have been meant for instead."""
        check_messages(messages)
        compiled, asked = _parsed(self.source)
        known = sorted(asked - {"messages"})
        for name in variables or {}:
            if name not in known and name not in CUSTOMARY:
                raise TemplateError(
                    f"the chat template has no variable {name!r}.{nearest(name, [*known, *also])} "
                    f"It uses: {', '.join(known) or 'the messages alone'}."
                )
        # templates ask whether tools and documents are none, not whether they are defined
        given = {"tools": None, "documents": None, **(special_tokens or {}), **(variables or {})}
        given |= {"messages": messages, "add_generation_prompt": add_generation_prompt}
        try:
            return compiled.render(given)
        except _Raised as error:
            raise TemplateError(f"the chat template refused the conversation: {_said(error)}.") from error
        except Exception as error:  # a template is a small program: anything can come out of it
            raise TemplateError(f"the chat template failed: {type(error).__name__}: {_said(error)}.") from error


def _said(error: Exception) -> str:
    """An error's words, ready for the middle of a sentence."""
    return str(error).rstrip(".")


def check_messages(messages: object) -> None:
    """Messages must be a list of mappings with a role, and at least one."""
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        raise InputTypeError(
            f"a conversation is a list of messages, not {type(messages).__name__}: [{{'role': 'user', 'content': '…'}}]."
        )
    if not messages:
        raise InputError("the conversation is empty. Give it a message: [{'role': 'user', 'content': '…'}].")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or "role" not in message:
            raise InputTypeError(f"message {number} is {message!r}; a message is {{'role': 'user', 'content': '…'}}.")
