"""A conversation with tools, ready for a model: what its template reads, what forces a call, and what reads the answer.

What a request holds may come from a server, which has checked its fields, or from a row of a file, which nobody has: what is
no message and no tool is refused here.

For a model whose template knows no tools they are described in words, and called and answered as text, in the format that
most open models have seen in training: a JSON object between `<tool_call>` and `</tool_call>` (Hermes, Qwen).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from glassformer.ground.errors import InputError, InputTypeError, TemplateError
from glassformer.ground.typecheck import brief
from glassformer.text.chat.template import ChatTemplate
from glassformer.text.chat.tool_calls.format import SHORT_ID, ToolCallFormat
from glassformer.text.chat.tool_calls.parser import ToolCallParser, random_key
from glassformer.text.tokenizer import Tokenizer

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


def _template_tool(index: int, tool: Any) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InputTypeError(
            f"tool {index} is {brief(tool)}; it must be an object with type and function, which has name, description and "
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


OPENING, CLOSING = "<tool_call>", "</tool_call>"
PLAIN_FORMAT = ToolCallFormat(
    opening=OPENING,
    closing=CLOSING,
    before=f'{OPENING}\n{{"name": "',
    middle='", "arguments": ',
    between=f'}}\n{CLOSING}\n{OPENING}\n{{"name": "',
    after=f"}}\n{CLOSING}",
    arguments_key="arguments",
)
INSTRUCTIONS = f"""You can call functions. Each line here describes one in JSON:
{{functions}}
To call a function, answer with its name and its arguments as a JSON object, between these tags:
{OPENING}
{{{{"name": "the function's name", "arguments": {{{{"a parameter": "its value"}}}}}}}}
{CLOSING}
The result comes back between <tool_response> and </tool_response>. Call a function only where you need its result."""
PROBE = "Probed system message"


def plain_messages(
    tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Messages in which calls and results are text, as is what is said of the tools: before all else."""
    written: list[dict[str, Any]] = []
    for message in messages:
        turn = _as_text(message)
        if written and message.get("role") == "tool" and written[-1]["role"] == "user":
            written[-1] = {**written[-1], "content": f"{written[-1]['content']}\n{turn['content']}"}
        else:
            written.append(turn)
    return _with_instructions(tokenizer, written, tools) if tools else written


def _as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message of a call or a result without its fields that the template does not know."""
    content = message.get("content") or ""
    if message.get("role") == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls = [_call_text(call["function"]) for call in message.get("tool_calls", ())]
    plain = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**plain, "content": "\n".join(filter(None, (content, *calls)))} if calls else plain


def _call_text(function: Mapping[str, Any]) -> str:
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"{OPENING}\n{json.dumps(call, ensure_ascii=False)}\n{CLOSING}"


def _with_instructions(
    tokenizer: Tokenizer, messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The tools in the system message; before the first message where the template has no place for one."""
    functions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    text = INSTRUCTIONS.format(functions=functions)
    first, rest = messages[0], messages[1:]
    if first.get("role") == "system":
        return [{**first, "content": f"{first['content']}\n\n{text}"}, *rest]
    if takes_system_message(tokenizer.get_chat_template(), json.dumps(tokenizer.special_tokens_map)):
        return [{"role": "system", "content": text}, *messages]
    return [{**first, "content": f"{text}\n\n{first['content']}"}, *rest]


@lru_cache(maxsize=32)
def takes_system_message(source: str, special_tokens: str = "{}") -> bool:
    """Whether a template writes a system message's words; some leave it out, others refuse it."""
    messages = [{"role": "system", "content": PROBE}, {"role": "user", "content": "A probe."}]
    try:
        return PROBE in ChatTemplate(source).render(messages, special_tokens=json.loads(special_tokens))
    except TemplateError:
        return False


@dataclass(frozen=True)
class ToolUse:
    """The tools of a request, and how the model calls them."""

    call_format: ToolCallFormat
    tools: Sequence[Mapping[str, Any]]

    @property
    def visible_tokens(self) -> tuple[str, ...]:
        """What must stay visible when tokens become text, special or not."""
        return self.call_format.markers

    def parser(self, call_key: Callable[[int], str] = random_key) -> ToolCallParser:
        """What reads one text; `call_key` as for `ToolCallParser`."""
        return ToolCallParser(self.call_format, self.tools, call_key)


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation as `Model.prepare` takes it."""

    messages: list[dict[str, Any]]
    template: dict[str, Any]  # variables of the chat template, the tools among them
    settings: dict[str, Any] = field(default_factory=dict)  # that force a call
    tool_use: ToolUse | None = None  # None without tools


def chat_prompt(
    tokenizer: Tokenizer,
    messages: Sequence[Any],
    *,
    tools: Sequence[Any] = (),
    tool_choice: str = "auto",
    parallel_tool_calls: bool = True,
    template: Mapping[str, Any] | None = None,
) -> ChatPrompt:
    """Messages and tools as OpenAI's clients send them, for the model of a tokenizer.

    `tool_choice`: 'none', 'auto', 'required', or the name of one of the tools. `template`: variables of the chat template.
    Where the template knows no tools, the messages tell of them, and of the calls that there were.
    """
    call_format = ToolCallFormat.of(tokenizer)
    plain, variables = template_messages(messages, call_format), dict(template or {})
    schemas = [] if tool_choice == "none" else template_tools(tools)
    if call_format is None and tokenizer.chat_template and plain:  # in words, as the template has no place for them
        plain = plain_messages(tokenizer, plain, schemas)
    elif schemas:
        variables["tools"] = schemas
    if not schemas:
        return ChatPrompt(plain, variables)
    call_format = call_format or PLAIN_FORMAT
    forced = call_format.settings(tokenizer, schemas, tool_choice, parallel_tool_calls)
    return ChatPrompt(plain, variables, forced, ToolUse(call_format, schemas))
