"""A run: one prompt, the text that follows it as it grows, and what made it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from glassformer.decoding import Finish, GenerationConfig, Recipe, Step
from glassformer.decoding.settings import strings
from glassformer.errors import InputError
from glassformer.observe.journey import Journey
from glassformer.observe.why import Why, why
from glassformer.text import Tokenizer
from glassformer.text.held import Held

if TYPE_CHECKING:
    from glassformer.runtime import Model


@dataclass
class Run:
    """One prompt, what followed it, and what made it."""

    model: Model
    prompt: str  # as the model saw it
    ids: tuple[int, ...]
    recipe: Recipe
    seed: int | None
    negative: tuple[int, ...] | None = None  # what guidance leads away from
    steps: list[Step] = field(default_factory=list)
    prompt_steps: list[Step] = field(default_factory=list)  # of the prompt's own tokens, with prompt_logprobs
    text: str = ""  # without the stop string
    stop: str | None = None  # the stop string that ended it
    score: float | None = None  # of the whole text, where beams compared several
    remedy: str | None = None  # what to try, when the text runs in a circle or makes no sense
    seconds_to_first: float = 0.0
    seconds: float = 0.0
    ending: threading.Event = field(default_factory=threading.Event, repr=False)  # set: it is to end

    @property
    def settings(self) -> GenerationConfig:
        """The settings in force; printed, each with where it came from."""
        return self.recipe.settings

    @property
    def finish(self) -> Finish | None:
        """Why it ended; None when it has not."""
        return self.steps[-1].finish if self.steps else None

    def cancel(self) -> None:
        """End it after the token that is being made; from any thread."""
        self.ending.set()

    @property
    def tokens_per_second(self) -> float:
        """Of the tokens after the first, which waits for the prompt; of all, where beams give them at the end."""
        if self.settings.num_beams > 1:
            return len(self.steps) / self.seconds if self.seconds else 0.0
        later = self.seconds - self.seconds_to_first
        return (len(self.steps) - 1) / later if len(self.steps) > 1 and later > 0 else 0.0

    def why(self, number: int = 0) -> Why:
        """Why a token was chosen: what the model thought of each candidate, and what each rule did to it."""
        if not -len(self.steps) <= number < len(self.steps):
            raise InputError(f"there is no token {number} in a text of {len(self.steps)}.")
        return why(self.model.tokenizer, self.steps[number], number % len(self.steps), self.settings.num_beams)

    @cached_property
    def journey(self) -> Journey:
        """Text → ids → shapes → scores → token, each row with the Python that gives it."""
        return self.model.journey_of(self.prompt, self.ids)

    def __repr__(self) -> str:
        return f"Run({len(self.ids)} tokens in, {len(self.steps)} out: {self.text!r})"


class Growing:
    """A run's text as it grows: tokens in, whole pieces out, held back where a stop string may have begun."""

    def __init__(self, run: Run, tokenizer: Tokenizer) -> None:
        self.run = run
        self.tokenizer = tokenizer
        self.pieces = tokenizer.pieces()
        self.held = Held(strings(run.settings.stop_strings))

    def add(self, step: Step, seconds: float) -> str:
        run = self.run
        run.steps.append(step)
        run.seconds = seconds
        if len(run.steps) == 1:
            run.seconds_to_first = seconds
        piece = self.held.feed(self.pieces.feed(step.id))
        if step.finish:
            piece += self.held.feed(self.pieces.finish()) + self.held.finish()
            run.stop = self.held.stopped
            if step.finish is Finish.STOP and run.stop is None:  # it stands in tokens that are not shown
                said = self.tokenizer.decode([one.id for one in run.steps])
                run.stop = next(stop for stop in self.held.stops if stop in said)
        run.text += piece
        return piece
