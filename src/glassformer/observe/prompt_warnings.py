"""Cautions: what is probably wrong with a prompt, each in a sentence that says what to do.

They are read off the text and its ids, and change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from glassformer.decoding.settings import NEW_TOKENS
from glassformer.errors import TemplateError
from glassformer.text import Tokenizer

MOST = 3  # places that are named


def prompt_warnings(
    tokenizer: Tokenizer,
    text: str,
    ids: Sequence[int],
    said: Sequence[str] | None = None,
    *,
    writes: bool = True,
    context: int | None = None,
    wanted: int | None = None,
) -> tuple[str, ...]:
    """What may be wrong with a prompt.

    Args:
        text: as the model sees it.
        said: what was given before a template was put around it; None where that is not known.
        writes: whether the model goes on with the text.
        context: how many tokens it has room for, where prompt and answer share it.
        wanted: how many an answer may have, where that is said.
    """
    rendered = said is not None and text not in said
    return (
        *_begins_twice(tokenizer, ids),
        *(_unfinished(tokenizer, text) if writes and tokenizer.chat_template else ()),
        *(_signs(tokenizer, said, rendered) if said is not None else ()),
        *(_cramped(len(ids), context, wanted or NEW_TOKENS) if context is not None else ()),
    )


def prompt_texts(prompt: str | Sequence[Mapping[str, Any]]) -> list[str]:
    """What was said in a prompt, text by text."""
    if isinstance(prompt, str):
        return [prompt]
    found = []
    for message in prompt:
        content = message.get("content")
        parts = [{"text": content}] if isinstance(content, str) else content or []
        found += [part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
    return found


def _begins_twice(tokenizer: Tokenizer, ids: Sequence[int]) -> Iterator[str]:
    first = {tokenizer.bos_token_id, tokenizer.cls_token_id} - {None}
    if len(ids) > 1 and ids[0] == ids[1] and ids[0] in first:
        token = tokenizer.convert_ids_to_tokens(ids[0])
        yield (
            f"The prompt begins with {token} twice (id {ids[0]}): the text has one, and another is put before it. "
            "Leave it out of the text."
        )


def _unfinished(tokenizer: Tokenizer, text: str) -> Iterator[str]:
    """A conversation that does not end where the answer begins, or no conversation at all."""
    begins = [one.rstrip() for one in generation_prompts(tokenizer)]
    if not begins or text.rstrip().endswith(tuple(begins)):
        return
    signs = _special(tokenizer)
    if not any(sign in text for sign in signs):
        yield (
            "This is plain text for a model that was trained on conversations: it goes on with the text and may not answer "
            "it. To ask it, let the text go through its chat template: leave out --raw, or raw=True."
        )
        return
    begun = max((text.rfind(one) + len(one) for one in begins if one in text), default=None)
    if begun is not None and not any(sign in text[begun:] for sign in signs):
        return  # an answer that is to be gone on with
    yield (
        f"The conversation does not end with {begins[0]!r}, which the chat template puts before an answer: the model may go "
        "on as somebody else. Render it with add_generation_prompt=True."
    )


def generation_prompts(tokenizer: Tokenizer) -> tuple[str, ...]:
    """What the chat template puts before an answer; two forms of it where thinking can be switched off."""
    chat = [{"role": "user", "content": "?"}]
    found = []
    try:
        switched = "enable_thinking" in tokenizer.template().variables
        ways: list[dict[str, Any]] = [{}, {"enable_thinking": False}] if switched else [{}]
        for variables in ways:
            before, whole = (
                str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=on, **variables))
                for on in (False, True)
            )
            if whole.startswith(before) and whole != before:
                found.append(whole[len(before) :])
    except TemplateError:  # it wants more than one message, or there is none for talking
        return ()
    return tuple(dict.fromkeys(found))


def _cramped(length: int, context: int, wanted: int) -> Iterator[str]:
    if (room := context - length) < min(wanted, context // 2):
        yield f"The prompt takes {length:,} of the model's {context:,} tokens, so an answer ends after {room:,}. Shorten it."


def _signs(tokenizer: Tokenizer, said: Sequence[str], rendered: bool) -> Iterator[str]:
    """Special tokens that somebody wrote."""
    special, found = set(_special(tokenizer).values()) - {tokenizer.mask_token_id}, []
    for number, text in enumerate(said, 1):
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        for token, (start, end) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
            if token in special and text[start:end].strip() == tokenizer.convert_ids_to_tokens(token).strip():
                where = f" of text {number}" if len(said) > 1 else ""
                found.append(f"{tokenizer.convert_ids_to_tokens(token)} (at character {start}{where})")
    if not found:
        return
    more = f" and {len(found) - MOST} more" if len(found) > MOST else ""
    named = ", ".join(found[:MOST]) + more
    if rendered:
        yield (
            f"Your text holds {named}: the model reads that as a sign, not as words, and may take it for the end of your "
            "message. Take it out, or render with apply_chat_template(…, sanitize_control_tokens=True)."
        )
    else:
        yield f"The text holds {named}: the model reads that as a sign, not as words."


def _special(tokenizer: Tokenizer) -> dict[str, int]:
    """The special tokens, by their texts."""
    added = tokenizer.backend.get_added_tokens_decoder()
    found = {token.content: number for number, token in added.items() if token.special}
    return found | dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
