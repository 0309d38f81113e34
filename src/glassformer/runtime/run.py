"""A run: one prompt, the text that follows it as it grows, and what made it.

Views are imported when they are asked for, so that who only wants the text does not wait for them.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.decoding import Finish, GenerationConfig, Recipe, Step
from glassformer.decoding.settings import as_texts
from glassformer.ground.arguments import checked_class
from glassformer.ground.errors import InputError
from glassformer.text import Tokenizer
from glassformer.text.stop_buffer import StopBuffer

if TYPE_CHECKING:
    from glassformer.observe.protocols import ModelLike
    from glassformer.observe.reading import Reading
    from glassformer.page.document import Page
    from glassformer.views.attention import AttentionKind, AttentionMap, Heads
    from glassformer.views.attribution import Attribution, ScoreMetric
    from glassformer.views.caching import CacheComparison
    from glassformer.views.experts import Experts
    from glassformer.views.journey import Journey
    from glassformer.views.lens import Lens
    from glassformer.views.receipt import Receipt
    from glassformer.views.recording import Recording
    from glassformer.views.sweep import Sweep
    from glassformer.views.trace import Trace
    from glassformer.views.why import Why, Whys


@checked_class
@dataclass
class Run:
    """One prompt, the generated text, and what made it."""

    model: ModelLike
    prompt: str  # as the model read it
    prompt_ids: tuple[int, ...]
    recipe: Recipe
    seed: int | None
    negative: tuple[int, ...] | None = None  # the negative prompt's ids, for guidance
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

    @property
    def tokens_per_second(self) -> float:
        """The speed after the first token, which waits for the prompt; of all tokens with beams, which come at the end."""
        if self.settings.num_beams > 1:
            return len(self.steps) / self.seconds if self.seconds else 0.0
        later = self.seconds - self.seconds_to_first
        return (len(self.steps) - 1) / later if len(self.steps) > 1 and later > 0 else 0.0

    def __repr__(self) -> str:
        return f"Run({len(self.prompt_ids)} tokens in, {len(self.steps)} out: {self.text!r})"

    # Choices ----------------------------------------------------------------------------------------------------

    def why(self, number: int | str = 0) -> Why:
        """Why a token was chosen: what the model thought of each candidate, and what each rule did to it."""
        from glassformer.observe.why import why
        from glassformer.text.detokenizer import shown_bytes
        from glassformer.views.tokens import find_token

        if isinstance(number, str):
            number = find_token(number, [shown_bytes(self.model.tokenizer.token_bytes(step.id)) for step in self.steps])
        self._check(number)
        return why(self.model.tokenizer, self.steps[number], number % len(self.steps), self.settings.num_beams)

    @property
    def whys(self) -> Whys:
        """Why each token was chosen, and the settings that were in force."""
        from glassformer.views.why import Whys

        settings = {name: f"{value} ({where})" for name, (value, where) in self.settings.in_force.items()}
        return Whys(self.model.name, settings, tuple(self.why(number) for number in range(len(self.steps))))

    def sweep(self, setting: str, values: Sequence[Any] | float | str | bool, step: int = 0) -> Sweep:
        """One step's scores under each value of a setting: what each makes of the same choice."""
        from glassformer.observe.sweep import sweep

        return sweep(self, setting, values, step)

    @cached_property
    def trace(self) -> Trace:
        """Each step's candidates, what was chosen, its surprisal, and the entropy of the choice."""
        from glassformer.observe.trace import trace_run

        return trace_run(self)

    # Inside -----------------------------------------------------------------------------------------------------

    @cached_property
    def reading(self) -> Reading:
        """Prompt and text under the glass: passes over all of it, for whatever is asked."""
        from glassformer.observe.reading import Reading

        return Reading.of_run(self)

    @cached_property
    def journey(self) -> Journey:
        """Text → ids → shapes → scores → token, each row with the Python that gives it."""
        from glassformer.observe.journey import journey

        return journey(self.model, self.prompt, self.prompt_ids)

    def attention(
        self, layer: int | None = None, head: int | None = None, *, kind: AttentionKind = "self", rollout: bool = False
    ) -> AttentionMap:
        """Who attended to whom, in prompt and text: a head, a layer's mean, all layers' mean, or their rollout."""
        return self.reading.attention(layer, head, kind=kind, rollout=rollout)

    def heads(self, *, kind: AttentionKind = "self") -> Heads:
        """All heads of all layers, each in a few numbers."""
        return self.reading.heads(kind=kind)

    def experts(self) -> Experts:
        """To which experts of a mixture each token of prompt and text went."""
        return self.reading.experts()

    def lens(self, positions: Sequence[int | str] | None = None) -> Lens:
        """What each layer would have predicted, before each of the text's last tokens, or at the positions named."""
        from glassformer.observe.lens import POSITIONS

        if positions is None:
            last = self.reading.prompt_length + len(self.steps) - 1
            positions = range(max(0, last - min(len(self.steps), POSITIONS)), last) if self.steps else None
        return self.reading.lens(positions)

    @property
    def recording(self) -> Recording:
        """The run as data that a page can explore without the model: scores, lens and journey."""
        return self.record()

    def record(self, *, views: bool = False) -> Recording:
        """The same; with `views`, its page and its widget also show every head's attention and the prompt's lens."""
        from glassformer.observe.recording import record, record_slices

        recording = record(self, self.tokens_per_second)
        return replace(recording, slices=record_slices(self.reading)) if views else recording

    def widget(self, height: int = 720) -> Any:
        """The studio with this run, for a notebook's cell: alternatives, sliders, lens, attention; without a server."""
        return self.record(views=True).widget(height)

    def attribution(
        self, number: int = 0, token: int | str | None = None, against: int | str | None = None, *,
        metric: ScoreMetric = "lead", centred: bool = False,
    ) -> Attribution:  # fmt: skip
        """What each block and head added to the lead of a token of the text, or of another in its place.

        `against`, `metric` and `centred` as in `Reading.attribution`.
        """
        self._check(number)
        number %= len(self.steps)
        chosen = self.steps[number].id if token is None else token
        position = self.reading.prompt_length + number - 1
        return self.reading.attribution(position, chosen, against, metric=metric, centred=centred)

    def caching(self) -> CacheComparison:
        """This text written twice, with the cache and without: the same tokens, at what cost in time and bytes."""
        from glassformer.observe.caching import caching

        return caching(self)

    # Saving -----------------------------------------------------------------------------------------------------

    @property
    def receipt(self) -> Receipt:
        """Everything that is needed to write this text again, and to notice when it is not the same."""
        from glassformer.observe.receipt import receipt

        return receipt(self)

    def page(self, everything: bool = False) -> Page:
        """The whole run as one picture."""
        from glassformer.views.run import MAX_MAP_TOKENS, Overview, draw

        watched = bool(self.steps) and self.steps[0].waterfall is not None
        overview = Overview(
            model=self.model.name,
            prompt=self.prompt,
            text=self.text,
            strategy=self.settings.strategy,
            seed=self.seed,
            tokens=(len(self.prompt_ids), len(self.steps)),
            seconds_to_first=self.seconds_to_first,
            tokens_per_second=self.tokens_per_second,
            remedy=self.remedy,
            trace=self.trace if watched else None,
            whys=self.whys.whys if watched else (),
            lens=self.lens() if self.steps else None,
            attribution=self.attribution(0) if self.steps else None,
            heads=self.heads() if self.steps else None,
            attention=self.attention() if self.steps and len(self.reading) <= MAX_MAP_TOKENS else None,
            journey=self.journey,
            receipt=self.receipt,
        )
        return draw(overview, everything)

    def _repr_html_(self) -> str:
        from glassformer.page.html import html_fragment

        return html_fragment(self.page())

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it: .json is a receipt that can be replayed, .html the whole run as one page, .txt the same as text."""
        from glassformer.page.html import html_document
        from glassformer.page.terminal import TerminalPage, plain_text
        from glassformer.views.view import write_form

        forms = {
            ".json": lambda: json.dumps(self.receipt.to_dict(), ensure_ascii=False, indent=1, allow_nan=False) + "\n",
            ".html": lambda: html_document(self.page(everything=True)),
            ".txt": lambda: plain_text(TerminalPage(self.page(everything=True))),
        }
        return write_form(path, forms)

    def _check(self, number: int) -> None:
        if not -len(self.steps) <= number < len(self.steps):
            raise InputError(f"there is no token {number} in a text of {len(self.steps)}.")


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
