"""Why a chat template could not render a conversation, in words about the conversation instead of Jinja's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jinja2
import jinja2.exceptions
from jinja2.utils import missing

KINDS = {
    str: "a text",
    list: "a list",
    tuple: "a list",
    dict: "a mapping",
    bool: "a boolean",
    int: "a number",
    float: "a number",
}


class MissingValue(jinja2.exceptions.UndefinedError):
    """The template used something that is not there: `name` of `owner`."""

    def __init__(self, owner: Any, name: Any, message: str | None = None) -> None:
        super().__init__(message)
        self.owner, self.name = owner, name


class TrackedUndefined(jinja2.Undefined):
    """Jinja's undefined value, whose error remembers what was missing, and from where."""

    __slots__ = ()

    def __init__(self, hint: str | None = None, obj: Any = missing, name: Any = None, exc: Any = None) -> None:
        # the sandbox passes an error of its own where something is forbidden
        usual = exc is None or exc is jinja2.exceptions.UndefinedError
        super().__init__(hint, obj, name, partial(MissingValue, obj, name) if usual else exc)  # type: ignore[arg-type]


class WrongOperand(TypeError):
    """An operator was given what it cannot handle."""

    def __init__(self, operator: str, left: Any, right: Any) -> None:
        super().__init__(f"{kind_name(left)} {operator} {kind_name(right)}")
        self.operands = (left, right)


def kind_name(value: Any) -> str:
    if isinstance(value, jinja2.Undefined):
        return "nothing"
    return "None" if value is None else KINDS.get(type(value), type(value).__name__)


def explain_failure(error: Exception, template: jinja2.Template, messages: Sequence[Mapping[str, Any]]) -> str:
    """One clause or more: what was wrong with which message, as far as it can be known, and how to fix it."""
    line = _template_line(error, template)
    place = "" if line is None else f" in its line {line}"
    if isinstance(error, MissingValue):
        if error.owner is missing:
            return f"{error.name!r} has no value{place}. Pass it as a variable, or another template with chat_template=…"
        path = next(_paths_to(error.owner, messages), None)
        if path is not None and isinstance(error.owner, dict):
            return f"{_describe(path, messages)} has no {error.name!r}, which is needed{place}. Add it to the message"
    if isinstance(error, RecursionError):
        return f"it is nested too deeply{place}. Pass another with chat_template=…"
    operands = error.operands if isinstance(error, WrongOperand) else (getattr(error, "owner", missing),)
    for index, message in enumerate(messages):
        content = message.get("content")
        known = isinstance(error, (WrongOperand, MissingValue))
        if not isinstance(content, str) and (not known or any(content is operand for operand in operands)):
            role = message["role"]
            return (
                f"message {index} ({role}) has {kind_name(content)} as its 'content', where text is needed{place}. "
                f"Give it text: {{'role': {role!r}, 'content': '…'}}"
            )
    if isinstance(error, MissingValue):
        return f"{kind_name(error.owner)} has no {error.name!r}{place}. Pass another with chat_template=…"
    if isinstance(error, jinja2.exceptions.SecurityError):
        return f"it reaches for what no template may use{place}: {str(error).rstrip('.')}. Pass another with chat_template=…"
    return f"{str(error).rstrip('.') or type(error).__name__}{place}. Pass another with chat_template=…"


def _template_line(error: BaseException, template: jinja2.Template) -> int | None:
    """The line of the template at which it failed: that of the innermost frame that is the template's own."""
    line, frame = None, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == "<template>":
            line = template.get_corresponding_lineno(frame.tb_lineno)
        frame = frame.tb_next
    return line


def _paths_to(owner: Any, value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The keys and numbers that lead to an object."""
    if value is owner:
        yield path
    elif isinstance(value, (dict, list, tuple)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _paths_to(owner, item, (*path, key))


def _describe(path: Sequence[Any], messages: Sequence[Mapping[str, Any]]) -> str:
    inside = "".join(f"[{key!r}]" for key in path[1:])
    return f"message {path[0]} ({messages[path[0]]['role']})" + (f", in its {inside}," if inside else "")
