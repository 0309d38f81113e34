"""Conversations as tokens, as the model's chat template writes them; and which of them are the assistant's.

A template that marks the assistant's words itself ({% generation %}) is believed. For any other, an answer is what the
template adds to the prompt that it makes for it: the conversation up to the answer is rendered as it is when the model is
asked, and compared with the rendering that ends with the answer. So the end of a turn belongs to what is learned, and the
words that open it do not.

Some templates write earlier answers in another way once there are later ones, for example without their thoughts. Then
each answer becomes a row of its own, with the words before it as the model sees them when it answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glassformer.ground.errors import GlassError, InputError, TemplateError
from glassformer.text import Tokenizer
from glassformer.training.chat_rows import Conversation
from glassformer.training.packing import TrainingRow

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

    def rows(self, chat: Conversation) -> list[TrainingRow]:
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

    def _marked_answers(self, chat: Conversation) -> tuple[str, list[Span]]:
        last = _last_answer(chat)
        template = self.tokenizer.template("tool_use" if chat.tools and self._has_tool_template() else "default")
        rendered = template.render_with_spans(
            chat.messages[: last + 1], tools=chat.tools, special_tokens=self.tokenizer.special_tokens_map
        )
        answers = [number for number in range(last + 1) if chat.messages[number]["role"] == "assistant"]
        if len(rendered.spans) != len(answers):
            raise InputError(
                f"{chat.place}: the chat template marks {len(rendered.spans)} answers of {len(answers)}. Give one answer in "
                "a row, or another template."
            )
        pairs = zip(answers, rendered.spans, strict=True)
        return rendered.text, [span for number, span in pairs if number >= chat.first_learned]

    def _has_tool_template(self) -> bool:
        return not isinstance(self.tokenizer.chat_template, str) and "tool_use" in (self.tokenizer.chat_template or {})

    def _compared_answers(self, chat: Conversation) -> list[tuple[str, list[Span]]]:
        answers = range(chat.first_learned, len(chat.messages))
        pieces = [self._answer(chat, number) for number in answers if chat.messages[number]["role"] == "assistant"]
        whole = pieces[-1][0]
        if all(whole.startswith(text) for text, _ in pieces):
            return [(whole, [span for _, span in pieces])]
        return [(text, [span]) for text, span in pieces]

    def _answer(self, chat: Conversation, number: int) -> tuple[str, Span]:
        """The conversation up to an answer, and where in it the answer stands."""
        text = self._render(chat, number + 1)
        prompts = [self._render(chat, number, add_generation_prompt=True, **variables) for variables in self._asking]
        for prompt in prompts:
            if text.startswith(prompt) and len(prompt) < len(text):
                return text, (len(prompt), len(text))
        # A prompt may open more than the turn, such as thoughts that this answer has not: the turn's own words are common.
        before = self._render(chat, number)
        start = max(_common_length(text, prompt) for prompt in prompts)
        if not text.startswith(before) or start <= len(before) or start == len(text):
            raise InputError(
                f"{chat.place}: the chat template writes message {number + 1} in a way that its own prompt does not lead "
                "to, so the answer's words cannot be told apart. Take a template with {% generation %} around them."
            )
        return text, (start, len(text))

    def _render(self, chat: Conversation, count: int, **options: Any) -> str:
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


def _last_answer(chat: Conversation) -> int:
    return max(number for number, message in enumerate(chat.messages) if message["role"] == "assistant")


def _common_length(text: str, other: str) -> int:
    pairs = zip(text, other, strict=False)
    return next((place for place, (one, two) in enumerate(pairs) if one != two), min(len(text), len(other)))
