"""A run: one prompt, the text that follows it as it grows, and what made it. Its views are operations."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.decoding import Finish, GenerationConfig, Policy, Recipe, Step, StepDetail
from glassformer.decoding.policy import NOTHING
from glassformer.decoding.settings import as_texts
from glassformer.ground.arguments import checked_class
from glassformer.see.model_operations import RunOperations
from glassformer.text import Tokenizer
from glassformer.text.streaming import StopBuffer

if TYPE_CHECKING:
    from glassformer.see.protocols import ModelLike
    from glassformer.see.reading import Reading


def runs_of_texts(run: Run, count: int) -> tuple[Run, ...]:
    """A run that has not begun, and others for further texts of its prompt."""
    return (run, *(replace(run, steps=[], prompt_steps=[]) for _ in range(count - 1)))


@checked_class
@dataclass
class Run(RunOperations):
    """One prompt, the generated text, and what made it."""

    model: ModelLike
    prompt: str  # as the model read it
    prompt_ids: tuple[int, ...]
    recipe: Recipe
    seed: int | None
    negative: tuple[int, ...] | None = None  # the negative prompt's ids, for guidance
    contents: tuple[str, ...] | None = None  # the texts in the prompt, around which its template stands; None: no template
    steps: list[Step] = field(default_factory=list)
    prompt_steps: list[Step] = field(default_factory=list)  # of the prompt's own tokens, with prompt_logprobs
    text: str = ""  # without the stop string
    stop: str | None = None  # the stop string that ended it
    score: float | None = None  # of the whole text, where beams compared several
    remedy: str | None = None  # what to try, when the text runs in a circle or makes no sense
    seconds_to_first: float = 0.0
    seconds: float = 0.0
    cancelling: threading.Event = field(default_factory=threading.Event, repr=False)  # set by `cancel`

    @property
    def settings(self) -> GenerationConfig:
        """The settings in force; printed, each with its origin."""
        return self.recipe.settings

    @property
    def ids(self) -> tuple[int, ...]:
        """The generated ids."""
        return tuple(step.id for step in self.steps)

    @property
    def finish(self) -> Finish | None:
        """Why it ended; None when it has not."""
        return self.steps[-1].finish if self.steps else None

    def cancel(self) -> None:
        """End it after the current token; from any thread."""
        self.cancelling.set()

    def policies(self, detail: StepDetail = NOTHING) -> list[Policy]:
        """The policies that choose the tokens of its texts."""
        return self.model.policies(self.recipe, self.prompt_ids, seed=self.seed, detail=detail, negative=self.negative)

    @property
    def tokens_per_second(self) -> float:
        """The speed after the first token, which waits for the prompt; of all tokens with beams, which come at the end."""
        if self.settings.num_beams > 1:
            return len(self.steps) / self.seconds if self.seconds else 0.0
        later = self.seconds - self.seconds_to_first
        return (len(self.steps) - 1) / later if len(self.steps) > 1 and later > 0 else 0.0

    def __repr__(self) -> str:
        return f"Run({len(self.prompt_ids)} tokens in, {len(self.steps)} out: {self.text!r})"

    @cached_property
    def reading(self) -> Reading:
        """Prompt and text under the glass: passes over all of it, for whatever is asked."""
        from glassformer.see.reading import Reading

        return Reading.of_run(self)

    def _repr_html_(self) -> str:
        from glassformer.page.html import html_fragment

        return html_fragment(self.page())

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it: .json is a receipt that can be replayed, .html the whole run as one page, .txt the same as text."""
        from glassformer.see.view import write_page

        return write_page(
            path,
            lambda: json.dumps(self.receipt.to_dict(), ensure_ascii=False, indent=1, allow_nan=False),
            lambda: self.page(everything=True),
        )


class TextStream:
    """A run's text as it grows: tokens in, pieces of text out, held back while they could begin a stop string.

    `visible_tokens`: special tokens that stand in the text all the same.
    """

    def __init__(self, run: Run, tokenizer: Tokenizer, visible_tokens: Collection[str] = ()) -> None:
        self.run = run
        self.tokenizer = tokenizer
        self.pieces = tokenizer.detokenizer(visible_tokens=visible_tokens)
        self.buffer = StopBuffer(as_texts(run.settings.stop_strings))

    def add(self, step: Step, seconds: float) -> str:
        run = self.run
        if (outcome := step.outcome) is not None:  # not kept: it leads to all that generated the text
            run.score, run.prompt_steps = outcome.score, list(outcome.prompt_steps)
        run.steps.append(step if outcome is None else replace(step, outcome=None))
        run.seconds = seconds
        if len(run.steps) == 1:
            run.seconds_to_first = seconds
        piece = self.buffer.feed(self.pieces.feed(step.id))
        if step.finish:
            piece += self.buffer.feed(self.pieces.finish()) + self.buffer.finish()
            run.stop = self.buffer.stopped
            if step.finish is Finish.STOP and run.stop is None:  # it stands in tokens that are not shown
                text = self.tokenizer.decode([step.id for step in run.steps])
                run.stop = next(stop for stop in self.buffer.stops if stop in text)
        run.text += piece
        return piece


def logprob_data(step: Step) -> dict[str, Any]:
    """A token's log-probability, and those of the model's best candidates."""
    best = step.candidates
    pairs = [] if best is None else zip(best.ids.tolist(), best.logprobs.tolist(), strict=True)
    return {"id": step.id, "logprob": step.logprob, "best": [{"id": id_, "logprob": logprob} for id_, logprob in pairs]}
