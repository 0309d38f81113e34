"""The trace: at each place of a text, what the model expected there, which token stands there, and its surprisal.

Of any text, this is teacher forcing: each token is scored by what stands before it, and the mean surprisal is the loss. Of a
text that the model wrote, it is the record of its choices. A model that fills gaps is asked at each place, with the token
there masked.

Surprisal and entropy are in bits; the loss is in nats, as trainings have it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np

from glassformer.decoding import Step
from glassformer.ground.candidates import entropy_stats, top
from glassformer.ground.errors import InputError
from glassformer.ground.operations import about, operation
from glassformer.ground.progress import Progress
from glassformer.observe.activations import Activations
from glassformer.observe.answers import candidates
from glassformer.observe.protocols import Floats, RunLike
from glassformer.observe.tokens import token_text
from glassformer.views.trace import Trace, TracePlace

TOP = 5  # candidates of each place
MOST_BITS = 1000  # of surprisal: what float64 has a perplexity for
BEFORE = 24  # tokens whose text is shown before a place
BATCH = 16  # copies of a text, each with another token masked


def _trace(model: str, text: str, places: Sequence[TracePlace]) -> Trace:
    scored = [place.surprisal for place in places if place.surprisal is not None]
    if not scored:
        return Trace(model, text, tuple(places), 0, None, None)
    mean = sum(scored) / len(scored)
    perplexity = 2.0**mean if mean < MOST_BITS else math.inf
    return Trace(model, text, tuple(places), len(scored), mean * math.log(2), perplexity, mean)


@operation(route="trace")
def trace(
    reading: Activations,
    best: Annotated[int, about("Candidates to keep at each position.", minimum=1, maximum=1000, served_maximum=20)] = TOP,
    *,
    progress: Progress | None = None,
) -> Trace:
    """Show at each place what was expected, which token stands there, and its surprisal; and what would come next."""
    if best < 1:
        raise InputError(f"best is {best}; at each place at least 1 candidate is shown.")
    model = reading.model
    if model.writes:
        places = list(_causal(reading, best, progress))
    elif model.head == "masked":
        places = list(_masked(reading, best, progress))
    else:
        raise InputError(
            f"{model.name} scores no tokens ({model.head}), so there is nothing to trace. Look at it: glass look."
        )
    return _trace(model.name, model.tokenizer.decode(reading.ids), places)


def _causal(reading: Activations, best: int, progress: Progress | None) -> Iterator[TracePlace]:
    for chunk in reading.chunks(scored=True, progress=progress):
        assert chunk.scores is not None
        for number, scores in enumerate(chunk.scores):
            yield _place(reading, chunk.start + number + 1, scores, best)


def _place(reading: Activations, position: int, scores: Floats, best: int) -> TracePlace:
    tokenizer, ids = reading.model.tokenizer, reading.ids
    token = ids[position] if position < len(ids) else None
    stats = entropy_stats(scores)
    expected = top(scores, best, stats.total)  # refuses scores that are no numbers
    probability, rank, surprisal = None, None, None
    if token is not None:
        depth = float(scores[token] - scores.max())
        probability, surprisal = math.exp(depth) / stats.total, (math.log(stats.total) - depth) / math.log(2)
        rank = int(np.count_nonzero(scores > scores[token])) + 1
    return TracePlace(
        position,
        tokenizer.decode(ids[max(0, position - BEFORE) : position]),
        token,
        "" if token is None else token_text(tokenizer, token),
        token is not None and position >= reading.prompt_length,
        probability,
        surprisal,
        rank,
        stats.entropy,
        candidates(tokenizer, expected),
    )


def _masked(reading: Activations, best: int, progress: Progress | None) -> Iterator[TracePlace]:
    """Each token is masked in turn, and predicted from all the others."""
    model, module, tokenizer = reading.model, reading.model.module, reading.model.tokenizer
    import torch

    mask = tokenizer.mask_token_id
    if mask is None:
        raise InputError(f"{model.name} has no mask token, so it cannot be asked what stands at a place.")
    special = set(tokenizer.all_special_ids)
    places = [number for number, token in enumerate(reading.ids) if token not in special]
    for start in range(0, len(places), BATCH):
        group = places[start : start + BATCH]
        rows = torch.tensor([[*reading.ids[:at], mask, *reading.ids[at + 1 :]] for at in group])
        with torch.inference_mode():
            scores = module(rows).logits
        for row, at in enumerate(group):
            yield _place(reading, at, scores[row, at].float().numpy(), best)
        if progress is not None:
            progress(start + len(group), len(places))


def trace_run(run: RunLike) -> Trace:
    """The trace of what a run wrote, from the candidates in its steps."""
    tokenizer, ids = run.model.tokenizer, list(run.prompt_ids) if run.model.start is None else [run.model.start]
    places = []
    for step in run.steps:
        places.append(_step(run, step, len(ids), tokenizer.decode(ids[-BEFORE:])))
        ids.append(step.id)
    return _trace(run.model.name, run.text, places)


def trace_with_prompt(run: RunLike, best: int = TOP) -> Trace:
    """The trace of a run's prompt and of what it wrote."""
    reading = Activations.of_run(run)
    prompt = [place for place in trace(reading, best).places if place.position < reading.prompt_length]
    return _trace(run.model.name, run.prompt + run.text, [*prompt, *trace_run(run).places])


def _step(run: RunLike, step: Step, position: int, before: str) -> TracePlace:
    tokenizer, best = run.model.tokenizer, step.candidates
    if best is None:
        raise InputError("this run kept no candidates. Get it with watch(…), or watch_many(…, look=10).")
    ids = best.ids.tolist()
    probability = None if step.logprob is None else math.exp(step.logprob)
    surprisal = None if step.logprob is None else -step.logprob / math.log(2)
    return TracePlace(
        position, before, step.id, token_text(tokenizer, step.id), True, probability, surprisal,
        ids.index(step.id) + 1 if step.id in ids else None, step.entropy, candidates(tokenizer, best), step.draw,
        step.finish.value if step.finish else None,
    )  # fmt: skip
