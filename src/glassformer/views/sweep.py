"""A sweep of one setting over the same scores, candidates down and values across; and strategies with what each wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glassformer.page.document import Column, Heading, Page, Part, Row, Table, Words
from glassformer.page.format import brief, seconds, share, tame, visible
from glassformer.views.view import View


@dataclass(frozen=True)
class ShapedScores:
    """What the scores become under one value."""

    value: str
    left: int  # candidates in play
    entropy: float  # in bits
    chances: tuple[float, ...]  # of the candidates


@dataclass(frozen=True)
class Sweep(View):
    SCHEMA = "glassformer.sweep/1"

    model: str
    setting: str
    step: int
    before: str  # the end of the text
    ids: tuple[int, ...]
    candidates: tuple[str, ...]  # best first, as the model has it
    own: tuple[float, ...]  # their probabilities as the model has it
    shapes: tuple[ShapedScores, ...]

    def page(self, everything: bool = False) -> Page:
        return draw_sweep(self, everything)

    def __repr__(self) -> str:
        return f"Sweep({self.setting}: {', '.join(shape.value for shape in self.shapes)})"


@dataclass(frozen=True)
class TriedStrategy:
    """One strategy, and what it wrote."""

    name: str
    settings: Mapping[str, Any]
    text: str
    tokens: int
    surprisal: float | None  # mean, in bits a token, as the model has it
    seconds: float
    finish: str | None


@dataclass(frozen=True)
class Strategies(View):
    SCHEMA = "glassformer.strategies/2"

    model: str
    prompt: str
    tried: tuple[TriedStrategy, ...]

    def page(self, everything: bool = False) -> Page:
        return draw_strategies(self, everything)

    def __repr__(self) -> str:
        return f"Strategies({', '.join(one.name for one in self.tried)})"


def draw_sweep(view: Sweep, everything: bool = False) -> Page:
    names = [f"{view.setting} {shape.value}" if len(view.shapes) < 3 else shape.value for shape in view.shapes]
    columns = (Column("candidate", "token", least=8), Column("model", "number"), *(Column(name, "number") for name in names))
    rows = [
        Row((visible(text), share(own), *(_chance(shape.chances[at]) for shape in view.shapes)))
        for at, (text, own) in enumerate(zip(view.candidates, view.own, strict=True))
    ]
    rows.append(Row(("in play", "", *(f"{shape.left:,}" for shape in view.shapes)), "dim"))
    rows.append(Row(("bits", "", *(f"{shape.entropy:.2f}" for shape in view.shapes)), "dim"))
    bars = tuple(
        Row((visible(text), *(shape.chances[at] for shape in view.shapes))) for at, text in enumerate(view.candidates)
    )
    parts: list[Part] = [
        Heading(f"{view.model}: token {view.step} after {brief(view.before, 24)}, by {view.setting}"),
        Table(columns, tuple(rows)),
        Table((columns[0], *(Column(name, "bar") for name in names)), bars),
    ]
    return Page(f"{view.model}: a sweep of {view.setting}", tuple(parts))


def _chance(value: float) -> str:
    return share(value) if value else "–"


def draw_strategies(view: Strategies, everything: bool = False) -> Page:
    columns = (
        Column("strategy"), Column("tokens", "number"), Column("surprisal", "number"), Column("time", "number", keep=6),
        Column("ended", keep=5),
    )  # fmt: skip
    rows = (
        Row(
            (
                one.name,
                str(one.tokens),
                "" if one.surprisal is None else f"{one.surprisal:.2f}",
                seconds(one.seconds),
                one.finish or "",
            )
        )
        for one in view.tried
    )
    parts: list[Part] = [Heading(f"{view.model}: {len(view.tried)} ways to choose, on one prompt")]
    parts += [
        Table(columns, tuple(rows)),
        Words("surprisal: mean bits per token, −log2 of the probability that the model gave it", "dim"),
    ]
    for one in view.tried:
        parts += [Heading(one.name), Words(tame(one.text))]
    return Page(f"{view.model}: strategies side by side", tuple(parts))
