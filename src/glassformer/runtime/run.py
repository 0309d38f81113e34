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

from glassformer.decoding import Finish, GenerationConfig, Policy, Recipe, Step, StepDetail
from glassformer.decoding.policy import NOTHING
from glassformer.decoding.settings import as_texts
from glassformer.ground.arguments import checked_class
from glassformer.ground.errors import InputError
from glassformer.ground.progress import Progress
from glassformer.text import Tokenizer
from glassformer.text.streaming import StopBuffer

if TYPE_CHECKING:
    from glassformer.page.document import Page
    from glassformer.see.attention import AttentionKind, AttentionMap, Heads
    from glassformer.see.attribution import Attribution, ScoreMetric
    from glassformer.see.caching import CacheComparison
    from glassformer.see.experts import Experts
    from glassformer.see.explain.explanation import Explanation
    from glassformer.see.journey.view import Journey
    from glassformer.see.lens import Lens
    from glassformer.see.protocols import ModelLike
    from glassformer.see.reading import Reading
    from glassformer.see.receipt import Receipt
    from glassformer.see.recording import Recording
    from glassformer.see.sweep import Sweep
    from glassformer.see.trace import Trace
    from glassformer.see.why import Why, Whys


def runs_of_texts(run: Run, count: int) -> tuple[Run, ...]:
    """A run that has not begun, and others for further texts of its prompt."""
    return (run, *(replace(run, steps=[], prompt_steps=[]) for _ in range(count - 1)))


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

    # Choices ----------------------------------------------------------------------------------------------------

    def why(self, number: int | str = 0) -> Why:
        """Why a token was chosen: what the model thought of each candidate, and what each rule did to it."""
        from glassformer.see.tokens import find_token
        from glassformer.see.why import why
        from glassformer.text.streaming import shown_bytes

        if isinstance(number, str):
            number = find_token(number, [shown_bytes(self.model.tokenizer.token_bytes(step.id)) for step in self.steps])
        self._check(number)
        return why(self.model.tokenizer, self.steps[number], number % len(self.steps), self.settings.num_beams)

    def explain(
        self, token: int | str | None = None, against: int | str | None = None, *, progress: Progress | None = None
    ) -> Explanation:
        """Why it says one of its tokens: the words that decide, what carries them, and whether that holds.

        Args:
            token: its index or its text; by default the one that tells most.
            against: the token that it is held against, by default the runner-up.
        """
        from glassformer.see.explain.compute import explain_run

        return explain_run(self, token, against, progress=progress)

    @property
    def whys(self) -> Whys:
        """Why each token was chosen, and the settings that were in force."""
        from glassformer.see.why import Whys

        settings = {name: f"{value} ({where})" for name, (value, where) in self.settings.in_force.items()}
        return Whys(self.model.name, settings, tuple(self.why(number) for number in range(len(self.steps))))

    def sweep(self, setting: str, values: Sequence[Any] | float | str | bool, step: int = 0) -> Sweep:
        """One step's scores under each value of a setting: what each makes of the same choice."""
        from glassformer.see.sweep import sweep

        return sweep(self, setting, values, step)

    @cached_property
    def trace(self) -> Trace:
        """Each step's candidates, what was chosen, its surprisal, and the entropy of the choice."""
        from glassformer.see.trace import trace_run

        return trace_run(self)

    # Inside -----------------------------------------------------------------------------------------------------

    @cached_property
    def reading(self) -> Reading:
        """Prompt and text under the glass: passes over all of it, for whatever is asked."""
        from glassformer.see.reading import Reading

        return Reading.of_run(self)

    @cached_property
    def journey(self) -> Journey:
        """Text → ids → shapes → scores → token, each row with the Python that gives it."""
        from glassformer.see.journey.compute import journey

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
        from glassformer.see.lens import POSITIONS

        if positions is None:
            last = self.reading.prompt_length + len(self.steps) - 1
            positions = range(max(0, last - min(len(self.steps), POSITIONS)), last) if self.steps else None
        return self.reading.lens(positions)

    @property
    def recording(self) -> Recording:
        """The run as data that a page can explore without the model: scores, lens and journey."""
        return self.record()

    def record(self, *, views: bool = False) -> Recording:
        """`recording`; with `views`, its page and its widget also show every head's attention and the prompt's lens."""
        from glassformer.see.recording import record, record_slices

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
        from glassformer.see.caching import caching

        return caching(self)

    # Saving -----------------------------------------------------------------------------------------------------

    @property
    def receipt(self) -> Receipt:
        """Everything that is needed to write this text again, and to notice when it is not the same."""
        from glassformer.see.receipt import receipt

        return receipt(self)

    def page(self, everything: bool = False) -> Page:
        """The whole run as one picture."""
        from glassformer.see.run import MAX_MAP_TOKENS, Overview, draw

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
        from glassformer.see.view import write_form

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
