"""The journey: how a text becomes the next token, stage by stage, each with its shape and the Python that gives it.

    text ─ tokenizer ▶ ids ─ base model ▶ states ─ head ▶ scores ─ top 1 ▶ id ─ tokenizer ▶ text

An encoder-decoder's text is its source, and the next token the first of its target; an encoder's way ends at its states,
or at what its head says of the text. Shapes come from the blueprint, so nothing has to be recorded; scores and times come
from one real pass.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glassformer.blueprints import Blueprint
from glassformer.engine.protocol import Executor, Feed
from glassformer.errors import InputError
from glassformer.observe import weights
from glassformer.observe.answers import TOP as TOP
from glassformer.observe.answers import Answer as Answer
from glassformer.observe.answers import Candidate as Candidate
from glassformer.observe.answers import candidates as candidates
from glassformer.observe.clock import CHOSEN, READ, SCORED, WRITTEN, Clock
from glassformer.observe.legs import Leg as Leg
from glassformer.observe.legs import legs
from glassformer.observe.seen import Seen
from glassformer.observe.stages import Stage as Stage
from glassformer.observe.stages import stages as stages
from glassformer.observe.tokens import Token, told
from glassformer.observe.vocabulary import Vocabulary
from glassformer.text import BatchEncoding, Tokenizer

if TYPE_CHECKING:
    from glassformer.show.page import Page


@dataclass(frozen=True)
class Journey(Seen):
    SCHEMA = "glassformer.journey/1"

    model: str
    prompt: str
    tokens: tuple[Token, ...]  # of an encoder-decoder: of its source
    stages: tuple[Stage, ...]
    candidates: tuple[Candidate, ...]  # of the first answer
    vocabulary: Vocabulary
    answer: str = "the next token"  # what the answers are about; where there are none, why
    answers: tuple[Answer, ...] = ()  # one, or one for each gap, or one for each token
    target: tuple[Token, ...] = ()  # what an encoder-decoder's target begins with
    pair: str | None = None  # the second text of two
    legs: tuple[Leg, ...] = ()
    measured: str = ""  # what the times are of
    warnings: tuple[str, ...] = ()  # what may be wrong with the prompt

    @property
    def next(self) -> Candidate:
        """The most likely next token, or whatever else the model scores."""
        if not self.candidates:
            raise InputError(f"{self.model} scores nothing: it ends with the states of its tokens.")
        return self.candidates[0]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each stage, by its name; equal blocks under the first one's names."""
        return {stage.name: stage.shape for stage in self.stages}

    @property
    def seconds(self) -> float:
        """Of all legs together, as far as they are known."""
        return sum(leg.seconds or 0.0 for leg in self.legs)

    def page(self, everything: bool = False) -> Page:
        from glassformer.show.journey import page

        return page(self, everything)

    def __repr__(self) -> str:
        return f"Journey({len(self.tokens)} tokens → {self.next.text if self.candidates else 'states'!r})"


@dataclass(frozen=True)
class Pass:
    """One pass and what came of it."""

    answers: tuple[Answer, ...]
    about: str  # what the answers are about; where there are none, why
    seconds: Mapping[str, float]  # up to each clock's place, and of what is done around the model
    dtype: str  # what values are computed in
    measured: str


def next_token(tokenizer: Tokenizer, executor: Executor, clock: Clock, ids: Sequence[int], start: int | None = None) -> Pass:
    """The best candidates for what follows a prompt, or for what an encoder-decoder's target begins with; one pass."""
    about = "the next token" if start is None else "the target's first token"
    row = executor.open(None if start is None else ids)
    try:
        clock.start()
        scores = executor.run([Feed(row, ids if start is None else (start,), watch=clock.watch)])[0]
        clock.lap(SCORED)
        best = scores.top(TOP)
        clock.lap(CHOSEN)
        tokenizer.decode([int(best.ids[0])])
        clock.lap(WRITTEN)
    finally:
        executor.close(row)
    told = executor.describe()
    dtype = "float32" if told.name == "cpu" else told.dtype
    where = told.notes[0] if told.name == told.device else f"on {told.device}, {told.dtype}"
    return Pass(
        (Answer(about, candidates(tokenizer, best)),), about, clock.seconds, dtype, f"the {told.name} executor ({where})"
    )


def journey(
    tokenizer: Tokenizer,
    blueprint: Blueprint,
    text: str,
    ids: Sequence[int],
    done: Pass,
    *,
    name: str = "",
    pair: str | None = None,
    start: int | None = None,
    stored: Mapping[str, int] | None = None,
    warnings: Sequence[str] = (),
) -> Journey:
    """The journey of an encoded prompt to what its pass found; `start` is what an encoder-decoder's target begins with."""
    _, plain, seconds = encoded(tokenizer, text, pair, ids)
    way = stages(blueprint, len(ids), text, pair, plain=plain, start=start, dtype=done.dtype, stored=stored)
    return Journey(
        name,
        text,
        told(tokenizer, ids),
        tuple(way),
        done.answers[0].candidates if done.answers else (),
        Vocabulary.of(tokenizer, blueprint),
        done.about,
        done.answers,
        () if start is None else told(tokenizer, [start]),
        pair,
        legs(way, {READ: seconds, **done.seconds}),
        done.measured,
        tuple(warnings),
    )


def sizes(model: Any) -> dict[str, int]:
    """The bytes of each weight as it is stored; of a model that is in memory only, as it is there."""
    held = weights.held(model)
    return {name: held.tensors[written].size for name, written in weights.account(held).names.items()}


def encoded(tokenizer: Tokenizer, text: str, pair: str | None, ids: Sequence[int]) -> tuple[BatchEncoding, bool, float]:
    """A text as it became these ids; whether without tokens around it; and how long that takes."""
    for special in (False, True):
        begun = time.perf_counter()
        found = tokenizer(text, pair, add_special_tokens=special, return_offsets_mapping=True)
        seconds = time.perf_counter() - begun
        if list(found["input_ids"]) == list(ids):
            break
    return found, not special, seconds
