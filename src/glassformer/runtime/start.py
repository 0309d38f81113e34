"""How a run starts: settings are merged and the prompt is rendered and encoded, each once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from glassformer.decoding import GenerationConfig
from glassformer.decoding.settings import GENERATE_ONLY, empty_prompt_token
from glassformer.decoding.stopping import when_cancelled
from glassformer.ground.errors import InputError, SettingError, check_context, check_ids
from glassformer.runtime.run import Run
from glassformer.text.prompt import Prompt, PromptOptions, encode

if TYPE_CHECKING:
    from glassformer.see.protocols import ModelLike


def start(
    model: ModelLike, prompt: Prompt | Run, keywords: Mapping[str, Any], call: Callable[..., Any], several: bool = False
) -> Run:
    """A run that is ready to be written: a prompt with its settings, or one that goes on where another run ended.

    Args:
        keywords: prompt options and settings.
        call: the public method that they were passed to, for messages.
        several: whether the run may have several texts.
    """
    options, given = PromptOptions.split(keywords, call, GenerationConfig.names())
    check_writes(model)
    if unused := [name for name in GENERATE_ONLY if given.get(name)]:
        raise SettingError(f"{unused[0]} is for generate(). Here watch(…) keeps all there is: run.steps.")
    settings = model.settings.merged(given if several else {"num_return_sequences": 1, **given})
    settings.draw_seed()
    if isinstance(prompt, Run):
        _check_continuation(model, options)
        run = ready(model, prompt.prompt + prompt.text, (*prompt.prompt_ids, *prompt.ids), settings, prompt.negative)
        run.contents = prompt.contents and (*prompt.contents, prompt.text)
        return run
    text, ids = encode(model, prompt, options)
    run = ready(model, text, ids, settings, _negative_text_ids(model, settings, options))
    run.contents = options.contents(model.tokenizer, prompt)
    return run


def ready(
    model: ModelLike, text: str, ids: Sequence[int], settings: GenerationConfig, negative: Sequence[int] | None = None
) -> Run:
    """A run of an encoded prompt under complete settings, refused if it leaves no room in the context."""
    recipe = model.recipe(settings)
    check_room(model, settings, ids)  # before anything is loaded
    if settings.negative_prompt_ids is not None:
        negative = _flat_ids(settings.negative_prompt_ids)
    check_ids((*ids, *(negative or ())), model.config.vocab_size)
    seed = settings.seed if settings.do_sample else None
    run = Run(model, text, tuple(ids), recipe, seed, None if negative is None else tuple(negative))
    run.recipe = replace(recipe, stops=(*recipe.stops, when_cancelled(run.cancelling)))
    return run


def check_writes(model: ModelLike) -> None:
    """Refuse a model that writes no text."""
    if not model.writes:
        what = "an encoder" if model.config.default_head == "masked" else f"a model with a {model.head} head"
        raise InputError(
            f"{model.name} is {what} ({model.config.model_type}): it reads text and writes none. "
            "Look at what it makes of a text: glass look."
        )


def check_room(model: ModelLike, settings: GenerationConfig, ids: Sequence[int]) -> None:
    """Refuse a prompt that leaves no room in the context; an encoder-decoder's prompt goes to its encoder."""
    settings.room(len(ids) if model.decoder_start_token is None else 1, model.config.context)
    check_context(len(ids), model.config.source_context)


def _check_continuation(model: ModelLike, options: PromptOptions) -> None:
    if model.decoder_start_token is not None:
        raise InputError(f"{model.name} is an encoder-decoder: it reads one text and answers it, and cannot go on.")
    if options != PromptOptions():
        raise InputError("a run goes on as its tokens stand: raw, system and template are for a prompt. Leave them out.")


def _negative_text_ids(model: ModelLike, settings: GenerationConfig, options: PromptOptions) -> tuple[int, ...] | None:
    """The ids of a negative prompt that is text."""
    if settings.negative_prompt is None:
        return None
    if settings.negative_prompt == "":
        return (empty_prompt_token(settings),)
    return encode(model, settings.negative_prompt, options, fits=False)[1]


def _flat_ids(ids: Any) -> tuple[int, ...]:
    """Token ids of any shape as a flat tuple."""
    array = np.asarray(ids)
    if array.size == 0 or array.dtype.kind not in "iu":
        raise InputError(f"negative_prompt_ids are token ids, at least one, not {ids!r}.")
    return tuple(array.reshape(-1).tolist())
