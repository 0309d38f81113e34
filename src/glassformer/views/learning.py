"""A model as it learns: one text under its snapshots. The loss of each token, what was expected after one of them, what each
layer would have predicted there, and what one head attended to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from glassformer.page.document import (
    Column,
    Grid,
    Heading,
    Page,
    PagePart,
    Paragraph,
    Shortenable,
    Table,
    TableRow,
    ThumbnailGrid,
)
from glassformer.page.format import format_percent, visible
from glassformer.views.answers import Candidate
from glassformer.views.attention import NOTE, SINK
from glassformer.views.view import View


@dataclass(frozen=True)
class LayerGuess:
    """The token that one layer would predict, were it the last."""

    id: int
    text: str
    probability: float


@dataclass(frozen=True)
class SnapshotReading:
    """The text as the model reads it after so many steps."""

    step: int
    loss: float | None  # the mean of its tokens', in nats
    losses: tuple[float | None, ...]  # of each token; the first one has nothing before it
    candidates: tuple[tuple[Candidate, ...], ...]  # the best next tokens after each one
    layers: tuple[LayerGuess, ...]  # after the token at the position
    attention: tuple[tuple[float, ...], ...]  # one head's weights, (queries, keys)
    sink: tuple[float, ...] | None = None  # what the head's sink took of each row; None: there is none


@dataclass(frozen=True)
class Learning(View):
    """What each snapshot of a training makes of one text."""

    SCHEMA = "glassformer.learning/1"

    name: str  # of the training's folder
    tokens: tuple[str, ...]
    position: int  # of the token after which a next one is predicted
    layers: tuple[str, ...]  # 'embedding', then the blocks by number
    layer: int  # whose attention it is
    head: int
    blocks: int  # that the model has
    heads: int  # of each block
    snapshots: tuple[SnapshotReading, ...]  # from the first step to the last
    note: str = NOTE

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(snapshot.step for snapshot in self.snapshots)

    def __repr__(self) -> str:
        return f"Learning({len(self.snapshots)} snapshots × {len(self.tokens)} tokens)"


def draw(view: Learning, everything: bool = False) -> Page:
    title = f"{view.name}: a text as the model learns"
    steps = tuple(f"{step:,}" for step in view.steps)
    last = visible(view.tokens[view.position])
    parts: list[PagePart] = [
        Heading(title),
        Paragraph("each row is the model after so many steps; numbers are the loss of each token, in nats", "dim"),
        _losses(view, steps, everything),
        Heading(f"expected after {last} (position {view.position})"),
        _expected(view, steps),
        Heading(f"what each layer would predict after {last}, by step"),
        Grid(
            view.layers,
            steps,
            tuple(tuple(at.layers[number].probability for at in view.snapshots) for number in range(len(view.layers))),
            tuple(tuple(visible(at.layers[number].text) for at in view.snapshots) for number in range(len(view.layers))),
            all_columns=True,
        ),
        Heading(f"what {last} attends to, in layer {view.layer}, head {view.head}"),
        _attended(view, steps, everything),
    ]
    if len(view.tokens) > 1:
        maps = np.array([[at.attention for at in view.snapshots]])
        parts.append(ThumbnailGrid((f"layer {view.layer}, head {view.head}",), steps, np.rint(maps * 255).astype(np.uint8)))
    return Page(title, (*parts, Paragraph(view.note, "dim")))


def _attended(view: Learning, steps: tuple[str, ...], everything: bool) -> Grid:
    keys = tuple(map(visible, view.tokens[: view.position + 1]))
    weights = [at.attention[view.position][: len(keys)] for at in view.snapshots]
    sinks = [() if at.sink is None else (at.sink[view.position],) for at in view.snapshots]
    rows = tuple((*row, *sink) for row, sink in zip(weights, sinks, strict=True))
    texts = tuple(tuple(map(format_percent, row)) for row in rows)
    keys = (*keys, SINK) if any(sinks) else keys
    return Grid(steps, keys, rows, texts, texts_optional=True, all_columns=everything)


def _losses(view: Learning, steps: Sequence[str], everything: bool) -> Grid:
    largest = max((loss for at in view.snapshots for loss in at.losses if loss is not None), default=1.0) or 1.0
    return Grid(
        tuple(steps),
        tuple(map(visible, view.tokens)),
        tuple(tuple(None if loss is None else loss / largest for loss in at.losses) for at in view.snapshots),
        tuple(tuple("" if loss is None else f"{loss:.2f}" for loss in at.losses) for at in view.snapshots),
        tuple(tuple("" if loss is None else f"{loss:.3f} nats" for loss in at.losses) for at in view.snapshots),
        texts_optional=True,
        all_columns=everything,
    )


def _expected(view: Learning, steps: Sequence[str]) -> Table:
    columns = (
        Column("step", "number"), Column("mean loss", "number"), Column("the best", "bar", priority=5),
        Column("most likely next", min_width=22),
    )  # fmt: skip
    rows = []
    for step, at in zip(steps, view.snapshots, strict=True):
        best = at.candidates[view.position]
        loss = "" if at.loss is None else f"{at.loss:.3f}"
        rows.append(TableRow((step, loss, best[0].probability, Shortenable(_line(best, 5), _line(best, 2)))))
    return Table(columns, tuple(rows))


def _line(candidates: Sequence[Candidate], limit: int) -> str:
    return " · ".join(f"{visible(at.text)} {format_percent(at.probability)}" for at in candidates[:limit])
