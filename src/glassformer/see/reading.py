"""A text that a model has read: every view of it, each by one call and in a pass of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from glassformer.ground.errors import InputError, check_context
from glassformer.ground.operations import operation
from glassformer.see.activations import Activations
from glassformer.see.protocols import ModelLike
from glassformer.see.reading_operations import ReadingOperations
from glassformer.text.prompt import Prompt, PromptKeywords, PromptOptions, encode


class Reading(Activations, ReadingOperations):
    """A text that a model has read, and perhaps written."""


@operation()
def read(model: ModelLike, prompt: Prompt, target: str | None = None, **prompt_options: Unpack[PromptKeywords]) -> Reading:
    """A text under the glass, for its trace, attention, lens and more; `target`: an encoder-decoder's output text."""
    options = PromptOptions.of(prompt_options, read)
    _, ids = encode(model, prompt, options)
    contents = options.contents(model.tokenizer, prompt)
    check_context(len(ids), model.config.context)
    if model.decoder_start_token is None:
        if target is not None:
            raise InputError(f"{model.name} is no encoder-decoder, so it has no target. Put both into one text.")
        return Reading(model, ids, None, len(ids), contents)
    after = () if target is None else tuple(model.tokenizer(text_target=target)["input_ids"])
    return Reading(model, (model.decoder_start_token, *after), ids, 1 + len(after), contents)


@operation()
def read_ids(
    model: ModelLike, prompt_ids: Sequence[int], answer_ids: Sequence[int] = (), contents: Sequence[str] | None = None
) -> Reading:
    """A prompt and an answer under the glass, exactly as their ids say: what a run read and wrote.

    `contents`: the texts in the prompt, around which its chat template stands; None: there is none.
    """
    return Reading.of_ids(model, prompt_ids, answer_ids, contents)
