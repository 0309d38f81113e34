"""Activation patching over many pairs of texts: what each place brings on average, and how much that differs.

Shapes: means, standard errors and counts (layers, columns); values (pairs, layers, columns). A column is a head, or a
position; None stands where a pair has no such place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.ground.arguments import checked
from glassformer.ground.errors import InputError
from glassformer.page.document import Column, Grid, Heading, Page, Paragraph, Table, TableRow
from glassformer.page.format import abbreviate_list, reveal_line, tail, visible
from glassformer.views.patching import (
    MAX_PLACES,
    WHAT,
    AnswerToken,
    PatchedPart,
    bar_length,
    head_columns,
    layer_label,
    positions_text,
)
from glassformer.views.view import ArrayView, flat_data

MetricName: TypeAlias = Literal["recovered", "logit_difference", "probability", "kl"]
MAX_PAIRS = 5  # that are listed, unless everything is shown
MEANINGS = {
    "recovered": "how much of the answer's lead comes back: 0, as after the second text; 1, as after the first",
    "logit_difference": "the answer's logit minus the other token's",
    "probability": "the answer's probability",
    "kl": "the KL divergence, in bits, of what follows from what follows the first text: 0, the same",
}


@dataclass(frozen=True)
class PatchedPair:
    """One pair of texts."""

    texts: tuple[str, str]  # where the patches come from, and where they are put
    answers: tuple[AnswerToken, AnswerToken]  # the two tokens to tell apart
    unpatched: tuple[float, float]  # the metric after each text
    unaligned: tuple[tuple[int, ...], tuple[int, ...]]  # the positions of each that have no counterpart in the other


@dataclass(frozen=True)
class AveragedPlace:
    """One place, over all pairs that have it."""

    layer: str
    column: str
    mean: float
    standard_error: float | None  # None: of one pair
    pairs: int


@dataclass(frozen=True)
class PairPatching(ArrayView):
    """What each place brings on average when it is patched from the first text of a pair into the second."""

    SCHEMA = "glassformer.patching-pairs/2"

    model: str
    part: PatchedPart
    metric: str  # a name, or that of a function
    pairs: tuple[PatchedPair, ...]
    layers: tuple[str, ...]  # 'embedding', then blocks by number
    positions: tuple[int, ...]  # of the columns; negative ones count from the end, since lengths differ; none: heads
    heads: int  # how many columns are heads; 0: columns are positions
    sharing: int  # heads per column: several where they share a key and value
    means: tuple[tuple[float | None, ...], ...]
    standard_errors: tuple[tuple[float | None, ...], ...]  # None: fewer than two pairs
    counts: tuple[tuple[int, ...], ...]  # pairs that have the place
    values: tuple[tuple[tuple[float | None, ...], ...], ...]
    changes: tuple[str, ...]  # sites that were changed throughout

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    @property
    def columns(self) -> tuple[str, ...]:
        return head_columns(self.heads, self.sharing) if self.heads else tuple(map(str, self.positions))

    @property
    def cells(self) -> list[AveragedPlace]:
        """All places, those with the largest means first, in either direction."""
        places = [
            AveragedPlace(layer, column, mean, error, count)
            for layer, *numbers in zip(self.layers, self.means, self.standard_errors, self.counts, strict=True)
            for column, mean, error, count in zip(self.columns, *numbers, strict=True)
            if mean is not None
        ]
        return sorted(places, key=lambda cell: -abs(cell.mean))

    def at(self, layer: int | str, column: int) -> list[float | None]:
        """What one place brings in each pair; `column`: a head, or a position as in `positions`."""
        columns = range(self.heads) if self.heads else self.positions
        if str(layer) not in self.layers or column not in columns:
            raise InputError(f"there is no cell of layer {layer!r} and {'head' if self.heads else 'position'} {column!r}.")
        row, at = self.layers.index(str(layer)), columns.index(column)
        return [pair[row][at] for pair in self.values]

    def numbers(self) -> npt.NDArray[np.float64]:
        """The means; NaN where no pair has the place."""
        return np.array(self.means, np.float64)

    @checked
    def records(self) -> list[dict[str, Any]]:
        """A row for each place, those with the largest means first."""
        return [flat_data(cell) for cell in self.cells]

    def __repr__(self) -> str:
        return f"PairPatching({len(self.pairs)} pairs: {len(self.layers)} × {len(self.columns)} {self.part}, {self.metric})"


def draw(view: PairPatching, everything: bool = False) -> Page:
    most = max((abs(cell.mean) for cell in view.cells), default=0.0)
    scale = 1.0 if view.metric == "recovered" or not most else most  # the strongest cell is full
    shades = tuple(tuple(None if mean is None else mean / scale for mean in row) for row in view.means)
    texts = tuple(tuple("" if mean is None else _number(view, mean) for mean in row) for row in view.means)
    notes = tuple(
        tuple(_note(view, *numbers) for numbers in zip(*row, strict=True))
        for row in zip(view.means, view.standard_errors, view.counts, strict=True)
    )
    rows = tuple(layer_label(name) for name in view.layers)
    count = len(view.pairs)
    title = f"{view.model}: {WHAT[view.part]}, patched in {count} pair{'' if count == 1 else 's'} of texts"
    columns = "heads" if view.heads else "positions of the second text"
    if view.positions and view.positions[0] < 0:
        columns += ", counted from its end"
    shared = f" ({view.sharing} share a key and value)" if view.sharing > 1 else ""
    return Page(
        title,
        (
            Heading(title),
            *([Paragraph(f"under a change of {abbreviate_list(view.changes)}")] if view.changes else []),
            Paragraph(f"each cell: the mean of {MEANINGS.get(view.metric, view.metric)}", "dim"),
            Paragraph(f"columns: {columns}{shared}", "dim"),
            Grid(rows, view.columns, shades, texts, notes, texts_optional=True, all_columns=everything),
            Heading("the places that bring most"),
            _places(view, scale, everything),
            Heading("the pairs"),
            _pairs(view, everything),
        ),
    )


def _places(view: PairPatching, scale: float, everything: bool) -> Table:
    rows = [
        TableRow((
            cell.layer,
            cell.column,
            _number(view, cell.mean, signed=True),
            "" if cell.standard_error is None else f"± {_number(view, cell.standard_error)}",
            str(cell.pairs),
            bar_length(cell.mean / scale),
        ))
        for cell in view.cells[: None if everything else MAX_PLACES]
    ]  # fmt: skip
    columns = (
        Column("layer", "number"), Column("head" if view.heads else "position", "number"), Column("mean", "number"),
        Column("standard error", "number", priority=8), Column("pairs", "number", priority=6),
        Column("", "signed bar", priority=7),
    )  # fmt: skip
    return Table(columns, tuple(rows))


def _pairs(view: PairPatching, everything: bool) -> Table:
    limit = None if everything else MAX_PAIRS
    rows = [
        TableRow((
            *((reveal_line(text) if everything else tail(text, limit=40)) for text in pair.texts),
            " · ".join(visible(answer.text) for answer in pair.answers),
            " → ".join(_number(view, value) for value in reversed(pair.unpatched)),
            "; ".join(
                f"{name}: {positions_text(positions)}"
                for name, positions in zip(("from", "into"), pair.unaligned, strict=True)
                if positions
            ),
        ))
        for pair in view.pairs[:limit]
    ]  # fmt: skip
    if len(view.pairs) > len(rows):
        rows.append(TableRow((f"{len(view.pairs) - len(rows)} more (--all)", "", "", "", ""), "dim"))
    columns = (
        Column("from", min_width=12, keep_end=True), Column("into", min_width=12, keep_end=True),
        Column("answers", "token", min_width=8), Column("second → first", "number", priority=7),
        Column("without counterpart", priority=6),
    )  # fmt: skip
    return Table(columns, tuple(rows))


def _number(view: PairPatching, value: float, signed: bool = False) -> str:
    sign = "+" if signed else ""
    return f"{round(value, 2) + 0.0:{sign}.0%}" if view.metric == "recovered" else f"{value:{sign}.3g}"


def _note(view: PairPatching, mean: float | None, error: float | None, count: int) -> str:
    """A cell's tooltip: its mean, its spread, and of how many pairs."""
    if mean is None:
        return "no pair has this place"
    spread = "" if error is None else f" ± {_number(view, error)} (standard error)"
    return f"{_number(view, mean)}{spread}, {count} pair{'' if count == 1 else 's'}"
