"""A recording: a run as data that a page can explore without the model, and what the studio shows.

Each step keeps the model's best scores one by one, and all the others as a histogram. So a page can compute the
probabilities under any temperature or top-p itself, and what it says of "all others" stays right.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from glassformer.decoding import Step
from glassformer.decoding.settings import json_value
from glassformer.decoding.waterfall import TAIL_WIDTH
from glassformer.ground.errors import GlassError, InputError, SiteError
from glassformer.ground.operations import operation
from glassformer.ground.progress import NamedProgress
from glassformer.page.document import Page, Paragraph, TokenStrip
from glassformer.page.format import pluralize, visible
from glassformer.see.activations import Activations, residual_sites
from glassformer.see.attention import attention_maps
from glassformer.see.explain.explanation import Explanation
from glassformer.see.explain.operations import explain_run
from glassformer.see.explain.words import exchanged, words_of
from glassformer.see.journey.compute import prompt_stages
from glassformer.see.journey.view import Stage
from glassformer.see.lens import LayerPrediction, lens
from glassformer.see.patching.compute import PartPlaces, one_pair, run_patches
from glassformer.see.patching.pair import TextPair
from glassformer.see.protocols import RunLike
from glassformer.see.schema import page_data
from glassformer.see.tokens import Token, describe_tokens, token_text
from glassformer.see.tree import tree
from glassformer.see.view import View, write_form
from glassformer.text import Tokenizer


@dataclass(frozen=True)
class RecordedCandidates:
    """A step's best candidates under the model, best first, and the chosen one."""

    ids: tuple[int, ...]
    texts: tuple[str, ...]
    scores: tuple[float, ...]  # the model's own
    paths: tuple[tuple[float | None, ...], ...]  # of the first few: the score after each rule; None: removed


@dataclass(frozen=True)
class RecordedTail:
    """All other tokens, as a histogram of the model's scores."""

    top: float  # the best of them
    counts: tuple[int, ...]  # in bins of the recording's `tail_width`, from the top downwards


@dataclass(frozen=True)
class RecordedLens:
    """What each layer would have predicted in a step's place."""

    texts: tuple[str, ...]
    probabilities: tuple[float, ...]
    ranks: tuple[int, ...]  # of the last layer's prediction in each layer
    entropies: tuple[float, ...]  # in bits


@dataclass(frozen=True)
class RecordedStep:
    """One chosen token, and what it was chosen from."""

    token: Token
    surprisal: float  # in bits
    rank: int | None  # under the model: 1 is its first choice; None: it is none of the best that were recorded
    entropy: float  # of the model's probabilities, in bits
    draw: float | None
    finish: str | None
    rules: tuple[str, ...]
    counts: tuple[int, ...]  # candidates in play: at first, then after each rule
    candidates: RecordedCandidates
    tail: RecordedTail | None  # None: the candidates are all that there are
    lens: RecordedLens | None


@dataclass(frozen=True)
class RecordedPage:
    """A view that only the model can make."""

    view: View
    python: str  # what gives it
    token: int | None = None  # of the answer, that it is about

    def result(self, name: str) -> dict[str, Any]:
        """As the studio keeps what a server's view gave."""
        page = page_data(self.view.page(everything=True), self.python)
        return {"name": name, "title": page["title"], "description": "", "body": {}, "page": page}


