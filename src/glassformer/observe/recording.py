"""A run as a recording: what the studio shows, and what it computes its own distributions from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from glassformer.decoding import Step
from glassformer.decoding.settings import json_value
from glassformer.decoding.waterfall import TAIL_WIDTH
from glassformer.ground.errors import InputError
from glassformer.observe.activations import Activations, residual_sites
from glassformer.observe.attention import attention_maps
from glassformer.observe.journey import prompt_stages
from glassformer.observe.lens import lens
from glassformer.observe.protocols import RunLike
from glassformer.observe.tokens import describe_tokens, token_text
from glassformer.text import Tokenizer
from glassformer.views.lens import LayerPrediction
from glassformer.views.recording import RecordedCandidates, RecordedLens, RecordedStep, RecordedTail, Recording
from glassformer.views.tokens import Token
from glassformer.views.view import View

CANDIDATES = 64  # recorded one by one; a run is watched with `look` of so many
PROMPT_TOKENS = 512  # of a prompt whose lens is recorded, at most
PATHS = 12  # candidates whose way through the rules is kept


def record(run: RunLike, tokens_per_second: float) -> Recording:
    """A watched run."""
    steps = record_steps(run.model.tokenizer, run.steps)
    lenses = record_lenses(run, range(len(steps)))
    return replace(
        start_recording(run),
        tokens_per_second=tokens_per_second,
        text=run.text,
        steps=tuple(replace(step, lens=lens) for step, lens in zip(steps, lenses, strict=True)),
    )


def record_slices(reading: Activations) -> dict[str, View]:
    """What the studio's views ask a model for: every head's attention, and what the layers predict within the prompt.

    A text that is too long for that has none of it.
    """
    slices: dict[str, View] = {}
    with suppress(InputError):
        own = attention_maps(reading)
        slices = {f"attention-maps/{kind}": attention_maps(reading, kind=kind) for kind in own.kinds if kind != own.kind}
        slices[f"attention-maps/{own.kind}"] = own
    if reading.source is None and 1 < reading.prompt_length <= PROMPT_TOKENS:
        slices["lens"] = lens(reading, range(reading.prompt_length - 1))
    return slices


def start_recording(run: RunLike) -> Recording:
    """All that is known of a run before its first token."""
    model = run.model
    return Recording(
        model.name,
        model.executor.describe().name,
        0.0,
        run.seed,
        {name: json_value(value) for name, (value, _) in run.settings.in_force.items()},
        run.prompt,
        describe_tokens(model.tokenizer, run.prompt_ids),
        "",
        (),
        tuple(residual_sites(model.blueprint)),
        TAIL_WIDTH,
        prompt_stages(model, run.prompt, run.prompt_ids),
    )


def record_steps(tokenizer: Tokenizer, steps: Sequence[Step], first: int = 0) -> list[RecordedStep]:
    """Watched steps, without what the layers predicted; `first`: the number of the first of them in its text."""
    tokens = describe_tokens(tokenizer, [step.id for step in steps], first)
    return [_step(tokenizer, step, token) for step, token in zip(steps, tokens, strict=True)]


def record_lenses(run: RunLike, numbers: Sequence[int]) -> list[RecordedLens]:
    """What each layer would have predicted in the place of some of a run's steps; a pass over prompt and text."""
    if not numbers:
        return []
    reading = Activations.of_run(run)
    seen = lens(reading, [reading.prompt_length - 1 + number for number in numbers])
    return [_lens_at(column) for column in zip(*seen.predictions, strict=True)]


def _lens_at(layers: Sequence[LayerPrediction]) -> RecordedLens:
    return RecordedLens(
        tuple(layer.text for layer in layers),
        tuple(layer.probability for layer in layers),
        tuple(layer.rank for layer in layers),
        tuple(layer.entropy for layer in layers),
    )


def _step(tokenizer: Tokenizer, step: Step, token: Token) -> RecordedStep:
    fall = step.waterfall
    if fall is None or step.logprob is None or step.candidates is None:
        raise InputError(f"this run was not watched. Get it with watch(…, look={CANDIDATES}).")
    ids = fall.ids.tolist()
    place = ids.index(step.id)
    paths = tuple(
        tuple(None if score == -math.inf else score for score in fall.scores[1:, column].tolist())
        for column in range(min(len(ids), max(PATHS, place + 1)))
    )
    texts = tuple(token_text(tokenizer, candidate) for candidate in ids)
    candidates = RecordedCandidates(tuple(ids), texts, tuple(fall.scores[0].tolist()), paths)
    rank = place + 1 if place < len(step.candidates) else None
    tail = None if fall.tail is None else RecordedTail(*fall.tail)
    return RecordedStep(
        token, -step.logprob / math.log(2), rank, fall.entropies[0], step.draw,
        step.finish.value if step.finish else None, fall.stages[1:], fall.counts, candidates, tail, None,
    )  # fmt: skip
