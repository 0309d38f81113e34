"""Tools for a model whose chat template knows none: described in words, called and answered as text.

The format is the one that most open models have seen in training: a JSON object between `<tool_call>` and `</tool_call>`
(Hermes, Qwen). Calls and results of earlier turns are written in it too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from glassformer.ground.errors import TemplateError
from glassformer.text.chat.template import ChatTemplate
from glassformer.text.chat.tool_calls.format import ToolCallFormat
from glassformer.text.tokenizer import Tokenizer

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
