"""Why this token: what the model thought of each candidate, what each rule did to it, and what decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glassformer.decoding import Step
from glassformer.decoding.waterfall import Waterfall
from glassformer.errors import InputError
from glassformer.observe.seen import Seen
from glassformer.text import Tokenizer
from glassformer.text.pieces import shown_bytes

if TYPE_CHECKING:
    from glassformer.show.page import Page


@dataclass(frozen=True)
class Fated:
    """One candidate and its way through the rules."""

    id: int
    text: str
    scores: tuple[float | None, ...]  # under the model, then after each rule; None when it is out
    probability: float  # at the end
    removed_by: str | None
    chosen: bool


@dataclass(frozen=True)
class Why(Seen):
    SCHEMA = "glassformer.why/1"

    number: int  # which token it was: 0 is the first after the prompt
    text: str
    rules: tuple[str, ...]
    counts: tuple[int, ...]  # candidates in play: at first, then after each rule
    entropies: tuple[float, ...]  # of what is in play, in bits
    candidates: tuple[Fated, ...]  # best first, as the model has it
    draw: float | None
    logprob: float | None  # of the chosen token under the model's own scores
    finish: str | None
    beams: int = 1  # how many texts were compared: above 1, a token is chosen for the text that it is part of

    @property
    def entropy(self) -> float:
        """How open the choice was to the model, in bits."""
        return self.entropies[0]

    def page(self, everything: bool = False) -> Page:
        from glassformer.show.why import page

        return page(self, everything)

    def __repr__(self) -> str:
        return f"Why(token {self.number}: {self.text!r} out of {self.counts[-1]:,} candidates)"


@dataclass(frozen=True)
class Whys(Seen):
    """Why each token of a text was chosen."""

    SCHEMA = "glassformer.whys/1"

    model: str
    settings: Mapping[str, str]  # those in force
    whys: tuple[Why, ...]

    def page(self, everything: bool = False) -> Page:
        from glassformer.show.why import several

        return several(self, everything)


def why(tokenizer: Tokenizer, step: Step, number: int, beams: int = 1) -> Why:
    """One step for people; it must have been asked to remember what the rules did."""
    fall: Waterfall | None = step.waterfall
    if fall is None:
        raise InputError("this step kept no account of its rules. Get the run with watch(…), or runs(…, look=10).")
    candidates = tuple(
        Fated(
            fate.id,
            shown_bytes(tokenizer.token_bytes(fate.id)),
            tuple(None if score == float("-inf") else score for score in fate.scores),
            fate.probability,
            fate.removed_by,
            fate.id == step.id,
        )
        for fate in fall
    )
    text = shown_bytes(tokenizer.token_bytes(step.id))
    finish = step.finish.value if step.finish else None
    account = (fall.stages[1:], fall.counts, fall.entropies)
    return Why(number, text, *account, candidates, step.draw, step.logprob, finish, beams)
