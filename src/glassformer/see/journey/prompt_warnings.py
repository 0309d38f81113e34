"""Warnings: what is probably wrong with a prompt, each in a sentence that says what to do.

They are read off the text and its ids, and change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from glassformer.decoding.settings_table import NEW_TOKENS
from glassformer.ground.errors import TemplateError
from glassformer.text import Tokenizer

MAX_NAMED = 3  # special tokens that are named


def prompt_warnings(
    tokenizer: Tokenizer,
    text: str,
    ids: Sequence[int],
    user_texts: Sequence[str] | None = None,
    *,
    writes: bool = True,
    context: int | None = None,
    max_new_tokens: int | None = None,
) -> tuple[str, ...]:
    """What may be wrong with a prompt.

    Args:
        text: as the model sees it.
        user_texts: what stood in the prompt before a template was rendered around it; None where that is not known.
        writes: whether the model continues the text.
        context: how many tokens it has room for, where prompt and answer share it.
        max_new_tokens: of the answer, where that is set.
    """
    rendered = user_texts is not None and text not in user_texts
    return (
        *_doubled_bos(tokenizer, ids),
        *(_missing_generation_prompt(tokenizer, text) if writes and tokenizer.chat_template else ()),
        *(_special_tokens_in(user_texts, tokenizer, rendered) if user_texts is not None else ()),
        *(_little_room(len(ids), context, max_new_tokens or NEW_TOKENS) if context is not None else ()),
    )


def _doubled_bos(tokenizer: Tokenizer, ids: Sequence[int]) -> Iterator[str]:
    first = {tokenizer.bos_token_id, tokenizer.cls_token_id} - {None}
    if len(ids) > 1 and ids[0] == ids[1] and ids[0] in first:
        token = tokenizer.convert_ids_to_tokens(ids[0])
        yield (
            f"The prompt begins with {token} twice (id {ids[0]}): the text has one, and another is put before it. "
            "Leave it out of the text."
        )


def _missing_generation_prompt(tokenizer: Tokenizer, text: str) -> Iterator[str]:
    """A conversation that does not end where the answer begins, or no conversation at all."""
    openings = [opening.rstrip() for opening in generation_prompts(tokenizer)]
    if not openings or text.rstrip().endswith(tuple(openings)):
        return
    special = _special_tokens(tokenizer)
    if not any(token in text for token in special):
        yield (
            "This is plain text for a model that was trained on conversations: it continues the text and may not answer it. "
            "To ask it, let the text go through its chat template: leave out --raw, or raw=True."
        )
        return
    ends = (text.rfind(opening) + len(opening) for opening in openings if opening in text)
    answer = max(ends, default=None)
    if answer is not None and not any(token in text[answer:] for token in special):
        return  # an answer that is to be continued
    yield (
        f"The conversation does not end with {openings[0]!r}, which the chat template puts before an answer: the model may "
        "continue as somebody else. Render it with add_generation_prompt=True."
    )


def generation_prompts(tokenizer: Tokenizer) -> tuple[str, ...]:
    """What the chat template puts before an answer; two forms of it where thinking can be switched off."""
    chat = [{"role": "user", "content": "?"}]
    openings = []
    try:
        switchable = "enable_thinking" in tokenizer.template().variables
        variants: list[dict[str, Any]] = [{}, {"enable_thinking": False}] if switchable else [{}]
        for variables in variants:
            chat_text, prompt = (
                str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=on, **variables))
                for on in (False, True)
            )
            if prompt.startswith(chat_text) and prompt != chat_text:
                openings.append(prompt[len(chat_text) :])
    except TemplateError:  # it needs more than one message, or there is none for conversations
        return ()
    return tuple(dict.fromkeys(openings))


def _little_room(length: int, context: int, max_new_tokens: int) -> Iterator[str]:
    if (room := context - length) < min(max_new_tokens, context // 2):
        yield f"The prompt takes {length:,} of the model's {context:,} tokens, so an answer ends after {room:,}. Shorten it."


def _special_tokens_in(texts: Sequence[str], tokenizer: Tokenizer, rendered: bool) -> Iterator[str]:
    """Special tokens that the user wrote."""
    special, places = set(_special_tokens(tokenizer).values()) - {tokenizer.mask_token_id}, []
    for number, text in enumerate(texts, 1):
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        for token, (start, end) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
            if token in special and text[start:end].strip() == tokenizer.convert_ids_to_tokens(token).strip():
                where = f" of text {number}" if len(texts) > 1 else ""
                places.append(f"{tokenizer.convert_ids_to_tokens(token)} (at character {start}{where})")
    if not places:
        return
    more = f" and {len(places) - MAX_NAMED} more" if len(places) > MAX_NAMED else ""
    named = ", ".join(places[:MAX_NAMED]) + more
    if rendered:
        yield (
            f"Your text contains {named}: the model reads that as a special token, not as words, and may take it for the "
            "end of your message. Take it out, or render with apply_chat_template(…, sanitize_control_tokens=True)."
        )
    else:
        yield f"The text contains {named}: the model reads that as a special token, not as words."


def _special_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """The special tokens' ids, by their texts."""
    added = tokenizer.backend.get_added_tokens_decoder()
    special = {token.content: token_id for token_id, token in added.items() if token.special}
    return special | dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
