"""Conversations out of rows: messages, or a prompt and what is answered to it; each checked before the training begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glassformer.ground.errors import GlassError, InputError, TemplateError, did_you_mean
from glassformer.ground.typecheck import brief
from glassformer.text import Tokenizer
from glassformer.training.packing import TrainingRow
from glassformer.training.rows import DataRow

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
MESSAGES, PROMPT, COMPLETION = ("messages", "conversation"), ("prompt", "question"), ("completion", "response", "answer")


@dataclass(frozen=True)
class ChatExample:
    """Messages; the assistant's are learned from the `first_learned` one on, and all before it are context."""

    messages: Sequence[Mapping[str, Any]]
    first_learned: int
    place: str  # for messages
    tools: Sequence[Mapping[str, Any]] | None = None

    @property
    def answers(self) -> list[int]:
        """The indices of the assistant's messages."""
        return [index for index, message in enumerate(self.messages) if message["role"] == "assistant"]


def read_conversation(row: DataRow) -> ChatExample:
    """A row's conversation: {"messages": […]}, or {"prompt": …, "completion": …} as texts or as messages."""
    if any(name in row.fields for name in MESSAGES):
        return _conversation(row, [], _messages(row, row.get(MESSAGES), "messages", "user"))
    if any(name in row.fields for name in (*PROMPT, *COMPLETION)):
        prompt = _messages(row, row.get(PROMPT), "prompt", "user")
        return _conversation(row, prompt, _messages(row, row.get(COMPLETION), "completion", "assistant"))
    known = ", ".join(map(repr, row.fields)) or "no fields"
    raise InputError(f"{row.place}: lacks 'messages', or 'prompt' and 'completion'; it has {known}.")


def read_preference(row: DataRow) -> tuple[ChatExample, ChatExample]:
    """A row's prompt with the answer that was chosen, and with the one that was rejected.

    Both are texts or messages. Without a prompt, both are whole conversations that begin with the same messages.
    """
    chosen, rejected = (_messages(row, row.get((name,)), name, "assistant") for name in ("chosen", "rejected"))
    prompt_name = next((name for name in (*PROMPT, *MESSAGES) if name in row.fields), None)
    if prompt_name is not None:
        prompt = _messages(row, row.fields[prompt_name], prompt_name, "user")
    else:
        same = _common_length(chosen, rejected)
        prompt, chosen, rejected = chosen[:same], chosen[same:], rejected[same:]
        if not prompt:
            raise InputError(
                f"{row.place}: lacks 'prompt', and 'chosen' and 'rejected' do not begin with the same messages."
            )
    if chosen == rejected:
        raise InputError(f"{row.place}: 'chosen' and 'rejected' are the same, so there is nothing to prefer.")
    return _conversation(row, prompt, chosen), _conversation(row, prompt, rejected)


def _conversation(row: DataRow, prompt: list[dict[str, Any]], answer: list[dict[str, Any]]) -> ChatExample:
    tools = row.fields.get("tools")
    first = max(1, len(prompt))  # what opens a conversation answers nothing
    chat = ChatExample([*prompt, *answer], first, row.place, tools or None)
    if not any(index >= first for index in chat.answers):
        raise InputError(f"{row.place}: has no assistant's answer to learn. Give it one: {{'role': 'assistant', …}}.")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise InputError(f"{row.place}: 'tools' is {brief(tools)}; it must be a list of JSON schemas.")
    return chat


def _messages(row: DataRow, value: Any, name: str, role: str) -> list[dict[str, Any]]:
    """A field's messages; a text is one of this role."""
    if isinstance(value, str):
        value = [{"role": role, "content": value}]
    elif isinstance(value, dict):
        value = [value]
    if not isinstance(value, list) or not value:
        raise InputError(f"{row.place}: {name!r} is {brief(value)}; it must be a text, or a list of messages.")
    for index, message in enumerate(value):
        _check_message(f"{row.place}: message {index + 1} of {name!r}", message)
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


Span = tuple[int, int]  # of characters


