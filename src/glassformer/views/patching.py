"""Activation patching: which place inside the model makes one text lead elsewhere than another.

A cell says how much of the first text's answer came back: 0, the answer is the second text's as before; 1, it is the first
one's.

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

from glassformer.errors import InputError
from glassformer.page.document import Column, Grid, Heading, Page, Part, Row, Table, Words
from glassformer.page.format import brief, few, tame, visible
from glassformer.views.view import View

PatchedPart: TypeAlias = Literal["residual", "attention", "mlp", "heads", "query", "key", "value", "pattern"]


@dataclass(frozen=True)
class AnswerToken:
    """One of the two tokens whose scores shorten the texts apart."""

    id: int
    text: str


@dataclass(frozen=True)
class PatchedPlace:
    """One place, and how much of the first text's answer it brings back."""

    layer: str
    place: str  # the token at it, or the head
    position: int | None  # of a head, which is patched at all of them: None
    value: float


@dataclass(frozen=True)
class Patching(View):
    SCHEMA = "glassformer.patching/1"

    model: str
    part: PatchedPart
    texts: tuple[str, str]  # where the patches come from, and where they are put
    tokens: tuple[tuple[str, ...], tuple[str, ...]]  # of both, on the side that is patched
    answers: tuple[AnswerToken, AnswerToken]  # what each text leads to
    differences: tuple[float, float]  # after each text: the first answer's score less the second's
    layers: tuple[str, ...]  # 'embedding', then blocks by number
    positions: tuple[int, ...]  # that were patched
    heads: int  # how many columns are heads; 0: columns are positions
    sharing: int  # heads of one column: of keys and values, a group may have several
    values: tuple[tuple[float, ...], ...]
    best: tuple[int, int]  # the ids that each text leads to, which the answers are unless others were named
    changes: tuple[str, ...]  # sites that were changed all the while

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    @property
    def columns(self) -> tuple[str, ...]:
        """What the columns stand for: the second text's tokens, or the heads' numbers."""
        if self.heads and self.sharing > 1:
            return tuple(
                f"{first}–{first + self.sharing - 1}" for first in range(0, self.heads * self.sharing, self.sharing)
            )
        if self.heads:
            return tuple(map(str, range(self.heads)))
        return tuple(self.tokens[1][position] for position in self.positions)

    @property
    def cells(self) -> list[PatchedPlace]:
        """All places, those that move the answer most first, whichever way."""
        at: Sequence[int | None] = [None] * self.heads if self.heads else self.positions
        view = [
            PatchedPlace(layer, place, position, value)
            for layer, row in zip(self.layers, self.values, strict=True)
            for place, position, value in zip(self.columns, at, row, strict=True)
        ]
        return sorted(view, key=lambda cell: -abs(cell.value))

    def at(self, layer: int | str, column: int) -> float:
        """One cell: after or in this layer (or 'embedding'), at this position of the text, or in this head."""
        columns = range(self.heads) if self.heads else self.positions
        if str(layer) not in self.layers or column not in columns:
            raise InputError(f"there is no cell of layer {layer!r} and {'head' if self.heads else 'position'} {column!r}.")
        return self.values[self.layers.index(str(layer))][columns.index(column)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.values, dtype)

    def __repr__(self) -> str:
        first, second = self.answers
        return f"Patching({first.text!r} instead of {second.text!r}: {len(self.layers)} × {len(self.columns)} {self.part})"


LINE = 74  # characters of a text, unless all is wanted
BEST = 10  # places that are listed
HALF = 0.5  # of the answer, that a place must bring back to be its carrier
LITTLE = "The two texts move this little, so that shares of it say little: name tokens that they shorten apart more."
WHAT = {
    "residual": "the stream after a block",
    "attention": "what a block's attention adds",
    "mlp": "what a block's MLP adds",
    "heads": "what one head gives",
    "query": "one head's query",
    "key": "one head's key",
    "value": "one head's value",
    "pattern": "where one head looks",
}


