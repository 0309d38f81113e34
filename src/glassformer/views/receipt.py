"""The receipt of a run, and what came of replaying one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glassformer.page.document import Column, Heading, Page, Part, Passage, Row, Table, Words, middle
from glassformer.page.format import tame, visible
from glassformer.views.journey import shortened
from glassformer.views.view import View

SCHEMA = "glassformer.run/1"


@dataclass(frozen=True)
class ReceiptStep:
    """One token that was chosen."""

    id: int
    text: str
    draw: float | None
    logprob: float | None


@dataclass(frozen=True)
class SettingValue:
    """A setting in force, and where it came from."""

    value: Any
    origin: str


@dataclass(frozen=True)
class Receipt(View):
    SCHEMA = SCHEMA

    model: str  # by name
    path: str | None  # where its weights lay
    weights: str | None  # their SHA-256; None for a model that was made in memory
    versions: Mapping[str, str]
    executor: Mapping[str, Any]
    prompt: str  # as the model saw it
    prompt_ids: tuple[int, ...]
    settings: Mapping[str, SettingValue]
    seed: int | None
    negative_ids: tuple[int, ...] | None  # what guidance led away from
    changes: Mapping[str, Any]  # what was changed inside the model, by site
    text: str
    steps: tuple[ReceiptStep, ...]
    finish: str | None
    stop: str | None

    def page(self, everything: bool = False) -> Page:
        return draw_receipt(self, everything)

    def __repr__(self) -> str:
        return f"Receipt({self.model}: {len(self.steps)} tokens)"


# Replaying ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Replay(View):
    """What came of writing a text again."""

    SCHEMA = "glassformer.replay/1"

    identical: bool  # every token is the same
    step: int | None  # the first that is not
    was: str | None  # what stood there
    now: str | None  # what came this time
    logprobs: tuple[float | None, float | None]  # of what stood there and of what came, in the two runs
    differences: tuple[str, ...]  # of the circumstances: versions, executor
    text: str

    def page(self, everything: bool = False) -> Page:
        return draw_replay(self, everything)

    def __repr__(self) -> str:
        return "Replay(identical)" if self.identical else f"Replay(differs from token {self.step} on)"


MOST = 64


def draw_receipt(view: Receipt, everything: bool = False) -> Page:
    about = {
        "model": view.model,
        "path": view.path or "",
        "weights": f"sha256 {view.weights}" if view.weights else "in memory",
        "executor": ", ".join(str(view.executor.get(name, "")) for name in ("name", "dtype")),
        "versions": ", ".join(f"{name} {version}" for name, version in view.versions.items()),
        "seed": "" if view.seed is None else str(view.seed),
        "ended": view.finish or "",
        "changed": ", ".join(view.changes),
    }
    rows = tuple(Row((name, value)) for name, value in about.items() if value)
    settings = tuple(Row((name, str(setting.value), setting.origin)) for name, setting in view.settings.items())
    tokens = [
        Row((str(number), str(one.id), visible(one.text), "" if one.draw is None else f"{one.draw:.6f}"))
        for number, one in enumerate(view.steps)
    ]
    columns = (Column("", "number"), Column("id", "number"), Column("token", "token", least=8), Column("draw", "number"))
    parts: list[Part] = [
        Heading("what it was made with"),
        Table((Column(), Column(least=20)), rows),
        Heading("settings, and where each came from"),
        Table((Column("setting"), Column("value", least=12), Column("from")), settings),
        Heading("the prompt, as the model saw it"),
        Passage(shortened(view.prompt, everything)),
        Heading("what came out"),
        Words(tame(view.text)),
        Table(columns, tuple(tokens) if everything else middle(tokens, MOST)),
    ]
    return Page(f"{view.model}: receipt", tuple(parts))


def draw_replay(view: Replay, everything: bool = False) -> Page:
    parts: list[Part] = []
    if view.identical:
        parts.append(Words("identical: every token is the same", "chosen"))
    else:
        was = "the end" if view.was is None else visible(view.was)
        now = "the end" if view.now is None else visible(view.now)
        parts.append(Words(f"not identical: at token {view.step} there was {was}, now it is {now}", "strong"))
        logs = ["–" if one is None else f"{one:.4f}" for one in view.logprobs]
        parts.append(Words(f"their log-probabilities: {logs[0]} then, {logs[1]} now", "dim"))
    parts += [Words(one, "dim") for one in view.differences]
    return Page("replay", tuple(parts))
