"""Patching as a picture: layers down, positions or heads across, and the places that bring most back."""

from __future__ import annotations

from functools import partial
from itertools import groupby

from glassformer.observe.patching import Patching
from glassformer.show.page import Column, Grid, Heading, Page, Part, Row, Table, Words
from glassformer.show.words import brief, few, tame, visible

LINE = 74  # characters of a text, unless all is wanted
BEST = 10  # places that are listed
HALF = 0.5  # of the answer, that a place must bring back to be its carrier
LITTLE = "The two texts move this little, so that shares of it say little: name tokens that they tell apart more."
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


def page(found: Patching, everything: bool = False) -> Page:
    first, second = (visible(answer.text) for answer in found.answers)
    down = tuple(_layer(name) for name in found.layers)
    across = found.columns if found.heads else tuple(_token(found, position) for position in found.positions)
    numbers = tuple(tuple(map(_rounded, row)) for row in found.values)
    tell = tame if everything else partial(brief, most=LINE)
    own = found.best == tuple(answer.id for answer in found.answers)
    said = f"which places make it {first}, and not {second}" if own else f"which places move {first} against {second}"
    shared = f", which {found.sharing} heads share" if found.sharing > 1 else ""
    what = WHAT[found.part] + shared + (f", at {_spots(found.positions)}" if found.heads else "")
    return Page(
        f"{found.model}: {said}",
        (
            Heading(f"{found.model}: {said}"),
            Words("\n".join(f"{way}: {tell(text)}" for way, text in zip(("from", "into"), found.texts, strict=True))),
            *([Words(f"under a change of {few(found.changes)}")] if found.changes else []),
            Words(f"each cell: {what}, taken from the first text into the second", "dim"),
            Words(f"0%, blank: {_lead(found, 1)}; 100%, full: {_lead(found, 0)}", "dim"),
            *([Words(LITTLE)] if abs(found.differences[0] - found.differences[1]) < 1 else []),
            Grid(down, across, found.values, numbers, spare=True, whole=everything),
            *(_ways(found) if found.part == "residual" else _best(found, everything)),
        ),
    )


def _lead(found: Patching, text: int) -> str:
    first, second = (visible(answer.text) for answer in found.answers)
    lead = found.differences[text]
    way = "ahead of" if lead >= 0 else "behind"
    return f"{first} is {abs(lead):.2f} {way} {second}, as after the {('first', 'second')[text]}"


def _spots(positions: tuple[int, ...]) -> str:
    """Positions in words, those next to each other as a span."""
    if len(positions) > 1 and positions == tuple(range(positions[0], positions[-1] + 1)):
        return f"positions {positions[0]} to {positions[-1]}"
    return f"position{'' if len(positions) == 1 else 's'} {', '.join(map(str, positions))}"


def _ways(found: Patching) -> tuple[Part, ...]:
    """Where the answer is carried, from layer to layer: the one place that brings at least half of it back."""
    carriers = [row.index(max(row)) if max(row) >= HALF else None for row in found.values]
    rows = []
    for column, group in groupby(range(len(carriers)), key=carriers.__getitem__):
        layers = list(group)
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


def _token(found: Patching, position: int) -> str:
    """The token of the second text; where the first one has another, that too."""
    first, second = (visible(tokens[position]) for tokens in found.tokens)
    return second if first == second else f"{second}←{first}"
