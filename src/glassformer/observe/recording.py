"""A run as a recording: what the studio shows, and what it computes its own distributions from."""

from __future__ import annotations

import math

from glassformer.decoding import Step
from glassformer.decoding.settings import json_value
from glassformer.decoding.waterfall import TAIL_WIDTH
from glassformer.errors import InputError
from glassformer.observe.protocols import RunLike
from glassformer.observe.tokens import describe_tokens, token_text
from glassformer.text import Tokenizer
from glassformer.views.journey import Journey
from glassformer.views.lens import Lens
from glassformer.views.recording import RecordedCandidates, RecordedLens, RecordedStep, RecordedTail, Recording
from glassformer.views.tokens import Token

CANDIDATES = 64  # recorded one by one; a run is watched with `look` of so many
PATHS = 12  # candidates whose way through the rules is kept


def record(run: RunLike, journey: Journey, lens: Lens | None, tokens_per_second: float) -> Recording:
    """A watched run; `lens`: at the positions that predicted its tokens, if the model has one."""
    tokenizer = run.model.tokenizer
    tokens = describe_tokens(tokenizer, [step.id for step in run.steps])
    layers = [None] * len(tokens) if lens is None else [_lens_at(lens, column) for column in range(len(tokens))]
    return Recording(
        run.model.name,
        run.model.executor.describe().name,
        tokens_per_second,
        run.seed,
        {name: json_value(value) for name, (value, _) in run.settings.in_force.items()},
        run.prompt,
        describe_tokens(tokenizer, run.prompt_ids),
        run.text,
        tuple(_step(tokenizer, *parts) for parts in zip(run.steps, tokens, layers, strict=True)),
        () if lens is None else lens.layers,
        TAIL_WIDTH,
        journey.stages,
    )


def _step(tokenizer: Tokenizer, step: Step, token: Token, lens: RecordedLens | None) -> RecordedStep:
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
        step.finish.value if step.finish else None, fall.stages[1:], fall.counts, candidates, tail, lens,
    )  # fmt: skip


def _lens_at(lens: Lens, column: int) -> RecordedLens:
    predictions = [layer[column] for layer in lens.predictions]
    return RecordedLens(
        tuple(prediction.text for prediction in predictions),
        tuple(prediction.probability for prediction in predictions),
        tuple(prediction.rank for prediction in predictions),
        tuple(prediction.entropy for prediction in predictions),
    )
