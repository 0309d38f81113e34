"""The trace: at each place of a text, what the model expected there, what came, and how much of a surprise that was.

Of a text that is given, this is teacher forcing: each token is scored by what stands before it, and the mean surprise is the
loss. Of a text that the model wrote, it is the record of its choices. A model that fills gaps is asked at each place, with
the token there hidden.

Surprise and entropy are in bits; the loss is in nats, as the field has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from glassformer.candidates import top
from glassformer.decoding import Step
from glassformer.decoding.waterfall import spread
from glassformer.errors import InputError
from glassformer.observe.activations import Activations
from glassformer.observe.answers import candidates
from glassformer.observe.protocols import Floats, RunLike
from glassformer.progress import Progress
from glassformer.text.pieces import shown_bytes
from glassformer.views.trace import Place, Trace

TOP = 5  # candidates of each place
BEFORE = 24  # tokens whose text is shown before a place
TOGETHER = 16  # copies of a text, each with another token hidden, that run at once


def trace(model: str, text: str, places: Sequence[Place]) -> Trace:
    scored = [place.surprisal for place in places if place.surprisal is not None]
    loss = sum(scored) / len(scored) * math.log(2) if scored else None
    return Trace(model, text, tuple(places), len(scored), loss, None if loss is None else _exp(loss))


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


def read(reading: Activations, best: int = TOP, progress: Progress | None = None) -> Trace:
    """The trace of a text that is given, and of what would come next."""
    model = reading.model
    if model.writes:
        places = list(_causal(reading, best, progress))
    elif model.head == "masked":
        places = list(_masked(reading, best, progress))
    else:
        raise InputError(
            f"{model.name} scores no tokens ({model.head}), so there is nothing to trace. Look at it: glass look."
        )
    return trace(model.name, model.tokenizer.decode(reading.ids), places)


def _causal(reading: Activations, best: int, progress: Progress | None) -> Iterator[Place]:
    for chunk in reading.chunks(scored=True, progress=progress):
        assert chunk.scores is not None
        for number, scores in enumerate(chunk.scores):
            yield _place(reading, chunk.start + number + 1, scores, best)


def _place(reading: Activations, position: int, scores: Floats, best: int) -> Place:
    came = reading.ids[position] if position < len(reading.ids) else None
    before = reading.model.tokenizer.decode(reading.ids[max(0, position - BEFORE) : position])
    return _told(reading, position, before, came, scores, best)


def _told(reading: Activations, position: int, before: str, came: int | None, scores: Floats, best: int) -> Place:
    tokenizer = reading.model.tokenizer
    open_ = spread(scores)
    found = top(scores, best, open_.total)
    probability, rank, surprisal = None, None, None
    if came is not None:
        depth = float(scores[came] - scores.max())
        probability, surprisal = math.exp(depth) / open_.total, (math.log(open_.total) - depth) / math.log(2)
        rank = int(np.count_nonzero(scores > scores[came])) + 1
    text = "" if came is None else shown_bytes(tokenizer.token_bytes(came))
    written = came is not None and reading.given <= position < len(reading.ids)
    numbers = (probability, surprisal, rank, open_.entropy)
    return Place(position, before, came, text, written, *numbers, candidates(tokenizer, found))


def _masked(reading: Activations, best: int, progress: Progress | None) -> Iterator[Place]:
    """Each token in turn is hidden, and guessed from all the others."""
    import torch

    model, tokenizer = reading.model, reading.model.tokenizer
    mask = tokenizer.mask_token_id
    if mask is None:
        raise InputError(f"{model.name} has no token that hides another, so it cannot be asked what stands there.")
    special = set(tokenizer.all_special_ids)
    places = [number for number, token in enumerate(reading.ids) if token not in special]
    for start in range(0, len(places), TOGETHER):
        group = places[start : start + TOGETHER]
        rows = torch.tensor([[mask if at == hidden else one for at, one in enumerate(reading.ids)] for hidden in group])
        with torch.inference_mode():
            scores = model.module(rows).logits
        for row, at in enumerate(group):
            yield _told(
                reading, at, tokenizer.decode(reading.ids[:at]), reading.ids[at], scores[row, at].float().numpy(), best
            )
        if progress is not None:
            progress(start + len(group), len(places))


def written(run: RunLike) -> Trace:
    """The trace of what a run wrote, from what its steps kept."""
    tokenizer, ids = run.model.tokenizer, list(run.ids) if run.model.start is None else [run.model.start]
    places = []
    for step in run.steps:
        places.append(_step(run, step, len(ids), tokenizer.decode(ids[-BEFORE:])))
        ids.append(step.id)
    return trace(run.model.name, run.text, places)


def whole(run: RunLike, best: int = TOP) -> Trace:
    """The trace of a run's prompt, which was given, and of what it wrote."""
    reading = Activations.of_run(run)
    given = [place for place in read(reading, best).places if place.position < reading.given]
    return trace(run.model.name, run.prompt + run.text, [*given, *written(run).places])


def _step(run: RunLike, step: Step, position: int, before: str) -> Place:
    tokenizer, best = run.model.tokenizer, step.candidates
    if best is None:
        raise InputError("this run kept no candidates. Get it with watch(…), or runs(…, look=10).")
    ids = best.ids.tolist()
    probability = None if step.logprob is None else math.exp(step.logprob)
    surprisal = None if step.logprob is None else -step.logprob / math.log(2)
    return Place(
        position, before, step.id, shown_bytes(tokenizer.token_bytes(step.id)), True, probability, surprisal,
        ids.index(step.id) + 1 if step.id in ids else None, step.entropy, candidates(tokenizer, best), step.draw,
        step.finish.value if step.finish else None,
    )  # fmt: skip
