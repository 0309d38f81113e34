"""Messages and tools of a request as chat templates take them.

What a request holds may come from a server, which has checked its fields, or from a row of a file, which nobody has: what
is no message and no tool is refused here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from glassformer.ground.errors import InputError, InputTypeError
from glassformer.ground.typecheck import brief
from glassformer.text.chat.tool_calls.format import SHORT_ID, ToolCallFormat

FUNCTION_FIELDS = ("name", "description", "parameters", "strict")  # in the order that templates write them in


def template_messages(messages: Sequence[Any], call_format: ToolCallFormat | None = None) -> list[dict[str, Any]]:
    """Messages as OpenAI's clients send them, for a template: parts of text joined, arguments of calls as mappings.

    `call_format`: the template's, where it is particular about ids.
    """
    short = call_format is not None and call_format.short_ids
    return [_template_message(f"message {index}", message, short) for index, message in enumerate(messages)]


def template_tools(tools: Sequence[Any]) -> list[dict[str, Any]]:
    """Tools as OpenAI's clients send them, for a template: their fields in one order, and none that is null."""
    return [_template_tool(index, tool) for index, tool in enumerate(tools)]


def joined_text(content: Any, where: str) -> str:
    """A content as one text: it may come in parts."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise InputTypeError(f"{where} has the content {brief(content)}; it must be a text, or a list of parts.")
    texts = []
    for part in content:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            kind = part.get("type", "something else") if isinstance(part, Mapping) else type(part).__name__
            raise InputError(f"{where} has a part of type {kind!r}, which this model cannot read. Send text alone.")
        texts.append(part["text"])
    return "".join(texts)


def _template_message(where: str, message: Any, short: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InputTypeError(f"{where} is {brief(message)}; it must be an object with role and content.")
    plain = _without_nulls(message)
    plain["content"] = joined_text(plain.get("content"), where)
    if plain.get("role") == "developer":  # OpenAI's newer name; templates know the older
        plain["role"] = "system"
    if "tool_calls" in plain:
        if not isinstance(plain["tool_calls"], list):
            raise InputTypeError(f"{where} has the tool_calls {brief(plain['tool_calls'])}; they must be a list.")
        plain["tool_calls"] = [_template_call(where, call, short) for call in plain["tool_calls"]]
    if "tool_call_id" in plain:
        plain["tool_call_id"] = _template_id(where, plain["tool_call_id"], short)
    return plain


def _template_call(where: str, call: Any, short: bool) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InputTypeError(f"{where} has the call {brief(call)}; it must be an object with id, type and function.")
    name, arguments = function["name"], function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise InputError(f"the arguments of the call to {name!r} are no JSON: {error}. Send an object.") from error
    if not isinstance(arguments, Mapping | None):
        raise InputError(f"the arguments of the call to {name!r} are no object. Send an object.")
    plain = {"type": "function", **_without_nulls(call)}
    plain["function"] = {"name": name, "arguments": dict(arguments or {}), **_without(function, "name", "arguments")}
    if "id" in plain:
        plain["id"] = _template_id(where, plain["id"], short)
    return plain


def _template_id(where: str, call_id: Any, short: bool) -> str:
    """A call's id; if need be as one of nine letters and digits, the same for the same id."""
    if not isinstance(call_id, str):
        raise InputTypeError(f"{where} has the call id {brief(call_id)}; it must be a text.")
    if not short:
        return call_id
    plain = "".join(character for character in call_id if character.isascii() and character.isalnum())
    return plain[-SHORT_ID:].rjust(SHORT_ID, "0")


def _template_tool(number: int, tool: Any) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InputTypeError(
            f"tool {number} is {brief(tool)}; it must be an object with type and function, which has name, description and "
            "parameters."
        )
    if not isinstance(function.get("parameters"), Mapping | None):
        raise InputTypeError(
            f"the parameters of {function['name']!r} are {brief(function['parameters'])}; they must be a JSON schema."
        )
    fields = {name: function[name] for name in FUNCTION_FIELDS if function.get(name) is not None}
    return {"type": "function", "function": {**fields, **_without(function, *fields)}, **_without(tool, "type", "function")}


def _without(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in _without_nulls(fields).items() if name not in names}


def _without_nulls(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
