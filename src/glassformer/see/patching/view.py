"""Activation patching: which places inside the model make one text lead to another answer than a second one.

One pair of texts or the mean over many, places in a grid or paths between them, patched or estimated by gradients: what is
shown is how far each place moves an answer, mostly as how much of the first text's answer it recovers: at 0 the answer is
still the second text's, at 1 it is the first text's.

Shapes: values (layers, columns), of many pairs (pairs, layers, columns): a column for each position, or for each head.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle, groupby, islice
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.ground.arguments import checked
from glassformer.ground.errors import InputError
from glassformer.page.document import Cell, Column, Grid, Heading, Page, PagePart, Paragraph, Table, TableRow
from glassformer.page.format import abbreviate_list, pluralize, reveal_line, tail, visible
from glassformer.see.view import ArrayView, View, flat_data

PatchedPart: TypeAlias = Literal[
    "residual", "attention", "recurrent", "mlp", "heads", "recurrent_heads", "query", "key", "value", "pattern"
]
MetricName: TypeAlias = Literal["recovered", "logit_difference", "probability", "kl"]
GridValues: TypeAlias = tuple[tuple[float | None, ...], ...]  # None: there is no such place
MAX_CHARACTERS = 74  # of a text, unless everything is shown
MAX_PLACES = 10
MAX_PAIRS = 5
CARRIER = 0.5  # the fraction of the answer that a place must recover to be its carrier
SMALL_DIFFERENCE = "The two texts differ little in this, so percentages say little: name tokens whose scores differ more."
ESTIMATE = (
    "estimated from one backward pass, to first order: (the first text's value − the second's) · the second's gradient"
)
WHAT = {
    "residual": "the stream after a block",
    "attention": "what a block's attention adds",
    "recurrent": "what a recurrent layer beside a block's attention adds",
    "mlp": "what a block's MLP adds",
    "heads": "one head's output",
    "recurrent_heads": "one head's output in a recurrent layer beside attention",
    "query": "one head's query",
    "key": "one head's key",
    "value": "one head's value",
    "pattern": "where one head looks",
}
MEANINGS = {
    "recovered": "how much of the answer's lead comes back: 0, as after the second text; 1, as after the first",
    "logit_difference": "the answer's logit minus the other token's",
    "probability": "the answer's probability",
    "kl": "the KL divergence, in bits, of what follows from what follows the first text: 0, the same",
}
FROZEN = {"heads": "all other heads", "mlps": "the MLPs"}


@dataclass(frozen=True)
class AnswerToken:
    """One of the two tokens whose scores are compared."""

    id: int
    text: str


class PlaceGrid:
    """A grid of places: a row for each layer, a column for each position or head."""

    part: PatchedPart
    layers: tuple[str, ...]  # 'embedding', then blocks by index
    positions: tuple[int, ...]  # of the columns, unless those are heads
    heads: int  # how many columns are heads; 0: columns are positions
    sharing: int  # heads per column: several where they share a key and value

    @property
    def columns(self) -> tuple[str, ...]:
        """What the columns stand for: positions, or the numbers of the heads, of all that share a key and value."""
        if not self.heads:
            return tuple(map(str, self.positions))
        firsts = range(0, self.heads * self.sharing, self.sharing)
        return tuple(str(first) if self.sharing == 1 else f"{first}–{first + self.sharing - 1}" for first in firsts)

    def _index(self, layer: int | str, column: int) -> tuple[int, int]:
        """The row and the column of a cell, by its layer and its head or position."""
        columns = range(self.heads) if self.heads else self.positions
        if str(layer) not in self.layers or column not in columns:
            raise InputError(f"there is no cell of layer {layer!r} and {'head' if self.heads else 'position'} {column!r}.")
        return self.layers.index(str(layer)), columns.index(column)

    def _size(self) -> str:
        return f"{len(self.layers)} × {len(self.columns)} {self.part}"


# One pair -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PatchedPlace:
    """One place, and how much of the first text's answer it recovers."""

    layer: str
    place: str  # the token at it, or the head
    position: int | None  # None: a head, which is patched at all positions
    value: float


