"""The trace: at each place of a text, what the model expected there, which token stands there, and its surprisal.

Of any text, this is teacher forcing: each token is scored by what stands before it, and the mean surprisal is the loss. Of a
text that the model wrote, it is the record of its choices. A model that fills gaps is asked at each place, with the token
there masked.

Surprisal and entropy are in bits; the loss is in nats, as trainings have it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from glassformer.decoding import Step
from glassformer.ground.candidates import entropy_stats, top
from glassformer.ground.errors import InputError
from glassformer.ground.operations import about, operation
from glassformer.ground.progress import Progress
from glassformer.page.document import (
    Column,
    Page,
    Paragraph,
    Shortenable,
    Table,
    TokenStrip,
)
from glassformer.page.format import format_percent, pluralize, tail, visible
from glassformer.see.activations import Activations
from glassformer.see.protocols import RunLike
from glassformer.see.tokens import Candidate, candidates, token_text
from glassformer.see.view import Floats, View

MAX_PLACES = 64  # unless everything is shown
MAX_CONTEXT = 18  # characters of the text before a position
MAX_SURPRISAL = 12.0  # bits that are shaded fully
LEGEND = (
    "surprisal: how unexpected the token was, −log2 of its probability, in bits\n"
    "entropy: how undecided the model was, in bits; 0 is certain, 1 a coin toss"
)


@dataclass(frozen=True)
class TracePlace:
    """One position of a text."""

    position: int
    before: str  # the text before it, its end
    id: int | None  # of the token there; None after the end
    text: str
    written: bool  # chosen by the model, not part of its prompt
    probability: float | None  # of that token, under the model
    surprisal: float | None  # in bits: 0 when it was certain
    rank: int | None  # of that token: 1 is the model's first choice; None: not recorded
    entropy: float | None  # of the model's probabilities, in bits
    candidates: tuple[Candidate, ...]  # the model's best
    draw: float | None = None  # the random number that picked it; None: there was none
    finish: str | None = None


@dataclass(frozen=True)
class Trace(View):
    """What the model expected at each position of a text."""

    SCHEMA = "glassformer.trace/2"

    model: str
    text: str
    places: tuple[TracePlace, ...]
    tokens: int  # that were scored
    loss: float | None  # as trainings have it: their mean surprisal, in nats
    perplexity: float | None
    surprisal: float | None = None  # their mean, in bits

    def page(self, everything: bool = False) -> Page:
        sampled = any(place.draw is not None for place in self.places)
        draw = (Column("draw", "number", priority=4), lambda place: _digits(place.draw, 4))
        table = Table.of(
            self.places,
            (Column("", "number"), lambda place: str(place.position)),
            (Column("context", min_width=8, keep_end=True), lambda place: tail(place.before, MAX_CONTEXT)),
            (Column("token", "token", min_width=6), _token),
            (
                Column("prob.", "number"),
                lambda place: "" if place.probability is None else format_percent(place.probability),
            ),
            (Column("", "bar", priority=2), lambda place: place.probability or 0.0),
            (Column("rank", "number", priority=6), lambda place: "" if place.rank is None else str(place.rank)),
            (Column("surprisal", "number", priority=7), lambda place: _digits(place.surprisal, 2)),
            (Column("entropy", "number", priority=5), lambda place: _digits(place.entropy, 2)),
            *([draw] if sampled else []),
            (Column("most likely next", priority=8, min_width=22), _most_likely),
            limit=None if everything else MAX_PLACES,
        )
        return Page(f"{self.model}: what was expected at each position", (table, Paragraph(f"\n{summary(self)}")))

    def __len__(self) -> int:
        return len(self.places)

    def __repr__(self) -> str:
        perplexity = "" if self.perplexity is None else f", perplexity {self.perplexity:.2f}"
        return f"Trace({len(self.places)} places{perplexity})"


def summary(view: Trace) -> str:
    """The mean surprisal, and what the columns mean."""
    if view.surprisal is None or view.perplexity is None:
        return "nothing here was scored: a text's first token has nothing before it"
    mean = f"mean surprisal {view.surprisal:.3f} bits · perplexity {view.perplexity:,.2f}"
    return f"{pluralize(view.tokens, 'token')} scored · {mean}\n{LEGEND}"


def _token(place: TracePlace) -> str:
    return ("→ " if place.written else "") + ("" if place.id is None else visible(place.text))


def _digits(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _most_likely(place: TracePlace) -> Shortenable:
    return Shortenable(_best(place.candidates, 4), _best(place.candidates, 2))


def _best(candidates: Sequence[Candidate], limit: int) -> str:
    """The best candidates in a line."""
    shown = candidates[:limit]
    return " · ".join(f"{visible(candidate.text)} {format_percent(candidate.probability)}" for candidate in shown)


def strip(view: Trace) -> TokenStrip:
    """The text, each token shaded by its surprisal."""
    scored = [place for place in view.places if place.id is not None and place.surprisal is not None]
    return TokenStrip(
        tuple(visible(place.text) for place in scored),
        tuple(min(1.0, (place.surprisal or 0.0) / MAX_SURPRISAL) for place in scored),
        tuple(f"{place.surprisal:.2f} bits" for place in scored),
    )


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
        for index, logits in enumerate(chunk.scores):
            yield _place(reading, chunk.start + index + 1, logits, best)


def _place(reading: Activations, position: int, logits: Floats, best: int) -> TracePlace:
    tokenizer, ids = reading.model.tokenizer, reading.ids
    token = ids[position] if position < len(ids) else None
    stats = entropy_stats(logits)
    expected = top(logits, best, stats.total)  # refuses logits that are no numbers
    probability, rank, surprisal = None, None, None
    if token is not None:
        depth = float(logits[token] - logits.max())
        probability, surprisal = math.exp(depth) / stats.total, (math.log(stats.total) - depth) / math.log(2)
        rank = int(np.count_nonzero(logits > logits[token])) + 1
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
    places = [index for index, token in enumerate(reading.ids) if token not in special]
    for start in range(0, len(places), BATCH):
        group = places[start : start + BATCH]
        rows = torch.tensor([[*reading.ids[:position], mask, *reading.ids[position + 1 :]] for position in group])
        with torch.inference_mode():
            logits = module(rows).logits
        for row, position in enumerate(group):
            yield _place(reading, position, logits[row, position].float().numpy(), best)
        if progress is not None:
            progress(start + len(group), len(places))


@operation(name="trace", is_property=True)
def trace_run(run: RunLike) -> Trace:
    """Each step's candidates, what was chosen, its surprisal, and the entropy of the choice."""
    tokenizer, ids = (
        run.model.tokenizer,
        list(run.prompt_ids) if run.model.decoder_start_token is None else [run.model.decoder_start_token],
    )
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