@dataclass(frozen=True)
class Recording(View):
    """A run that can be explored without its model."""

    SCHEMA = "glassformer.recording/1"
    RECORDS = "steps"

    model: str
    executor: str
    tokens_per_second: float
    seed: int | None
    settings: Mapping[str, Any]  # those in force
    prompt: str  # as the model read it
    prompt_tokens: tuple[Token, ...]
    text: str
    steps: tuple[RecordedStep, ...]
    layers: tuple[str, ...]  # of the lens: 'embedding', then the blocks by index
    tail_width: float  # of a bin of the tails, in units of score
    stages: tuple[Stage, ...]  # the prompt's journey to its first token
    # The texts in the prompt, around which its template stands; None: no template, or an older recording
    contents: tuple[str, ...] | None = field(default=None, metadata={"added": True})
    # What its page holds besides, by the names that the studio has for it:
    slices: Mapping[str, View] = field(default_factory=dict, repr=False, metadata={"stored": False})
    pages: Mapping[str, RecordedPage] = field(default_factory=dict, repr=False, metadata={"stored": False})

    def page(self, everything: bool = False) -> Page:
        tokens = tuple(visible(step.token.text) for step in self.steps)
        notes = tuple(f"{step.surprisal:.1f} bits" for step in self.steps)
        about = f"{self.model} · {self.executor} · {pluralize(len(self.steps), 'token')}"
        strip = TokenStrip(tokens, tuple(step.surprisal for step in self.steps), notes)
        return Page(f"A recording of {self.model}", (Paragraph(about, "dim"), strip))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it: .html is the studio with this run in it, which needs no server; .json its data; .txt for people."""
        from glassformer.studio import saved_page

        if Path(path).suffix != ".html":
            return super().save(path)
        told = (page.token for page in self.pages.values() if page.token is not None)
        return write_form(path, {".html": lambda: saved_page(self.to_dict(), self._slices(), next(told, None))})

    def widget(self, height: int = 720) -> Any:
        """The studio with this run, for a notebook's cell; `height`: in pixels. Needs the extra `notebooks`."""
        from glassformer.studio import recording_widget

        return recording_widget(self.to_dict(), self._slices(), height)

    def _slices(self) -> dict[str, Any]:
        results = [page.result(name) for name, page in self.pages.items()]
        return {name: view.to_dict() for name, view in self.slices.items()} | ({"experiments": results} if results else {})

    def __repr__(self) -> str:
        return f"Recording({self.model}: {len(self.steps)} tokens)"


CANDIDATES = 64  # of a step that are recorded one by one; a run is watched with as many
PROMPT_TOKENS = 512  # of a prompt whose lens is recorded, at most
PATHS = 12  # candidates whose way through the rules is kept
PATCHED = 8  # positions at the end that a saved patch shows
PAGE_WORK = 10**11  # parameters × tokens of a run whose pages are made, at most
STAGES = 4  # that the progress counts
STREAM = PartPlaces("residual")


@operation(is_property=True)
def recording(run: RunLike) -> Recording:
    """The run as data that a page can explore without the model: scores, lens and journey."""
    steps = record_steps(run.model.tokenizer, run.steps)
    lenses = record_lenses(run, range(len(steps)))
    return replace(
        start_recording(run),
        tokens_per_second=run.tokens_per_second,
        text=run.text,
        steps=tuple(replace(step, lens=lens) for step, lens in zip(steps, lenses, strict=True)),
    )


@operation()
def record(run: RunLike, *, views: bool = False, progress: NamedProgress | None = None) -> Recording:
    """`recording`; with `views`, its page and its widget also show what a model is needed for.

    That is every head's attention, the prompt's lens, why the token came that tells most, where in the model that passes,
    and the likeliest continuations. `progress` is called as (what comes next, done so far, in all).
    """
    if not views:
        return recording(run)
    stage = progress or (lambda what, done, total: None)
    stage("attention and lens", 0, STAGES)
    slices = record_slices(Activations.of_run(run))
    return replace(recording(run), slices=slices, pages=record_pages(run, stage))


@operation()
def widget(run: RunLike, height: int = 720) -> Any:
    """The studio with this run, for a notebook's cell: alternatives, sliders, lens, attention; without a server."""
    return record(run, views=True).widget(height)


def record_slices(reading: Activations) -> dict[str, View]:
    """What the studio's views ask a model for: every head's attention, and what the layers predict within the prompt.

    A text that is too long for that has none of it.
    """
    slices: dict[str, View] = {}
    with suppress(InputError, SiteError):
        maps = attention_maps(reading)
        slices = {f"attention-maps/{kind}": attention_maps(reading, kind=kind) for kind in maps.kinds if kind != maps.kind}
        slices[f"attention-maps/{maps.kind}"] = maps
    if reading.source is None and not reading.model.blueprint.mixes_streams and 1 < reading.prompt_length <= PROMPT_TOKENS:
        slices["lens"] = lens(reading, range(reading.prompt_length - 1))
    return slices


