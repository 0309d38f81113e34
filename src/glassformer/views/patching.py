"""Activation patching: which places inside the model make one text lead to another answer than a second one.

A cell is how much of the first text's answer a patch recovers: at 0 the answer is still the second text's, at 1 it is the
first text's.

Shapes: values (rows, columns): a row for each layer, a column for each position, or for each head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.ground.arguments import checked
from glassformer.ground.errors import InputError
from glassformer.page.document import Column, Grid, Heading, Page, PagePart, Paragraph, Table, TableRow
from glassformer.page.format import abbreviate_list, reveal_line, tail, visible
from glassformer.views.view import ArrayView

PatchedPart: TypeAlias = Literal["residual", "attention", "mlp", "heads", "query", "key", "value", "pattern"]
MAX_CHARACTERS = 74  # of a text, unless everything is shown
MAX_PLACES = 10
CARRIER = 0.5  # the fraction of the answer that a place must recover to be its carrier
SMALL_DIFFERENCE = "The two texts differ little in this, so percentages say little: name tokens whose scores differ more."
WHAT = {
    "residual": "the stream after a block",
    "attention": "what a block's attention adds",
    "mlp": "what a block's MLP adds",
    "heads": "one head's output",
    "query": "one head's query",
    "key": "one head's key",
    "value": "one head's value",
    "pattern": "where one head looks",
}


@dataclass(frozen=True)
class AnswerToken:
    """One of the two tokens whose scores are compared."""

    id: int
    text: str


@dataclass(frozen=True)
class PatchedPlace:
    """One place, and how much of the first text's answer it recovers."""

    layer: str
    place: str  # the token at it, or the head
    position: int | None  # None: a head, which is patched at all positions
    value: float


@dataclass(frozen=True)
class Patching(ArrayView):
    """How much of the first text's answer each place recovers when it is patched into the second text."""

    SCHEMA = "glassformer.patching/1"

    model: str
    part: PatchedPart
    texts: tuple[str, str]  # where the patches come from, and where they are put
    tokens: tuple[tuple[str, ...], tuple[str, ...]]  # of both, in the stack that is patched
    answers: tuple[AnswerToken, AnswerToken]  # what each text leads to
    differences: tuple[float, float]  # after each text: the first answer's score minus the second's
    layers: tuple[str, ...]  # 'embedding', then blocks by number
    positions: tuple[int, ...]  # that were patched
    heads: int  # how many columns are heads; 0: columns are positions
    sharing: int  # heads per column: several where they share a key and value
    values: tuple[tuple[float, ...], ...]
    best: tuple[int, int]  # the ids that each text leads to: those of the answers, unless others were named
    changes: tuple[str, ...]  # sites that were changed throughout

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    @property
    def columns(self) -> tuple[str, ...]:
        """What the columns stand for: the second text's tokens, or the heads' numbers."""
        if self.heads:
            return head_columns(self.heads, self.sharing)
        return tuple(self.tokens[1][position] for position in self.positions)

    @property
    def cells(self) -> list[PatchedPlace]:
        """All places, those that move the answer most first, in either direction."""
        positions: Sequence[int | None] = [None] * self.heads if self.heads else self.positions
        places = [
            PatchedPlace(layer, place, position, value)
            for layer, row in zip(self.layers, self.values, strict=True)
            for place, position, value in zip(self.columns, positions, row, strict=True)
        ]
        return sorted(places, key=lambda cell: -abs(cell.value))

    def at(self, layer: int | str, column: int) -> float:
        """One cell: after or in this layer (or 'embedding'), at this position of the text, or in this head."""
        columns = range(self.heads) if self.heads else self.positions
        if str(layer) not in self.layers or column not in columns:
            raise InputError(f"there is no cell of layer {layer!r} and {'head' if self.heads else 'position'} {column!r}.")
        return self.values[self.layers.index(str(layer))][columns.index(column)]

    def numbers(self) -> npt.NDArray[np.float64]:
        return np.array(self.values)

    @checked
    def records(self) -> list[dict[str, Any]]:
        """A row for each place, in the order of the layers."""
        names = ("head", "heads") if self.heads else ("position", "token")
        places = range(self.heads) if self.heads else self.positions
        return [
            {"layer": layer, names[0]: place, names[1]: text, "value": value}
            for layer, values in zip(self.layers, self.values, strict=True)
            for place, text, value in zip(places, self.columns, values, strict=True)
        ]

    def __repr__(self) -> str:
        first, second = self.answers
        return f"Patching({first.text!r} instead of {second.text!r}: {len(self.layers)} × {len(self.columns)} {self.part})"


def head_columns(columns: int, sharing: int) -> tuple[str, ...]:
    """The numbers of the heads in each column: one, or those that share a key and value."""
    if sharing == 1:
        return tuple(map(str, range(columns)))
    return tuple(f"{first}–{first + sharing - 1}" for first in range(0, columns * sharing, sharing))