def draw(view: Patching, everything: bool = False) -> Page:
    first, second = (visible(answer.text) for answer in view.answers)
    down = tuple(_layer(name) for name in view.layers)
    across = view.columns if view.heads else tuple(_token(view, position) for position in view.positions)
    numbers = tuple(tuple(map(_rounded, row)) for row in view.values)
    progress = tame if everything else partial(brief, most=LINE)
    own = view.best == tuple(answer.id for answer in view.answers)
    said = f"which places make it {first}, and not {second}" if own else f"which places move {first} against {second}"
    shared = f", which {view.sharing} heads share" if view.sharing > 1 else ""
    what = WHAT[view.part] + shared + (f", at {_positions_text(view.positions)}" if view.heads else "")
    return Page(
        f"{view.model}: {said}",
        (
            Heading(f"{view.model}: {said}"),
            Words("\n".join(f"{way}: {progress(text)}" for way, text in zip(("from", "into"), view.texts, strict=True))),
            *([Words(f"under a change of {few(view.changes)}")] if view.changes else []),
            Words(f"each cell: {what}, taken from the first text into the second", "dim"),
            Words(f"0%, blank: {_lead(view, 1)}; 100%, full: {_lead(view, 0)}", "dim"),
            *([Words(LITTLE)] if abs(view.differences[0] - view.differences[1]) < 1 else []),
            Grid(down, across, view.values, numbers, spare=True, whole=everything),
            *(_carriers(view) if view.part == "residual" else _best(view, everything)),
        ),
    )


def _lead(view: Patching, text: int) -> str:
    first, second = (visible(answer.text) for answer in view.answers)
    lead = view.differences[text]
    way = "ahead of" if lead >= 0 else "behind"
    return f"{first} is {abs(lead):.2f} {way} {second}, as after the {('first', 'second')[text]}"


def _positions_text(positions: tuple[int, ...]) -> str:
    """Positions in words, those next to each other as a span."""
    if len(positions) > 1 and positions == tuple(range(positions[0], positions[-1] + 1)):
        return f"positions {positions[0]} to {positions[-1]}"
    return f"position{'' if len(positions) == 1 else 's'} {', '.join(map(str, positions))}"


def _carriers(view: Patching) -> tuple[Part, ...]:
    """Where the answer is carried, from layer to layer: the one place that brings at least half of it back."""
    carriers = [row.index(max(row)) if max(row) >= HALF else None for row in view.values]
    rows = []
    for column, group in groupby(range(len(carriers)), key=carriers.__getitem__):
        layers = list(group)
        names = [_layer(view.layers[layer]) for layer in (layers[0], layers[-1])]
        span = names[0] if len(layers) == 1 else " to ".join(names)
        if column is None:
            rows.append(Row((span, "", "no one place", "", 0.0), "dim"))
            continue
        position, least = view.positions[column], min(view.values[layer][column] for layer in layers)
        rows.append(Row((span, str(position), _token(view, position), f"{least:.1%}", _shade(least))))
    columns = (
        Column("layers"), Column("position", "number"), Column("token", "token", least=8),
        Column("back, at least", "number"), Column("", "bar", keep=6),
    )  # fmt: skip
    return Heading("where it is carried"), Table(columns, tuple(rows))


def _best(view: Patching, everything: bool) -> tuple[Part, ...]:
    columns = [Column("layer", "number"), Column("head" if view.heads else "position", "number")]
    columns += [] if view.heads else [Column("token", "token", least=8)]
    rows = []
    for cell in view.cells[: None if everything else BEST]:
        where = (cell.place,) if cell.position is None else (str(cell.position), _token(view, cell.position))
        rows.append(Row((cell.layer, *where, f"{cell.value:+.1%}", _shade(-cell.value), _shade(cell.value))))
    bars = (Column("further away", "bar", keep=6), Column("back", "bar", keep=7))
    return Heading("the places that move it most"), Table((*columns, Column("", "number"), *bars), tuple(rows))


def _layer(name: str) -> str:
    return name if name == "embedding" else f"layer {name}"


def _rounded(value: float) -> str:
    """In a cell, where nothing is best seen as nothing."""
    return f"{value:.0%}" if round(value, 2) else ""


def _shade(value: float) -> float:
    """As long as a bar can be: a patch can do more than the text, or the opposite."""
    return min(1.0, max(0.0, value))


def _token(view: Patching, position: int) -> str:
    """The token of the second text; where the first one has another, that too."""
    first, second = (visible(tokens[position]) for tokens in view.tokens)
    return second if first == second else f"{second}←{first}"
