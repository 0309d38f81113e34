"""The half of a tokenizer's face that deals with conversations: messages through a chat template to a text and its ids."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from glassformer.errors import TemplateError
from glassformer.text.encoding import BatchEncoding, Tensors
from glassformer.text.rows import Padding, Truncation
from glassformer.text.template import ChatTemplate


class Chats:
    """What `Tokenizer` inherits; it needs a template, the special tokens, and a way to encode a text."""

    chat_template: str | Mapping[str, str] | None

    @property
    def special_tokens_map(self) -> dict[str, Any]:
        raise NotImplementedError

    def __call__(self, text: Any, **options: Any) -> BatchEncoding:
        raise NotImplementedError

    def template(self, name: str = "default") -> ChatTemplate:
        """The model's own chat template, or the one of that name where it has several."""
        held = self.chat_template
        if not held:
            raise TemplateError("this tokenizer has no chat template. Pass chat_template=…, or use plain text.")
        if isinstance(held, str):
            return ChatTemplate(held)
        if name not in held:
            raise TemplateError(
                f"there is no chat template {name!r}. Pass chat_template= one of: {', '.join(sorted(held))}."
            )
        return ChatTemplate(held[name])

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        padding: Padding = False,
        truncation: Truncation = False,
        max_length: int | None = None,
        return_tensors: Tensors = None,
        return_dict: bool = True,
        **variables: Any,
    ) -> Any:
        """Format messages as the model was trained on them, and tokenize.

        Args:
            conversation: `[{"role": "user", "content": "…"}, …]`, or a list of such lists for a batch.
            chat_template: another template than the model's own, or the name of one where it has several.
            add_generation_prompt: end with the words that open the assistant's turn.
            tokenize: False gives the text.
            return_dict: False gives the ids alone.
            variables: whatever the template declares, such as `enable_thinking=False`.
        """
        named = self.chat_template if isinstance(self.chat_template, Mapping) else {}
        if chat_template is None:
            template = self.template("tool_use" if variables.get("tools") and "tool_use" in named else "default")
        else:
            template = ChatTemplate(named.get(chat_template, chat_template))
        first = conversation[0] if isinstance(conversation, Sequence) and conversation else None
        many = isinstance(first, Sequence) and not isinstance(first, str)
        conversations: Sequence[Any] = conversation if many else [conversation]
        texts = [
            template.render(
                one,
                add_generation_prompt=add_generation_prompt,
                special_tokens=self.special_tokens_map,
                variables=variables,
                also=inspect.signature(self.apply_chat_template).parameters,
            )
            for one in conversations
        ]
        if not tokenize:
            return texts if many else texts[0]
        found = self(
            texts if many else texts[0],
            add_special_tokens=False,
            padding=padding,
            truncation=truncation,
            max_length=max_length,
            return_tensors=return_tensors,
        )
        return found if return_dict else found["input_ids"]