def draw(view: Patching, everything: bool = False) -> Page:
    first, second = (visible(answer.text) for answer in view.answers)
    row_labels = tuple(layer_label(name) for name in view.layers)
    column_labels = view.columns if view.heads else tuple(_token(view, position) for position in view.positions)
    numbers = tuple(tuple(map(_rounded, row)) for row in view.values)
    shorten = reveal_line if everything else partial(tail, limit=MAX_CHARACTERS)
    own = view.best == tuple(answer.id for answer in view.answers)
    title = f"which places make it {first}, and not {second}" if own else f"which places move {first} against {second}"
    shared = f", which {view.sharing} heads share" if view.sharing > 1 else ""
    what = WHAT[view.part] + shared + (f", at {positions_text(view.positions)}" if view.heads else "")
    title = f"{view.model}: {title}"
    return Page(
        title,
        (
            Heading(title),
            Paragraph(
                "\n".join(f"{label}: {shorten(text)}" for label, text in zip(("from", "into"), view.texts, strict=True))
            ),
            *([Paragraph(f"under a change of {abbreviate_list(view.changes)}")] if view.changes else []),
            Paragraph(f"each cell: {what}, taken from the first text into the second", "dim"),
            Paragraph(f"0%, blank: {_lead(view, 1)}; 100%, full: {_lead(view, 0)}", "dim"),
            *([Paragraph(SMALL_DIFFERENCE)] if abs(view.differences[0] - view.differences[1]) < 1 else []),
            Grid(row_labels, column_labels, view.values, numbers, texts_optional=True, all_columns=everything),
            *(_carriers(view) if view.part == "residual" else _best_places(view, everything)),
        ),
    )


def _lead(view: Patching, text: int) -> str:
    first, second = (visible(answer.text) for answer in view.answers)
    lead = view.differences[text]
    side = "ahead of" if lead >= 0 else "behind"
    return f"{first} is {abs(lead):.2f} {side} {second}, as after the {('first', 'second')[text]}"


def positions_text(positions: tuple[int, ...]) -> str:
    """Positions as text, consecutive ones as a span."""
    if len(positions) > 1 and positions == tuple(range(positions[0], positions[-1] + 1)):
        return f"positions {positions[0]} to {positions[-1]}"
    return f"position{'' if len(positions) == 1 else 's'} {', '.join(map(str, positions))}"


def _carriers(view: Patching) -> tuple[PagePart, ...]:
    """Where the answer is carried, from layer to layer: the one place that recovers at least half of it."""
    carriers = [row.index(max(row)) if max(row) >= CARRIER else None for row in view.values]
    rows = []
    for column, group in groupby(range(len(carriers)), key=carriers.__getitem__):
        layers = list(group)
        names = [layer_label(view.layers[layer]) for layer in (layers[0], layers[-1])]
        span = names[0] if len(layers) == 1 else " to ".join(names)
        if column is None:
            rows.append(TableRow((span, "", "no single place", "", 0.0), "dim"))
            continue
        position, least = view.positions[column], min(view.values[layer][column] for layer in layers)
        rows.append(TableRow((span, str(position), _token(view, position), f"{least:.1%}", bar_length(least))))
    columns = (
        Column("layers"), Column("position", "number"), Column("token", "token", min_width=8),
        Column("recovered, at least", "number"), Column("", "bar", priority=6),
    )  # fmt: skip
    return Heading("where it is carried"), Table(columns, tuple(rows))


def _best_places(view: Patching, everything: bool) -> tuple[PagePart, ...]:
    columns = [Column("layer", "number"), Column("head" if view.heads else "position", "number")]
    columns += [] if view.heads else [Column("token", "token", min_width=8)]
    rows = []
    for cell in view.cells[: None if everything else MAX_PLACES]:
        where = (cell.place,) if cell.position is None else (str(cell.position), _token(view, cell.position))
        rows.append(TableRow((cell.layer, *where, f"{cell.value:+.1%}", bar_length(cell.value))))
    columns += [Column("recovered", "number"), Column("", "signed bar", priority=7)]
    return Heading("the places that move it most"), Table(tuple(columns), tuple(rows))


def layer_label(name: str) -> str:
    return name if name == "embedding" else f"layer {name}"


def _rounded(value: float) -> str:
    """A percentage for a grid's cell; empty for 0."""
    return f"{value:.0%}" if round(value, 2) else ""


def bar_length(value: float) -> float:
    """The length of a bar, within -1 and 1: a patch can recover more than all, or the opposite."""
    return min(1.0, max(-1.0, value))


def _token(view: Patching, position: int) -> str:
    """The second text's token, and the first's where that is another."""
    first, second = (visible(tokens[position]) for tokens in view.tokens)
    return second if first == second else f"{second}←{first}"
