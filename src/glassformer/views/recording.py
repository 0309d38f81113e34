"""A recording: a whole run as data that a page can explore without the model.

Each step keeps the model's best scores one by one, and all the others as a histogram. So a page can compute the
probabilities under any temperature or top-p itself, and what it says of "all others" stays right.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glassformer.page.document import Page, Paragraph, TokenStrip
from glassformer.page.format import pluralize, visible
from glassformer.views.journey import Stage
from glassformer.views.tokens import Token
from glassformer.views.view import View, write_form


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
    layers: tuple[str, ...]  # of the lens: 'embedding', then the blocks by number
    tail_width: float  # of a bin of the tails, in units of score
    stages: tuple[Stage, ...]  # the prompt's journey to its first token
    # What its page holds besides, by the names that the studio has for it:
    slices: Mapping[str, View] = field(default_factory=dict, repr=False, metadata={"stored": False})

    def page(self, everything: bool = False) -> Page:
        tokens = tuple(visible(step.token.text) for step in self.steps)
        notes = tuple(f"{step.surprisal:.1f} bits" for step in self.steps)
        about = f"{self.model} · {self.executor} · {pluralize(len(self.steps), 'token')}"
        strip = TokenStrip(tokens, tuple(step.surprisal for step in self.steps), notes)
        return Page(f"A recording of {self.model}", (Paragraph(about, "dim"), strip))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it: .html is the studio with this run in it, which needs no server; .json its data; .txt for people."""
        from glassformer.studio.saved_page import saved_page

        if Path(path).suffix != ".html":
            return super().save(path)
        return write_form(path, {".html": lambda: saved_page(self.to_dict(), self._slices())})

    def widget(self, height: int = 720) -> Any:
        """The studio with this run, for a notebook's cell; so many pixels high. Needs the extra `notebooks`."""
        from glassformer.studio.widget import recording_widget

        return recording_widget(self.to_dict(), self._slices(), height)

    def _slices(self) -> dict[str, Any]:
        return {name: view.to_dict() for name, view in self.slices.items()}

    def __repr__(self) -> str:
        return f"Recording({self.model}: {len(self.steps)} tokens)"
