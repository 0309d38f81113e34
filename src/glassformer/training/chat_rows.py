"""Conversations out of rows: messages, or a prompt and what is answered to it; each checked before the training begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glassformer.ground.errors import InputError, did_you_mean
from glassformer.ground.typecheck import brief
from glassformer.training.rows import Row

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
MESSAGES, PROMPT, COMPLETION = ("messages", "conversation"), ("prompt", "question"), ("completion", "response", "answer")


@dataclass(frozen=True)
class Conversation:
    """Messages; the assistant's are learned from the `first_learned` one on, and all before it are context."""

    messages: Sequence[Mapping[str, Any]]
    first_learned: int
    place: str  # for messages
    tools: Sequence[Mapping[str, Any]] | None = None


def read_conversation(row: Row) -> Conversation:
    """A row's conversation: {"messages": […]}, or {"prompt": …, "completion": …} as texts or as messages."""
    if any(name in row.fields for name in MESSAGES):
        return _conversation(row, [], _messages(row, row.get(MESSAGES), "messages", "user"))
    if any(name in row.fields for name in (*PROMPT, *COMPLETION)):
        prompt = _messages(row, row.get(PROMPT), "prompt", "user")
        return _conversation(row, prompt, _messages(row, row.get(COMPLETION), "completion", "assistant"))
    known = ", ".join(map(repr, row.fields)) or "no fields"
    raise InputError(f"{row.place}: lacks 'messages', or 'prompt' and 'completion'; it has {known}.")


def read_preference(row: Row) -> tuple[Conversation, Conversation]:
    """A row's prompt with the answer that was chosen, and with the one that was rejected.

    Both are texts or messages. Without a prompt, both are whole conversations that begin with the same messages.
    """
    chosen, rejected = (_messages(row, row.get((name,)), name, "assistant") for name in ("chosen", "rejected"))
    prompt_name = next((name for name in (*PROMPT, *MESSAGES) if name in row.fields), None)
    if prompt_name is not None:
        prompt = _messages(row, row.fields[prompt_name], prompt_name, "user")
    else:
        pairs = zip(chosen, rejected, strict=False)
        same = next((number for number, (one, other) in enumerate(pairs) if one != other), min(len(chosen), len(rejected)))
        prompt, chosen, rejected = chosen[:same], chosen[same:], rejected[same:]
        if not prompt:
            raise InputError(
                f"{row.place}: lacks 'prompt', and 'chosen' and 'rejected' do not begin with the same messages."
            )
    if chosen == rejected:
        raise InputError(f"{row.place}: 'chosen' and 'rejected' are the same, so there is nothing to prefer.")
    return _conversation(row, prompt, chosen), _conversation(row, prompt, rejected)


def _conversation(row: Row, prompt: list[dict[str, Any]], answer: list[dict[str, Any]]) -> Conversation:
    messages = [*prompt, *answer]
    learned = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    first = max(1, len(prompt))  # what opens a conversation answers nothing
    if not any(number >= first for number in learned):
        raise InputError(f"{row.place}: has no assistant's answer to learn. Give it one: {{'role': 'assistant', …}}.")
    tools = row.fields.get("tools")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise InputError(f"{row.place}: 'tools' is {brief(tools)}; it must be a list of JSON schemas.")
    return Conversation(messages, first, row.place, tools or None)


def _messages(row: Row, value: Any, name: str, role: str) -> list[dict[str, Any]]:
    """A field's messages; a text is one of this role."""
    if isinstance(value, str):
        value = [{"role": role, "content": value}]
    elif isinstance(value, dict):
        value = [value]
    if not isinstance(value, list) or not value:
        raise InputError(f"{row.place}: {name!r} is {brief(value)}; it must be a text, or a list of messages.")
    for number, message in enumerate(value):
        _check_message(f"{row.place}: message {number + 1} of {name!r}", message)
    return value


def _check_message(place: str, message: Any) -> None:
    if not isinstance(message, dict) or not isinstance(role := message.get("role"), str):
        raise InputError(f"{place} is {brief(message)}; a message is {{'role': 'user', 'content': '…'}}.")
    if role not in ROLES:
        raise InputError(f"{place} has the role {role!r}.{did_you_mean(role, ROLES)} Known: {', '.join(ROLES)}.")
    content = message.get("content")
    if role == "assistant" and not message.get("tool_calls") and not content:
        raise InputError(f"{place} is an assistant's without words: give it 'content' or 'tool_calls'.")
    if content is not None and not isinstance(content, str | list):
        raise InputError(f"{place} has {brief(content)} as its 'content'; it must be a text, or a list of parts.")
