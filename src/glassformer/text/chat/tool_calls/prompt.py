"""A conversation with tools, ready for a model: what its template reads, what forces a call, and what reads the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from glassformer.text.chat.tool_calls.format import ToolCallFormat
from glassformer.text.chat.tool_calls.messages import template_messages, template_tools
from glassformer.text.chat.tool_calls.parser import ToolCallParser, random_key
from glassformer.text.chat.tool_calls.plain import PLAIN_FORMAT, plain_messages
from glassformer.text.tokenizer import Tokenizer


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