def record_pages(run: RunLike, stage: NamedProgress) -> dict[str, RecordedPage]:
    """Why the token came that tells most, where in the model that passes, and how the answer could have gone.

    These read the text dozens of times: where that would take minutes, a page is saved without them.
    """
    pages: dict[str, RecordedPage] = {}
    if run.model.blueprint.parameters * (len(run.prompt_ids) + len(run.steps)) > PAGE_WORK:
        return pages
    stage("tree", 1, STAGES)
    with suppress(GlassError):
        pages["tree"] = RecordedPage(tree(run.model, run.prompt_ids), f"model.tree({[*run.prompt_ids]})")
    stage("why", 2, STAGES)
    with suppress(GlassError):
        why = explain_run(run, evidence=True)
        assert why.position is not None
        index = why.position + 1 - Activations.of_run(run).prompt_length
        pages["explain"] = RecordedPage(why, "run.explain(evidence=True)", index)
        stage("patch", 3, STAGES)
        if (pair := counterpart(run, why)) is not None:
            texts = ", ".join(repr(pair.text(text)) for text in (pair.first, pair.second))
            pages["patch"] = RecordedPage(one_pair(STREAM, *run_patches([pair], STREAM)), f"model.patch({texts}, raw=True)")
    return pages


def counterpart(run: RunLike, why: Explanation) -> TextPair | None:
    """The text before an explained token, and the same with the word exchanged that decides most."""
    assert why.position is not None
    whole = Activations.of_run(run)
    if whole.source is not None or not why.named or (exchange := why.words[0].best_exchange) is None:
        return None
    first = replace(whole, ids=whole.ids[: why.position + 1])
    word = next(word for word in words_of(first, len(first), run.contents) if word.positions == why.words[0].positions)
    second = replace(first, ids=exchanged(first.ids, {word: exchange.id}, run.model.tokenizer))
    places = word.positions if len(first) == len(second) else ()
    return TextPair(first, second, [*places, *range(-min(PATCHED, len(second)), 0)], aligned=True)


def start_recording(run: RunLike) -> Recording:
    """All that is known of a run before its first token."""
    model = run.model
    return Recording(
        model.name,
        model.executor.describe().name,
        0.0,
        run.seed,
        {name: json_value(value) for name, (value, _) in run.settings.in_force.items()},
        run.prompt,
        describe_tokens(model.tokenizer, run.prompt_ids),
        "",
        (),
        tuple(residual_sites(model.blueprint)),
        TAIL_WIDTH,
        prompt_stages(model, run.prompt, run.prompt_ids),
        run.contents,
    )


def record_steps(tokenizer: Tokenizer, steps: Sequence[Step], first: int = 0) -> list[RecordedStep]:
    """Watched steps, without what the layers predicted; `first`: the number of the first of them in its text."""
    tokens = describe_tokens(tokenizer, [step.id for step in steps], first)
    return [_step(tokenizer, step, token) for step, token in zip(steps, tokens, strict=True)]


def record_lenses(run: RunLike, numbers: Sequence[int]) -> Sequence[RecordedLens | None]:
    """What each layer would have predicted in the place of some of a run's steps; a pass over prompt and text.

    Nothing where layers have several streams.
    """
    if not numbers or run.model.blueprint.mixes_streams:
        return [None] * len(numbers)
    reading = Activations.of_run(run)
    seen = lens(reading, [reading.prompt_length - 1 + index for index in numbers])
    return [_lens_at(column) for column in zip(*seen.predictions, strict=True)]


def _lens_at(layers: Sequence[LayerPrediction]) -> RecordedLens:
    return RecordedLens(
        tuple(layer.text for layer in layers),
        tuple(layer.probability for layer in layers),
        tuple(layer.rank for layer in layers),
        tuple(layer.entropy for layer in layers),
    )


def _step(tokenizer: Tokenizer, step: Step, token: Token) -> RecordedStep:
    fall = step.waterfall
    if fall is None or step.logprob is None or step.candidates is None:
        raise InputError(f"this run was not watched. Get it with watch(…, look={CANDIDATES}).")
    ids = fall.ids.tolist()
    place = ids.index(step.id)
    paths = tuple(
        tuple(None if score == -math.inf else score for score in fall.scores[1:, column].tolist())
        for column in range(min(len(ids), max(PATHS, place + 1)))
    )
    texts = tuple(token_text(tokenizer, candidate) for candidate in ids)
    candidates = RecordedCandidates(tuple(ids), texts, tuple(fall.scores[0].tolist()), paths)
    rank = place + 1 if place < len(step.candidates) else None
    tail = None if fall.tail is None else RecordedTail(*fall.tail)
    return RecordedStep(
        token, -step.logprob / math.log(2), rank, fall.entropies[0], step.draw,
        step.finish.value if step.finish else None, fall.stages[1:], fall.counts, candidates, tail, None,
    )  # fmt: skip
