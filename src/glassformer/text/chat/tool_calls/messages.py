"""Messages of a request as chat templates take them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from glassformer.errors import InputError
from glassformer.text.chat.tool_calls.format import ToolCallFormat

SHORT_ID = 9  # characters


def template_messages(
    messages: Sequence[Mapping[str, Any]], call_format: ToolCallFormat | None = None
) -> list[dict[str, Any]]:
    """Messages as OpenAI's clients send them, for a template: parts of text joined, arguments of calls as mappings.

    `call_format`: the template's, where it is particular about ids.
    """
    short = call_format is not None and call_format.short_ids
    return [_template_message(number, message, short) for number, message in enumerate(messages)]


def _template_message(number: int, message: Mapping[str, Any], short: bool) -> dict[str, Any]:
    plain = {name: value for name, value in message.items() if value is not None}
    plain["content"] = joined_text(plain.get("content"), f"message {number}")
    if plain.get("role") == "developer":  # OpenAI's newer name; templates know the older
        plain["role"] = "system"
    if "tool_calls" in plain:
        plain["tool_calls"] = [_template_call(call, short) for call in plain["tool_calls"]]
    if "tool_call_id" in plain and short:
        plain["tool_call_id"] = _short_id(plain["tool_call_id"])
    return plain


def joined_text(content: Any, where: str) -> str:
    """A content as one text: it may come in parts."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in content:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            kind = part.get("type", "something else") if isinstance(part, Mapping) else type(part).__name__
            raise InputError(f"{where} has a part of type {kind!r}, which this model cannot read. Send text alone.")
        texts.append(part["text"])
    return "".join(texts)


def _template_call(call: Mapping[str, Any], short: bool) -> dict[str, Any]:
    function = dict(call["function"])
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError as error:
            name = function.get("name")
            raise InputError(f"the arguments of the call to {name!r} are no JSON: {error}. Send an object.") from error
    if not isinstance(arguments, Mapping | None):
        raise InputError(f"the arguments of the call to {function.get('name')!r} are no object. Send an object.")
    function["arguments"] = dict(arguments or {})
    return {**call, "function": function, **({"id": _short_id(call["id"])} if short and "id" in call else {})}


def _short_id(call_id: str) -> str:
    """An id of nine letters and digits, the same for the same id."""
    plain = "".join(character for character in call_id if character.isascii() and character.isalnum())
    return plain[-SHORT_ID:].rjust(SHORT_ID, "0")
