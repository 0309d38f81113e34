"""The trace: at each place of a text, what the model expected there, what came, and how much of a surprise that was.

Of a text that is given, this is teacher forcing: each token is scored by what stands before it, and the mean surprise is the
loss. Of a text that the model wrote, it is the record of its choices. A model that fills gaps is asked at each place, with
the token there hidden.

Surprise and entropy are in bits; the loss is in nats, as the field has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from glassformer.candidates import top
from glassformer.decoding import Step
from glassformer.decoding.waterfall import spread
from glassformer.errors import InputError
from glassformer.observe.journey import Candidate, candidates
from glassformer.observe.passes import Floats, Passes, Tell
from glassformer.observe.seen import Seen
from glassformer.text.pieces import shown_bytes

if TYPE_CHECKING:
    from glassformer.running import Run
    from glassformer.show.page import Page

TOP = 5  # candidates of each place
BEFORE = 24  # tokens whose text is shown before a place
TOGETHER = 16  # copies of a text, each with another token hidden, that run at once


@dataclass(frozen=True)
class Place:
    """One place in a text."""

    position: int
    before: str  # the end of the text before it
    id: int | None  # the token that came; None behind the end
    text: str
    written: bool  # chosen by the model, not given to it
    probability: float | None  # of what came, as the model has it
    surprise: float | None  # in bits: 0 when it was certain
    rank: int | None  # of what came: 1 is the model's first choice; None when it is not known
    entropy: float | None  # how open it was, in bits
    candidates: tuple[Candidate, ...]  # the model's best
    draw: float | None = None  # the number that picked it; None when the best was taken, or it was given
    finish: str | None = None


@dataclass(frozen=True)
class Trace(Seen):
    SCHEMA = "glassformer.trace/1"

    model: str
    text: str
    places: tuple[Place, ...]
    tokens: int  # that were scored
    loss: float | None  # their mean surprise, in nats
    perplexity: float | None

    def page(self, everything: bool = False) -> Page:
        from glassformer.show.trace import page

        return page(self, everything)

    def __len__(self) -> int:
        return len(self.places)

    def __repr__(self) -> str:
        said = "" if self.perplexity is None else f", perplexity {self.perplexity:.2f}"
        return f"Trace({len(self.places)} places{said})"


def trace(model: str, text: str, places: Sequence[Place]) -> Trace:
    scored = [place.surprise for place in places if place.surprise is not None]
    loss = sum(scored) / len(scored) * math.log(2) if scored else None
    return Trace(model, text, tuple(places), len(scored), loss, None if loss is None else _exp(loss))


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


def read(reading: Passes, best: int = TOP, tell: Tell | None = None) -> Trace:
    """The trace of a text that is given, and of what would come next."""
    model = reading.model
    if model.writes:
        places = list(_causal(reading, best, tell))
    elif model.head == "masked":
        places = list(_masked(reading, best, tell))
    else:
        raise InputError(
            f"{model.name} scores no tokens ({model.head}), so there is nothing to trace. Look at it: glass look."
        )
    return trace(model.name, model.tokenizer.decode(reading.ids), places)


def _causal(reading: Passes, best: int, tell: Tell | None) -> Iterator[Place]:
    for chunk in reading.chunks(scored=True, tell=tell):
        assert chunk.scores is not None
        for number, scores in enumerate(chunk.scores):
            yield _place(reading, chunk.start + number + 1, scores, best)


def _place(reading: Passes, position: int, scores: Floats, best: int) -> Place:
    came = reading.ids[position] if position < len(reading.ids) else None
    before = reading.model.tokenizer.decode(reading.ids[max(0, position - BEFORE) : position])
    return _told(reading, position, before, came, scores, best)


def _told(reading: Passes, position: int, before: str, came: int | None, scores: Floats, best: int) -> Place:
    tokenizer = reading.model.tokenizer
    open_ = spread(scores)
    found = top(scores, best, open_.total)
    probability, rank, surprise = None, None, None
    if came is not None:
        depth = float(scores[came] - scores.max())
        probability, surprise = math.exp(depth) / open_.total, (math.log(open_.total) - depth) / math.log(2)
        rank = int(np.count_nonzero(scores > scores[came])) + 1
    text = "" if came is None else shown_bytes(tokenizer.token_bytes(came))
    written = came is not None and reading.given <= position < len(reading.ids)
    numbers = (probability, surprise, rank, open_.entropy)
    return Place(position, before, came, text, written, *numbers, candidates(tokenizer, found))


def _masked(reading: Passes, best: int, tell: Tell | None) -> Iterator[Place]:
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
        if tell is not None:
            tell(start + len(group), len(places))


def written(run: Run) -> Trace:
    """The trace of what a run wrote, from what its steps kept."""
    tokenizer, ids = run.model.tokenizer, list(run.ids) if run.model.start is None else [run.model.start]
    places = []
    for step in run.steps:
        places.append(_step(run, step, len(ids), tokenizer.decode(ids[-BEFORE:])))
        ids.append(step.id)
    return trace(run.model.name, run.text, places)


def whole(run: Run, best: int = TOP) -> Trace:
    """The trace of a run's prompt, which was given, and of what it wrote."""
    given = [place for place in read(run.reading, best).places if place.position < run.reading.given]
    return trace(run.model.name, run.prompt + run.text, [*given, *written(run).places])


def _step(run: Run, step: Step, position: int, before: str) -> Place:
    tokenizer, best = run.model.tokenizer, step.candidates
    if best is None:
        raise InputError("this run kept no candidates. Get it with watch(…), or runs(…, look=10).")
    ids = best.ids.tolist()
    probability = None if step.logprob is None else math.exp(step.logprob)
    surprise = None if step.logprob is None else -step.logprob / math.log(2)
    return Place(
        position, before, step.id, shown_bytes(tokenizer.token_bytes(step.id)), True, probability, surprise,
        ids.index(step.id) + 1 if step.id in ids else None, step.entropy, candidates(tokenizer, best), step.draw,
        step.finish.value if step.finish else None,
    )  # fmt: skip
