"""Patching as a picture: layers down, positions or heads across, and the places that bring most back."""

from __future__ import annotations

from functools import partial

from glassformer.observe.patching import Patching
from glassformer.show.page import Column, Grid, Heading, Page, Part, Row, Table, Words
from glassformer.show.words import brief, tame, visible

LINE = 74  # characters of a text, unless all is wanted
BEST = 10  # places that are listed
FEW = 6  # columns whose cells have room for a number
HALF = 0.5  # of the answer, that a place must bring back to be its carrier
WHAT = {
    "residual": "the stream after a block",
    "attention": "what a block's attention adds",
    "mlp": "what a block's MLP adds",
    "heads": "what one head gives, at all positions that were patched",
}


def page(found: Patching, everything: bool = False) -> Page:
    first, second = (visible(answer.text) for answer in found.answers)
    down = tuple(_layer(name) for name in found.layers)
    across = found.columns if found.heads else tuple(_token(found, position) for position in found.positions)
    shades = tuple(tuple(map(_shade, row)) for row in found.values)
    texts = tuple(tuple(_rounded(value) for value in row) for row in found.values) if len(across) <= FEW else ()
    tell = tame if everything else partial(brief, most=LINE)
    clean, dirty = found.differences
    return Page(
        f"{found.model}: what brings {first} back",
        (
            Heading(f"{found.model}: which places make it {first}, and not {second}"),
            Words("\n".join(f"{way}: {tell(text)}" for way, text in zip(("from", "into"), found.texts, strict=True))),
            Words(
                f"each cell: {WHAT[found.part]}, taken from the first text into the second; "
                f"blank: still {second}; full: {first} again",
                "dim",
            ),
            Grid(down, across, shades, texts),
            *(_ways(found) if found.part == "residual" else _best(found, everything)),
            Words(
                f"0%: {first} is {dirty:+.2f} ahead of {second}, as after the second text; 100%: {clean:+.2f}, as after the "
                "first",
                "dim",
            ),
        ),
    )


def _ways(found: Patching) -> tuple[Part, ...]:
    """Where the answer is carried, from layer to layer: the one place that brings at least half of it back."""
    carried: list[tuple[int | None, list[int]]] = []  # columns, and the layers in which they carry it
    for layer, row in enumerate(found.values):
        best = max(range(len(row)), key=lambda column: row[column])
        column = best if row[best] >= HALF else None
        if carried and carried[-1][0] == column:
            carried[-1][1].append(layer)
        else:
            carried.append((column, [layer]))
    rows = []
    for column, layers in carried:
        names = [_layer(found.layers[layer]) for layer in (layers[0], layers[-1])]
        span = names[0] if len(layers) == 1 else " to ".join(names)
        if column is None:
            rows.append(Row((span, "", "no one place", "", 0.0), "dim"))
            continue
        position, least = found.positions[column], min(found.values[layer][column] for layer in layers)
        rows.append(Row((span, str(position), _token(found, position), f"{least:.1%}", _shade(least))))
    columns = (
        Column("layers"), Column("position", "number"), Column("token", "token", least=8),
        Column("back, at least", "number"), Column("", "bar", keep=6),
    )  # fmt: skip
    return Heading("where it is carried"), Table(columns, tuple(rows))


def _best(found: Patching, everything: bool) -> tuple[Part, ...]:
    columns = [Column("layer", "number"), Column("head" if found.heads else "position", "number")]
    columns += [] if found.heads else [Column("token", "token", least=8)]
    rows = []
    for cell in found.cells[: None if everything else BEST]:
        where = (cell.place,) if cell.position is None else (str(cell.position), _token(found, cell.position))
        rows.append(Row((cell.layer, *where, f"{round(cell.value, 3) + 0.0:.1%}", _shade(cell.value))))
    table = Table((*columns, Column("back", "number"), Column("", "bar", keep=6)), tuple(rows))
    return Heading("the places that bring most back"), table


def _layer(name: str) -> str:
    return name if name == "embedding" else f"layer {name}"


def _rounded(value: float) -> str:
    """In a cell, where nothing is best seen as nothing."""
    return f"{value:.0%}" if round(value, 2) else ""


def _shade(value: float) -> float:
    """A patch can do more than the text, or the opposite."""
    return min(1.0, max(0.0, value))


def _token(found: Patching, position: int) -> str:
    """The token of the second text; where the first one has another, that too."""
    first, second = (visible(tokens[position]) for tokens in found.tokens)
    return second if first == second else f"{second}←{first}"