@dataclass(frozen=True)
class Patching(PlaceGrid, ArrayView):
    """How much of the first text's answer each place recovers when it is patched into the second text."""

    SCHEMA = "glassformer.patching/1"

    model: str
    part: PatchedPart
    texts: tuple[str, str]  # where the patches come from, and where they are put
    tokens: tuple[tuple[str, ...], tuple[str, ...]]  # of both, in the stack that is patched
    answers: tuple[AnswerToken, AnswerToken]  # what each text leads to
    differences: tuple[float, float]  # after each text: the first answer's score minus the second's
    layers: tuple[str, ...]  # 'embedding', then blocks by index
    positions: tuple[int, ...]  # that were patched
    heads: int  # how many columns are heads; 0: columns are positions
    sharing: int  # heads per column: several where they share a key and value
    values: tuple[tuple[float, ...], ...]
    best: tuple[int, int]  # the ids that each text leads to: those of the answers, unless others were named
    changes: tuple[str, ...]  # sites that were changed throughout

    def page(self, everything: bool = False) -> Page:
        first, second = (visible(answer.text) for answer in self.answers)
        leads = self.best == tuple(answer.id for answer in self.answers)
        title = f"which places make it {first}, and not {second}" if leads else f"which places move {first} against {second}"
        shared = f", which {self.sharing} heads share" if self.sharing > 1 else ""
        what = WHAT[self.part] + shared + (f", at {_spans(self.positions)}" if self.heads else "")
        columns = self.columns if self.heads else tuple(_token(self, position) for position in self.positions)
        return Page.titled(
            f"{self.model}: {title}",
            *_opening(
                self.texts, self.changes, everything, f"each cell: {what}, taken from the first text into the second",
                f"0%, blank: {_lead(self, 1)}; 100%, full: {_lead(self, 0)}",
            ),
            *([Paragraph(SMALL_DIFFERENCE)] if abs(self.differences[0] - self.differences[1]) < 1 else []),
            _share_grid(self.layers, columns, self.values, everything),
            *(_carriers(self) if self.part == "residual" else _best_places(self, everything)),
        )  # fmt: skip

    @property
    def columns(self) -> tuple[str, ...]:
        """What the columns stand for: the second text's tokens, or the heads' numbers."""
        return super().columns if self.heads else tuple(self.tokens[1][position] for position in self.positions)

    @property
    def places(self) -> list[PatchedPlace]:
        """All places, layer by layer."""
        positions: Sequence[int | None] = [None] * self.heads if self.heads else self.positions
        return [
            PatchedPlace(layer, place, position, value)
            for layer, row in zip(self.layers, self.values, strict=True)
            for place, position, value in zip(self.columns, positions, row, strict=True)
        ]

    @property
    def cells(self) -> list[PatchedPlace]:
        """All places, those that move the answer most first, in either direction."""
        return sorted(self.places, key=lambda cell: -abs(cell.value))

    def at(self, layer: int | str, column: int) -> float:
        """One cell: after or in this layer (or 'embedding'), at this position of the text, or in this head."""
        row, index = self._index(layer, column)
        return self.values[row][index]

    def numbers(self) -> npt.NDArray[np.float64]:
        return np.array(self.values)

    @checked
    def records(self) -> list[dict[str, Any]]:
        """A row for each place, in the order of the layers."""
        index, text = ("head", "heads") if self.heads else ("position", "token")
        indices = cycle(range(self.heads) or self.positions)
        return [
            {"layer": place.layer, index: column, text: place.place, "value": place.value}
            for place, column in zip(self.places, indices, strict=False)
        ]

    def __repr__(self) -> str:
        first, second = self.answers
        return f"Patching({first.text!r} instead of {second.text!r}: {self._size()})"


def _lead(view: Patching, text: int) -> str:
    first, second = (visible(answer.text) for answer in view.answers)
    lead = view.differences[text]
    side = "ahead of" if lead >= 0 else "behind"
    return f"{first} is {abs(lead):.2f} {side} {second}, as after the {('first', 'second')[text]}"


def _carriers(view: Patching) -> tuple[PagePart, ...]:
    """Where the answer is carried, from layer to layer: the one place that recovers at least half of it."""
    carriers = [row.index(max(row)) if max(row) >= CARRIER else None for row in view.values]
    rows = []
    for column, group in groupby(range(len(carriers)), key=carriers.__getitem__):
        layers = list(group)
        names = [_layer_label(view.layers[layer]) for layer in (layers[0], layers[-1])]
        span = names[0] if len(layers) == 1 else " to ".join(names)
        if column is None:
            rows.append(TableRow((span, "", "no single place", "", 0.0), "dim"))
            continue
        position, least = view.positions[column], min(view.values[layer][column] for layer in layers)
        rows.append(TableRow((span, str(position), _token(view, position), f"{least:.1%}", _bar(least))))
    columns = (
        Column("layers"), *_place_columns(heads=False)[1:], Column("recovered, at least", "number"),
        Column("", "bar", priority=6),
    )  # fmt: skip
    return Heading("where it is carried"), Table(columns, tuple(rows))