class ChatTokenizer:
    """A tokenizer and its chat template, to learn from."""

    def __init__(self, tokenizer: Tokenizer, name: str) -> None:
        """`name`: the model's, for messages."""
        self.tokenizer = tokenizer
        if not tokenizer.chat_template:
            raise TemplateError(
                f"{name}: has no chat template, so conversations cannot be written for it. Take a model that chats, or "
                "train on plain text with --text."
            )
        self.marked = tokenizer.template().marks_generation
        thinks = "enable_thinking" in tokenizer.template().variables
        self._asking: Sequence[dict[str, Any]] = [{"enable_thinking": False}, {}] if thinks else [{}]  # as the commands ask

    def rows(self, chat: ChatExample) -> list[TrainingRow]:
        """A conversation as one row, or as a row for each answer where the template needs that."""
        try:
            texts = [self._marked_answers(chat)] if self.marked else self._compared_answers(chat)
        except InputError:
            raise
        except GlassError as error:
            raise InputError(f"{chat.place}: {error}") from error
        rows = [self._tokenize(text, spans) for text, spans in texts]
        if not all(any(row.predicted[1:]) for row in rows):
            raise InputError(f"{chat.place}: an answer of it is no token of its own. Give it words, or take the row out.")
        return rows

    def _marked_answers(self, chat: ChatExample) -> tuple[str, list[Span]]:
        last = chat.answers[-1]
        template = self.tokenizer.template("tool_use" if chat.tools and self._has_tool_template() else "default")
        rendered = template.render_with_spans(
            chat.messages[: last + 1], tools=chat.tools, special_tokens=self.tokenizer.special_tokens_map
        )
        if len(rendered.spans) != len(chat.answers):
            raise InputError(
                f"{chat.place}: the chat template marks {len(rendered.spans)} answers of {len(chat.answers)}. Give one "
                "answer in a row, or another template."
            )
        pairs = zip(chat.answers, rendered.spans, strict=True)
        return rendered.text, [span for index, span in pairs if index >= chat.first_learned]

    def _has_tool_template(self) -> bool:
        return not isinstance(self.tokenizer.chat_template, str) and "tool_use" in (self.tokenizer.chat_template or {})

    def _compared_answers(self, chat: ChatExample) -> list[tuple[str, list[Span]]]:
        pieces = [self._answer(chat, index) for index in chat.answers if index >= chat.first_learned]
        whole = pieces[-1][0]
        if all(whole.startswith(text) for text, _ in pieces):
            return [(whole, [span for _, span in pieces])]
        return [(text, [span]) for text, span in pieces]

    def _answer(self, chat: ChatExample, index: int) -> tuple[str, Span]:
        """The conversation up to an answer, and where in it the answer stands."""
        text = self._render(chat, index + 1)
        prompts = [self._render(chat, index, add_generation_prompt=True, **variables) for variables in self._asking]
        for prompt in prompts:
            if text.startswith(prompt) and len(prompt) < len(text):
                return text, (len(prompt), len(text))
        # A prompt may open more than the turn, such as thoughts that this answer has not: the turn's own words are common.
        before = self._render(chat, index)
        start = max(_common_length(text, prompt) for prompt in prompts)
        if not text.startswith(before) or start <= len(before) or start == len(text):
            raise InputError(
                f"{chat.place}: the chat template writes message {index + 1} in a way that its own prompt does not lead "
                "to, so the answer's words cannot be told apart. Take a template with {% generation %} around them."
            )
        return text, (start, len(text))

    def _render(self, chat: ChatExample, count: int, **options: Any) -> str:
        """The first messages as text."""
        text: str = self.tokenizer.apply_chat_template(
            list(chat.messages[:count]), tools=chat.tools, tokenize=False, **options
        )
        return text

    def _tokenize(self, text: str, spans: Sequence[Span]) -> TrainingRow:
        """A token belongs to an answer if it begins within it."""
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        starts = [start for start, _ in encoded["offset_mapping"]]
        predicted = [any(begin <= start < end for begin, end in spans) for start in starts]
        return TrainingRow(encoded["input_ids"], predicted)


def _common_length(first: Sequence[Any], second: Sequence[Any]) -> int:
    """How much two texts or lists have in common at their beginnings."""
    pairs = zip(first, second, strict=False)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))
