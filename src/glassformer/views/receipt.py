"""The receipt of a run, and the result of replaying one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from glassformer.page.document import Column, Heading, Page, PagePart, Paragraph, Preformatted, Table, TableRow, elide_middle
from glassformer.page.format import visible
from glassformer.views.journey import shortened
from glassformer.views.view import View

SCHEMA = "glassformer.run/1"
MAX_TOKENS = 64  # unless everything is shown


@dataclass(frozen=True)
class ReceiptStep:
    """One chosen token."""

    id: int
    text: str
    draw: float | None
    logprob: float | None


@dataclass(frozen=True)
class SettingValue:
    """A setting in force, and its origin."""

    value: Any
    origin: str


@dataclass(frozen=True)
class Receipt(View):
    """Everything that is needed to write a run's text again."""

    SCHEMA = SCHEMA

    model: str
    path: str | None  # of its weights
    weights: str | None  # their SHA-256; None for a model built in memory
    versions: Mapping[str, str]
    executor: Mapping[str, Any]
    prompt: str  # as the model saw it
    prompt_ids: tuple[int, ...]
    settings: Mapping[str, SettingValue]
    seed: int | None
    negative_ids: tuple[int, ...] | None  # of guidance's negative prompt
    changes: Mapping[str, Any]  # changes inside the model, by site
    text: str
    steps: tuple[ReceiptStep, ...]
    finish: str | None
    stop: str | None
    adapters: Mapping[str, float] = field(default_factory=dict)  # on top of the model, by name, with a weight each

    def page(self, everything: bool = False) -> Page:
        return draw_receipt(self, everything)

    def __repr__(self) -> str:
        return f"Receipt({self.model}: {len(self.steps)} tokens)"


@dataclass(frozen=True)
class Replay(View):
    """The result of replaying a receipt."""

    SCHEMA = "glassformer.replay/1"

    identical: bool  # whether every token is the same
    step: int | None  # the first that differs
    was: str | None  # the token in the receipt; None: the text had ended
    now: str | None  # the token in the replay; None: the text had ended
    logprobs: tuple[float | None, float | None]  # of the two tokens, each in its own run
    differences: tuple[str, ...]  # of versions and executor
    text: str

    def page(self, everything: bool = False) -> Page:
        return draw_replay(self, everything)

    def __repr__(self) -> str:
        return "Replay(identical)" if self.identical else f"Replay(differs from token {self.step} on)"


def draw_receipt(view: Receipt, everything: bool = False) -> Page:
    about = {
        "model": view.model,
        "path": view.path or "",
        "adapters": ", ".join(f"{name} × {weight:g}" for name, weight in view.adapters.items()),
        "weights": f"sha256 {view.weights}" if view.weights else "in memory",
        "executor": ", ".join(str(view.executor.get(name, "")) for name in ("name", "dtype")),
        "versions": ", ".join(f"{name} {version}" for name, version in view.versions.items()),
        "seed": "" if view.seed is None else str(view.seed),
        "ended": view.finish or "",
        "changed": ", ".join(view.changes),
    }
    rows = tuple(TableRow((name, value)) for name, value in about.items() if value)
    settings = tuple(TableRow((name, str(setting.value), setting.origin)) for name, setting in view.settings.items())
    tokens = [
        TableRow((str(number), str(step.id), visible(step.text), "" if step.draw is None else f"{step.draw:.6f}"))
        for number, step in enumerate(view.steps)
    ]
    columns = (Column("", "number"), Column("id", "number"), Column("token", "token", min_width=8), Column("draw", "number"))
    parts: list[PagePart] = [
        Heading("what it was made with"),
        Table((Column(), Column(min_width=20)), rows),
        Heading("settings, and where each came from"),
        Table((Column("setting"), Column("value", min_width=12), Column("from")), settings),
        Heading("the prompt, as the model saw it"),
        Preformatted(shortened(view.prompt, everything)),
        Heading("the text"),
        Paragraph(view.text),
        Table(columns, tuple(tokens) if everything else elide_middle(tokens, MAX_TOKENS)),
    ]
    return Page(f"{view.model}: receipt", tuple(parts))


def draw_replay(view: Replay, everything: bool = False) -> Page:
    parts: list[PagePart] = []
    if view.identical:
        parts.append(Paragraph("identical: every token is the same", "chosen"))
    else:
        was = "the end" if view.was is None else visible(view.was)
        now = "the end" if view.now is None else visible(view.now)
        parts.append(Paragraph(f"not identical: at token {view.step} there was {was}, now it is {now}", "strong"))
        before, after = ("–" if value is None else f"{value:.4f}" for value in view.logprobs)
        parts.append(Paragraph(f"their log-probabilities: {before} then, {after} now", "dim"))
    parts += [Paragraph(difference, "dim") for difference in view.differences]
    return Page("replay", tuple(parts))