def _best_places(view: Patching, everything: bool) -> tuple[PagePart, ...]:
    rows = []
    for cell in view.cells:
        where = (cell.place,) if cell.position is None else (str(cell.position), _token(view, cell.position))
        rows.append((cell.layer, *where, f"{cell.value:+.1%}", _bar(cell.value)))
    columns = (*_place_columns(bool(view.heads)), Column("recovered", "number"))
    return Heading("the places that move it most"), _strongest(columns, rows, everything)


def _token(view: Patching, position: int) -> str:
    """The second text's token, and the first's where that is another."""
    first, second = (visible(tokens[position]) for tokens in view.tokens)
    return second if first == second else f"{second}←{first}"


# An estimate of one pair ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EstimateMiss:
    """A place, what was estimated for it, and what patching it gave."""

    layer: str
    place: str  # the token at it, or the head
    position: int | None  # None: a head
    estimate: float
    patched: float


@dataclass(frozen=True)
class EstimateCheck:
    """How good an estimate is: beside true patching."""

    patching: Patching
    correlation: float | None  # of all places' estimates with what patching gave; None: one of them is the same everywhere
    mean_error: float  # the mean distance between them
    misses: tuple[EstimateMiss, ...]  # all places, the largest errors first


@dataclass(frozen=True)
class AttributionPatching(ArrayView):
    """What patching each place would recover, estimated by gradients."""

    SCHEMA = "glassformer.attribution-patching/1"

    estimate: Patching
    check: EstimateCheck | None  # on request

    def page(self, everything: bool = False) -> Page:
        page = self.estimate.page(everything)
        title = f"{page.title}: an estimate"
        return Page.titled(title, Paragraph(ESTIMATE, "dim"), *page.body, *_check(self.check, everything))

    @property
    def cells(self) -> list[PatchedPlace]:
        """All places with their estimates, the largest first, in either direction."""
        return self.estimate.cells

    def at(self, layer: int | str, column: int) -> float:
        """One estimate: after or in this layer (or 'embedding'), at this position of the text, or in this head."""
        return self.estimate.at(layer, column)

    def numbers(self) -> npt.NDArray[np.float64]:
        return self.estimate.numbers()

    @checked
    def records(self) -> list[dict[str, Any]]:
        return self.estimate.records()

    def __repr__(self) -> str:
        found = "" if self.check is None or self.check.correlation is None else f", correlation {self.check.correlation:.3f}"
        return f"AttributionPatching({self.estimate._size()}{found})"


def _check(check: EstimateCheck | None, everything: bool) -> tuple[PagePart, ...]:
    if check is None:
        return (Paragraph("How good the estimate is, patching itself tells: --check, or check=True.", "dim"),)
    correlation = "undefined" if check.correlation is None else f"{check.correlation:.3f}"
    names = ("estimated", "patched", "error")
    columns = (*_place_columns(check.misses[0].position is None), *(Column(name, "number") for name in names))
    rows = []
    for miss in check.misses if everything else check.misses[:MAX_PLACES]:
        shares = (miss.estimate, miss.patched, miss.estimate - miss.patched)
        where = (miss.place,) if miss.position is None else (str(miss.position), visible(miss.place))
        rows.append(TableRow((miss.layer, *where, *(f"{share:+.1%}" for share in shares))))
    return (
        Heading("beside true patching"),
        Paragraph(f"correlation {correlation} · mean error {check.mean_error:.1%} of the answer's lead"),
        Paragraph("the largest misses", "dim"),
        Table(columns, tuple(rows)),
    )


