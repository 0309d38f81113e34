"""A sweep of one setting over the same scores; and several strategies with the text each wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glassformer.page.document import Column, Heading, Page, PagePart, Paragraph, Table, TableRow
from glassformer.page.format import format_percent, format_seconds, tail, visible
from glassformer.views.view import View


@dataclass(frozen=True)
class ShapedScores:
    """The probabilities under one value of the setting."""

    value: str
    left: int  # candidates left
    entropy: float  # in bits
    probabilities: tuple[float, ...]  # of the candidates


@dataclass(frozen=True)
class Sweep(View):
    """The candidates of one step under several values of one setting."""

    SCHEMA = "glassformer.sweep/2"

    model: str
    setting: str
    step: int
    before: str  # the end of the text
    ids: tuple[int, ...]
    candidates: tuple[str, ...]  # best first, under the model
    own: tuple[float, ...]  # their probabilities under the model
    shapes: tuple[ShapedScores, ...]

    def page(self, everything: bool = False) -> Page:
        return draw_sweep(self, everything)

    def __repr__(self) -> str:
        return f"Sweep({self.setting}: {', '.join(shape.value for shape in self.shapes)})"


@dataclass(frozen=True)
class TriedStrategy:
    """One strategy, and the text it wrote."""

    name: str
    settings: Mapping[str, Any]
    text: str
    tokens: int
    surprisal: float | None  # mean, in bits per token, under the model
    seconds: float
    finish: str | None


@dataclass(frozen=True)
class Strategies(View):
    """Several strategies on one prompt."""

    SCHEMA = "glassformer.strategies/2"

    model: str
    prompt: str
    tried: tuple[TriedStrategy, ...]

    def page(self, everything: bool = False) -> Page:
        return draw_strategies(self, everything)

    def __repr__(self) -> str:
        return f"Strategies({', '.join(strategy.name for strategy in self.tried)})"


def draw_sweep(view: Sweep, everything: bool = False) -> Page:
    names = [f"{view.setting} {shape.value}" if len(view.shapes) < 3 else shape.value for shape in view.shapes]
    columns = (
        Column("candidate", "token", min_width=8),
        Column("model", "number"),
        *(Column(name, "number") for name in names),
    )
    rows = [
        TableRow((visible(text), format_percent(own), *(_probability(shape.probabilities[at]) for shape in view.shapes)))
        for at, (text, own) in enumerate(zip(view.candidates, view.own, strict=True))
    ]
    rows.append(TableRow(("in play", "", *(f"{shape.left:,}" for shape in view.shapes)), "dim"))
    rows.append(TableRow(("entropy", "", *(f"{shape.entropy:.2f}" for shape in view.shapes)), "dim"))
    bars = tuple(
        TableRow((visible(text), *(shape.probabilities[at] for shape in view.shapes)))
        for at, text in enumerate(view.candidates)
    )
    parts: list[PagePart] = [
        Heading(title := f"{view.model}: token {view.step} after {tail(view.before, 24)}, by {view.setting}"),
        Table(columns, tuple(rows)),
        Table((columns[0], *(Column(name, "bar") for name in names)), bars),
        Paragraph("in play: candidates left · entropy: in bits", "dim"),
    ]
    return Page(title, tuple(parts))


def _probability(value: float) -> str:
    return format_percent(value) if value else "–"


def draw_strategies(view: Strategies, everything: bool = False) -> Page:
    columns = (
        Column("strategy"), Column("tokens", "number"), Column("surprisal", "number"), Column("time", "number", priority=6),
        Column("ended", priority=5),
    )  # fmt: skip
    rows = (
        TableRow(
            (
                strategy.name,
                str(strategy.tokens),
                "" if strategy.surprisal is None else f"{strategy.surprisal:.2f}",
                format_seconds(strategy.seconds),
                strategy.finish or "",
            )
        )
        for strategy in view.tried
    )
    parts: list[PagePart] = [Heading(title := f"{view.model}: {len(view.tried)} strategies on one prompt")]
    parts += [
        Table(columns, tuple(rows)),
        Paragraph("surprisal: how unexpected a token was, −log2 of its probability; mean, in bits", "dim"),
    ]
    for strategy in view.tried:
        parts += [Heading(strategy.name), Paragraph(strategy.text)]
    return Page(title, tuple(parts))
