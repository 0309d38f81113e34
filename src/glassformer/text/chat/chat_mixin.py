"""The tokenizer's methods for conversations: messages through a chat template to a text and its ids."""

from __future__ import annotations

import inspect
import re
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import tokenizers

from glassformer.ground.arguments import checked
from glassformer.ground.errors import InputError, InputTypeError, TemplateError
from glassformer.ground.typecheck import OWN_CHECK
from glassformer.text.chat.template import ChatTemplate
from glassformer.text.chat.tools import schemas, validated_documents
from glassformer.text.encoding import BatchEncoding, TensorType
from glassformer.text.token_rows import NO_TRUNCATION, Padding, Truncation

BEGIN, END = "\U000f0000", "\U000f0001"  # for private use: no script has them
Encode: TypeAlias = Callable[[str], list[int]]


class ControlTokens:
    """The control tokens of a tokenizer and a template: all special ones, and the added ones that the template writes.

    Where a conversation spells one out, it is encoded as plain text, so that no message can pose as another role's. The
    conversation's own spellings are wrapped in two characters of no meaning before the template runs; afterwards they are
    encoded letter by letter, and those that the template wrote itself become the tokens that they are.
    """

    def __init__(self, backend: tokenizers.Tokenizer, literals: str | Sequence[str], encode: Encode) -> None:
        self.backend = backend
        self._encode = encode  # a text as the tokenizer reads it, without tokens around it
        tokens = [
            token.content
            for token in backend.get_added_tokens_decoder().values()
            if token.special or (token.content in literals and not token.content.isspace())
        ]
        pattern = "|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True)) or "(?!)"
        self.pattern = re.compile(pattern)
        self.wrapped_pattern = re.compile(f"{BEGIN}({pattern}){END}|[{BEGIN}{END}]")

    def wrap(self, value: Any) -> Any:
        """A value with every control token in its texts wrapped; a mapping's keys stay."""
        if isinstance(value, str):
            return self.pattern.sub(lambda match: f"{BEGIN}{match[0]}{END}", re.sub(f"[{BEGIN}{END}]", "", value))
        if isinstance(value, Mapping):
            return {key: self.wrap(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.wrap(item) for item in value]
        return value

    def encode(self, text: str) -> list[int]:
        """The ids of a rendered text, the wrapped tokens letter by letter."""
        first, *rest = self.wrapped_pattern.split(text)
        ids = self._encode(first)
        for index, piece in enumerate(rest):
            if not piece:
                continue
            if index % 2:  # between two wrapped ones
                ids += self._encode_mid_text(piece, self._encode)
                continue
            letters = self._encode_mid_text(piece, self._encode_without_added_tokens)
            if self.backend.token_to_id(piece) in letters:
                raise InputError(f"{piece!r} cannot be kept as text: the tokenizer has no other spelling. Take it out.")
            ids += letters
        return ids

    def _encode_mid_text(self, piece: str, encode: Encode) -> list[int]:
        """A piece's ids in the middle of a text, where no space is put before it as at the beginning."""
        line, ids = self._encode("\n"), encode(f"\n{piece}")
        return ids[len(line) :] if ids[: len(line)] == line else encode(piece)

    def _encode_without_added_tokens(self, text: str) -> list[int]:
        """Encoded by the model alone, which knows no added tokens."""
        if self.backend.normalizer is not None:
            text = self.backend.normalizer.normalize_str(text)
        before = self.backend.pre_tokenizer
        parts = [text] if before is None else [part for part, _ in before.pre_tokenize_str(text)]
        return [token.id for part in parts for token in self.backend.model.tokenize(part)]


class ChatMixin:
    """What `Tokenizer` inherits; it needs a template, the special tokens, and a way to encode a text."""

    backend: tokenizers.Tokenizer
    chat_template: str | Mapping[str, str] | None
    chat_control_tokens: Sequence[str] | None
    truncation_side: str
    model_max_length: int
    pad: Callable[..., BatchEncoding]

    @property
    def special_tokens_map(self) -> dict[str, Any]:
        raise NotImplementedError

    def __call__(self, text: Any, **options: Any) -> BatchEncoding:
        raise NotImplementedError

    def template(self, name: str = "default") -> ChatTemplate:
        """The model's own chat template, or the one of that name where it has several."""
        templates = self.chat_template
        if not templates:
            raise TemplateError("this tokenizer has no chat template. Pass chat_template=…, or use plain text.")
        if isinstance(templates, str):
            return ChatTemplate(templates)
        if name not in templates:
            raise TemplateError(
                f"there is no chat template {name!r}. Pass chat_template= one of: {', '.join(sorted(templates))}."
            )
        return ChatTemplate(templates[name])

    def get_chat_template(self, chat_template: str | None = None, tools: Sequence[Any] | None = None) -> str:
        """The source of a template: one given or named, else the model's own, for tools where it has one for them."""
        templates = self.chat_template if isinstance(self.chat_template, Mapping) else {}
        if chat_template is None:
            return self.template("tool_use" if tools is not None and "tool_use" in templates else "default").source
        if not isinstance(chat_template, str):
            raise InputTypeError(f"chat_template is a template's text or name, not {type(chat_template).__name__}.")
        return templates.get(chat_template, chat_template)

    @checked
    def apply_chat_template(
        self,
        conversation: Any,
        tools: Annotated[Sequence[Mapping[str, Any] | Callable[..., Any]] | None, OWN_CHECK] = None,
        documents: Annotated[Sequence[Mapping[str, Any]] | None, OWN_CHECK] = None,
        chat_template: Annotated[str | None, OWN_CHECK] = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool | str = False,
        tokenize: bool = True,
        sanitize_control_tokens: bool = False,
        padding: Padding = False,
        truncation: Truncation = False,
        max_length: int | None = None,
        return_tensors: TensorType = None,
        return_dict: bool = True,
        return_assistant_tokens_mask: bool = False,
        tokenizer_kwargs: Mapping[str, Any] | None = None,
        **variables: Any,
    ) -> Any:
        """Format messages as the model was trained on them, and tokenize.

        Args:
            conversation: `[{"role": "user", "content": "…"}, …]`, or a list of such lists for a batch.
            tools: what the model may call: functions with type hints and docstrings, or JSON schemas.
            documents: what the model may quote: `[{"title": "…", "text": "…"}, …]`.
            chat_template: another template than the model's own, or the name of one where it has several.
            add_generation_prompt: end with the words that open the assistant's turn.
            continue_final_message: leave the last message open, for the model to go on from; the name of one of its
                fields, such as "reasoning_content", goes on from that one.
            tokenize: False gives the text.
            sanitize_control_tokens: what the conversation spells like a control token is encoded as plain text.
            return_dict: False gives the ids alone.
            return_assistant_tokens_mask: add `assistant_masks`, 1 where the template marks the assistant's words.
            tokenizer_kwargs: more options for the tokenizer.
            variables: whatever the template declares, such as `enable_thinking=False`.
        """
        masks = return_assistant_tokens_mask
        _refuse_both("continue_final_message", continue_final_message, "add_generation_prompt=True", add_generation_prompt)
        _refuse_both("continue_final_message", continue_final_message, "return_assistant_tokens_mask=True", masks)
        _refuse_both("sanitize_control_tokens", sanitize_control_tokens, "return_assistant_tokens_mask=True", masks)
        _refuse_both("sanitize_control_tokens", sanitize_control_tokens, "tokenize=False", not tokenize)
        _refuse_both("return_assistant_tokens_mask", masks, "tokenize=False", not tokenize)
        _refuse_both("return_assistant_tokens_mask", masks, "return_dict=False", not return_dict)
        windows = (tokenizer_kwargs or {}).get("return_overflowing_tokens")
        _refuse_both("return_assistant_tokens_mask", masks, "return_overflowing_tokens=True", windows)
        template = ChatTemplate(self.get_chat_template(chat_template, tools))
        if masks and not template.marks_generation:
            raise TemplateError(
                "the chat template does not say which words are the assistant's. "
                "Pass one that puts them between {% generation %} and {% endgeneration %}."
            )
        first = conversation[0] if isinstance(conversation, Sequence) and conversation else None
        batched = isinstance(first, (list, tuple)) or hasattr(first, "messages")
        controls = ControlTokens(self.backend, self._literals(template), self._ids) if sanitize_control_tokens else None
        extras = {"tools": schemas(tools), "documents": validated_documents(documents)}
        rendered = [
            template.render_with_spans(
                controls.wrap(getattr(chat, "messages", chat)) if controls else chat,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                **(controls.wrap(extras) if controls else extras),
                special_tokens=self.special_tokens_map,
                variables=variables,
                also=inspect.signature(self.apply_chat_template).parameters,
            )
            for chat in (conversation if batched else [conversation])
        ]
        texts = [chat.text for chat in rendered]
        if not tokenize:
            return texts if batched else texts[0]
        options = {
            "add_special_tokens": False,
            "padding": padding,
            "truncation": truncation,
            "max_length": max_length,
            "return_tensors": return_tensors,
        }
        for name in set(options) & set(tokenizer_kwargs or {}):
            raise InputTypeError(f"tokenizer_kwargs has {name!r}, which apply_chat_template sets. Pass it by itself.")
        options |= tokenizer_kwargs or {}
        if controls:
            encoded = self._pad_ids([controls.encode(text) for text in texts], batched, options)
        else:
            encoded = self(texts if batched else texts[0], **options)
        if masks:
            rows = [_mask(chat.spans, row.offsets) for chat, row in zip(rendered, encoded.encodings or [], strict=True)]
            encoded["assistant_masks"] = rows if batched or return_tensors else rows[0]
            encoded.convert_to_tensors(return_tensors)
        return encoded if return_dict else encoded["input_ids"]

    @checked
    def encode_message_with_chat_template(
        self, message: Mapping[str, Any], conversation_history: Sequence[Mapping[str, Any]] | None = None, **options: Any
    ) -> list[int]:
        """The ids that one message adds to a conversation: those from where the two rendered texts' ids first differ."""
        if "add_generation_prompt" in options:
            raise InputError("one message has no generation prompt. Leave add_generation_prompt out, and add it at the end.")
        before = list(conversation_history or [])
        ids: list[int] = self.apply_chat_template([*before, message], return_dict=False, **options)
        start: list[int] = self.apply_chat_template(before, return_dict=False, **options) if before else []
        difference = next(
            (position for position, (old, new) in enumerate(zip(start, ids, strict=False)) if old != new), None
        )
        return ids[min(len(start), len(ids)) if difference is None else difference :]

    def _literals(self, template: ChatTemplate) -> str | Sequence[str]:
        """Where the added tokens stand that no message may spell: in the model's own list, else in the template."""
        return template.literals if self.chat_control_tokens is None else self.chat_control_tokens

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self(text, add_special_tokens=False)["input_ids"]
        return ids

    def _pad_ids(self, rows: list[list[int]], batched: bool, options: Mapping[str, Any]) -> BatchEncoding:
        """Ids truncated and padded as the tokenizer would."""
        options = {name: value for name, value in options.items() if name != "add_special_tokens"}
        if options.pop("truncation") not in NO_TRUNCATION:
            limit = self.model_max_length if options["max_length"] is None else options["max_length"]
            rows = [ids[:limit] if self.truncation_side == "right" else ids[max(0, len(ids) - limit) :] for ids in rows]
        return self.pad({"input_ids": rows if batched or options["return_tensors"] else rows[0]}, **options)


def _refuse_both(option: str, value: object, other_option: str, other_value: object) -> None:
    if value and other_value:
        raise InputError(f"{option} does not go together with {other_option}. Leave one of them out.")


def _mask(spans: Sequence[tuple[int, int]], offsets: Sequence[tuple[int, int]]) -> list[int]:
    """1 for each token from the one that holds a span's first character to the one that holds its last."""
    mask = [0] * len(offsets)
    visible = [position for position, (begin, end) in enumerate(offsets) if begin < end]
    ends = [offsets[position][1] for position in visible]

    def token(character: int) -> int | None:
        index = bisect(ends, character)
        return visible[index] if index < len(visible) and offsets[visible[index]][0] <= character else None

    for begin, end in spans:
        first, last = token(begin), token(end - 1)
        if begin == end:
            continue
        if first is None:  # cut off, and so are the spans after it
            break
        for position in range(first, len(mask) if last is None else last + 1):
            mask[position] = 1
    return mask