# Many pairs -----------------------------------------------------------------------------------------------------


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
class PairPatching(PlaceGrid, ArrayView):
    """What each place brings on average when it is patched from the first text of a pair into the second."""

    SCHEMA = "glassformer.patching-pairs/2"

    model: str
    part: PatchedPart
    metric: str  # a name, or that of a function
    pairs: tuple[PatchedPair, ...]
    layers: tuple[str, ...]  # 'embedding', then blocks by index
    positions: tuple[int, ...]  # of the columns; negative ones count from the end, since lengths differ; none: heads
    heads: int  # how many columns are heads; 0: columns are positions
    sharing: int  # heads per column: several where they share a key and value
    means: GridValues
    standard_errors: GridValues  # None: fewer than two pairs
    counts: tuple[tuple[int, ...], ...]  # pairs that have the place
    values: tuple[GridValues, ...]
    changes: tuple[str, ...]  # sites that were changed throughout

    def page(self, everything: bool = False) -> Page:
        most = max((abs(cell.mean) for cell in self.cells), default=0.0)
        scale = 1.0 if self.metric == "recovered" or not most else most  # the strongest cell is full
        shades = [[None if mean is None else mean / scale for mean in row] for row in self.means]
        texts = [["" if mean is None else _number(self, mean) for mean in row] for row in self.means]
        notes = [
            [_note(self, *numbers) for numbers in zip(*row, strict=True)]
            for row in zip(self.means, self.standard_errors, self.counts, strict=True)
        ]
        columns = "heads" if self.heads else "positions of the second text"
        if self.positions and self.positions[0] < 0:
            columns += ", counted from its end"
        shared = f" ({self.sharing} share a key and value)" if self.sharing > 1 else ""
        meaning = f"each cell: the mean of {MEANINGS.get(self.metric, self.metric)}"
        return Page.titled(
            f"{self.model}: {WHAT[self.part]}, patched in {pluralize(len(self.pairs), 'pair')} of texts",
            *_opening((), self.changes, everything, meaning, f"columns: {columns}{shared}"),
            _grid(self.layers, self.columns, shades, texts, everything, notes),
            Heading("the places that bring most"),
            _averages(self, scale, everything),
            Heading("the pairs"),
            _pairs(self, everything),
        )

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
        row, index = self._index(layer, column)
        return [pair[row][index] for pair in self.values]

    def numbers(self) -> npt.NDArray[np.float64]:
        """The means; NaN where no pair has the place."""
        return np.array(self.means, np.float64)

    @checked
    def records(self) -> list[dict[str, Any]]:
        """A row for each place, those with the largest means first."""
        return [flat_data(cell) for cell in self.cells]

    def __repr__(self) -> str:
        return f"PairPatching({len(self.pairs)} pairs: {self._size()}, {self.metric})"


def _averages(view: PairPatching, scale: float, everything: bool) -> Table:
    rows = (
        (
            cell.layer, cell.column, _number(view, cell.mean, signed=True),
            "" if cell.standard_error is None else f"± {_number(view, cell.standard_error)}", str(cell.pairs),
            _bar(cell.mean / scale),
        )
        for cell in view.cells
    )  # fmt: skip
    columns = (
        *_place_columns(bool(view.heads))[:2], Column("mean", "number"), Column("standard error", "number", priority=8),
        Column("pairs", "number", priority=6),
    )  # fmt: skip
    return _strongest(columns, rows, everything)


