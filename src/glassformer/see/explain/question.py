"""What is asked: why a token, a gap's filling or a label, and not its rival; and how much is measured to answer.

Shapes: logits (vocabulary,).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from glassformer.ground.errors import InputError, spell
from glassformer.see.activations import Activations
from glassformer.see.attribution import runner_up
from glassformer.see.explain.texts import ReadText, ReadWhole, best_tokens, read_text
from glassformer.see.explain.words import alike
from glassformer.see.metrics import answer_position
from glassformer.see.tokens import find_token
from glassformer.see.view import Floats

NEAR = 3.0  # bits: how far behind the runner-up a rival of the answer's kind may be
RIVALS = 50  # tokens among which it is looked for
SPECIFIC = 2.0  # times likelier than elsewhere in the text: a token that is no mere function word


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    leave_out: bool  # whether words are left out, too
    exchanges: int  # of each of the words that matter most
    words: int  # that are exchanged more than once
    blocks: int  # in which parts are looked for
    parts: int  # that are named at the most
    checks: bool


FULL = Effort(leave_out=True, exchanges=3, words=6, blocks=6, parts=12, checks=True)
QUICK = Effort(leave_out=False, exchanges=1, words=0, blocks=2, parts=3, checks=False)


@dataclass(frozen=True)
class Lead:
    """How far a token is ahead of others, in bits."""

    token: int
    against: int
    alone: bool  # whether it is held against that one alone, and not against whatever else is best
    aside: tuple[int, ...] = ()  # what came before the rival, and is of another kind: no rivals

    def of(self, logits: Floats) -> float:
        rival = logits[self.against]
        if not self.alone:
            others = logits.copy()
            others[[self.token, *self.aside]] = -np.inf
            rival = others.max()
        return float(logits[self.token] - rival) / math.log(2)


@dataclass
class Question:
    """A token after a position of a text that was read, and its lead."""

    text: ReadText
    position: int
    lead: Lead
    effort: Effort = FULL

    @property
    def reading(self) -> Activations:
        return self.text.reading

    @property
    def token(self) -> int:
        return self.lead.token

    @property
    def ids(self) -> tuple[int, ...]:
        """Those of which words are taken away."""
        return self.text.ids_with_words

    @cached_property
    def logits(self) -> Floats:
        return self.text.logits(self.position)

    @cached_property
    def whole(self) -> float:
        return self.lead.of(self.logits)


@contextmanager
def read_answer(reading: Activations, position: int | str) -> Iterator[ReadText]:
    """A text read up to a position, or by an encoder: then to its gap, or for its label or answer."""
    if reading.model.writes:
        at = find_token(position, reading.texts)
        with read_text(reading, at + 1, at) as text:
            yield text
        return
    whole = ReadWhole(reading, answer_position(reading, None if position == -1 else position))
    whole.read()
    yield whole


def check_explainable(reading: Activations) -> None:
    model = reading.model
    if model.head == "question":
        raise InputError(
            f"{model.name} finds the answer to a question in a text. Give the question, and the text with {spell('pair')}."
        )
    if not model.writes and model.head not in ("masked", "sequence", "token"):
        raise InputError(
            f"{model.name} neither goes on with a text nor fills gaps or labels it. Hold it against another one with "
            f"{spell('pair')}: then it is explained why they are similar."
        )


def ask(text: ReadText, position: int, token: int | str | None, against: int | str | None) -> Question:
    """Why a token after a position, and not another one."""
    logits = text.logits(position)
    chosen = text.find(token, logits)
    if against is None:
        lead = Lead(chosen, *rival_of(text, position, chosen))
    else:
        lead = Lead(chosen, text.find(against, logits), alone=True)
    if lead.against == chosen:
        raise InputError("a token has no lead over itself. Hold it against another one.")
    text.chosen = (chosen, lead.against) if lead.alone else (chosen,)
    return Question(text, position, lead)


def rival_of(text: ReadText, position: int, token: int) -> tuple[int, bool, tuple[int, ...]]:
    """The runner-up; but one of the token's kind if that is near, and then those before it are put aside.

    "Paris" is held against "Lyon" and not against "the": nobody asks why it was not that.
    """
    logits = text.logits(position)
    others, aside = logits.copy(), text.overlapping(token)
    others[list(aside)] = -np.inf
    if len(logits) < len(aside) + 2:
        raise InputError(text.without_rival)
    first, own = runner_up(others, token), text.answer(token)
    if aside or not alike(own, own) or not _specific(text, position, token):
        return first, False, aside
    likely = [other for other in best_tokens(logits, RIVALS) if other != token]
    for index, other in enumerate(likely):
        if logits[first] - logits[other] > NEAR * math.log(2):
            break
        written = text.answer(other)
        fits = alike(written, own) and written[:1].isspace() == own[:1].isspace()
        if fits and _specific(text, position, other):
            return other, False, tuple(likely[:index])
    return first, False, ()


def _specific(text: ReadText, position: int, token: int) -> bool:
    """Whether a token is expected here more than elsewhere in the text, as function words are not."""
    return text.probability(position, token) >= SPECIFIC * text.elsewhere(position, token)