def _pairs(view: PairPatching, everything: bool) -> Table:
    rows = [
        TableRow((
            *_shortened(pair.texts, everything, 40),
            " · ".join(visible(answer.text) for answer in pair.answers),
            " → ".join(_number(view, value) for value in reversed(pair.unpatched)),
            "; ".join(
                f"{name}: {_spans(positions)}"
                for name, positions in zip(("from", "into"), pair.unaligned, strict=True)
                if positions
            ),
        ))
        for pair in view.pairs[: None if everything else MAX_PAIRS]
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
    return f"{_number(view, mean)}{spread}, {pluralize(count, 'pair')}"


# Paths ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PatchedPath:
    """One sender, and how much of the first text's answer it restores by way of the receivers."""

    sender: str  # a site, with its head's index
    block: int | None  # None: the embedding
    head: int | None  # None: not a head
    value: float  # 0: none of the answer's lead; 1: all of it


@dataclass(frozen=True)
class PathPatching(View):
    """How much of the first text's answer each sender restores in the second, by the paths to the receivers alone."""

    SCHEMA = "glassformer.path-patching/1"

    model: str
    texts: tuple[str, str]  # where the senders' values come from, and where they are put
    answers: tuple[AnswerToken, AnswerToken]  # what each text leads to
    differences: tuple[float, float]  # after each text: the first answer's score minus the second's
    receivers: tuple[str, ...]  # sites, with their heads' numbers
    frozen: tuple[str, ...]  # what keeps its values on the way: 'heads', perhaps 'mlps'
    positions: tuple[int, ...]  # at which senders are patched
    paths: tuple[PatchedPath, ...]
    changes: tuple[str, ...]  # sites that were changed throughout

    def page(self, everything: bool = False) -> Page:
        first, second = (visible(answer.text) for answer in self.answers)
        about = (
            f"each number: how much of the lead of {first} over {second} a sender restores by this path; on the way "
            f"{' and '.join(FROZEN[name] for name in self.frozen)} keep what they have in the second text"
        )
        rows = ((path.sender, f"{path.value:+.1%}", _bar(path.value)) for path in self.strongest)
        return Page.titled(
            f"{self.model}: what goes directly to {abbreviate_list(self.receivers)}",
            *_opening(self.texts, self.changes, everything, about),
            *_sender_grid(self, everything),
            Heading("the senders that bring most"),
            _strongest((Column("sender", min_width=12), Column("restored", "number")), rows, everything),
        )

    @property
    def strongest(self) -> list[PatchedPath]:
        """All paths, those that move the answer most first, in either direction."""
        return sorted(self.paths, key=lambda path: -abs(path.value))

    def __repr__(self) -> str:
        return f"PathPatching({len(self.paths)} senders to {', '.join(self.receivers)})"


def _sender_grid(view: PathPatching, everything: bool) -> tuple[PagePart, ...]:
    """A heat map, where the senders are heads of several blocks."""
    values = {(path.block, path.head): path.value for path in view.paths if path.head is not None}
    blocks = sorted({block for block, _ in values if block is not None})
    heads = sorted({head for _, head in values})
    if len(blocks) < 2:
        return ()
    cells = [[values.get((block, head)) for head in heads] for block in blocks]
    return (_share_grid(list(map(str, blocks)), list(map(str, heads)), cells, everything),)


# What every page has --------------------------------------------------------------------------------------------


def _opening(texts: Sequence[str], changes: Sequence[str], everything: bool, *about: str) -> tuple[PagePart, ...]:
    """The two texts, the changes that the model is under, and what is shown."""
    shown = zip(("from", "into"), _shortened(texts, everything, MAX_CHARACTERS), strict=False)
    return (
        *([Paragraph("\n".join(f"{label}: {text}" for label, text in shown))] if texts else []),
        *([Paragraph(f"under a change of {abbreviate_list(changes)}")] if changes else []),
        *(Paragraph(line, "dim") for line in about),
    )


def _strongest(columns: Sequence[Column], rows: Iterable[tuple[Cell, ...]], everything: bool) -> Table:
    """The places that move the answer most, which come first; each row ends in the length of its bar."""
    shown = islice(rows, None if everything else MAX_PLACES)
    return Table((*columns, Column("", "signed bar", priority=7)), tuple(map(TableRow, shown)))


def _share_grid(
    layers: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float | None]], everything: bool
) -> Grid:
    """Shares of the answer's lead as percentages; empty for 0."""
    texts = [["" if value is None or not round(value, 2) else f"{value:.0%}" for value in row] for row in values]
    return _grid(layers, columns, values, texts, everything)


def _grid(
    layers: Sequence[str], columns: Sequence[str], shades: Iterable[Iterable[float | None]],
    texts: Iterable[Iterable[str]], everything: bool, notes: Iterable[Iterable[str]] = (),
) -> Grid:  # fmt: skip
    return Grid(
        tuple(map(_layer_label, layers)), tuple(columns), tuple(map(tuple, shades)), tuple(map(tuple, texts)),
        tuple(map(tuple, notes)), texts_optional=True, all_columns=everything,
    )  # fmt: skip


def _place_columns(heads: bool) -> tuple[Column, ...]:
    where = (Column("head", "number"),) if heads else (Column("position", "number"), Column("token", "token", min_width=8))
    return Column("layer", "number"), *where


def _shortened(texts: Iterable[str], everything: bool, limit: int) -> list[str]:
    return [reveal_line(text) if everything else tail(text, limit=limit) for text in texts]


def _spans(positions: tuple[int, ...]) -> str:
    """Positions as text, consecutive ones as a span."""
    if len(positions) > 1 and positions == tuple(range(positions[0], positions[-1] + 1)):
        return f"positions {positions[0]} to {positions[-1]}"
    return f"position{'' if len(positions) == 1 else 's'} {', '.join(map(str, positions))}"


def _layer_label(name: str) -> str:
    return name if name == "embedding" else f"layer {name}"


def _bar(value: float) -> float:
    """The length of a bar, within -1 and 1: a patch can recover more than all, or the opposite."""
    return min(1.0, max(-1.0, value))
