"""Inside: one level of a model with a text's real numbers, from the whole model down to one multiplication.

A level has a path, which begins as the name of a site does: '' is the model, `blocks.3` a block, `blocks.3.attention` a part
of it, `blocks.3.attention.update` an operation, `blocks.3.attention.update.17` one of its numbers;
`blocks.3.attention.heads.4` is a head, and `blocks.3.attention.heads.4.2` its score for the token at position 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from glassformer.ground.arguments import checked
from glassformer.page.document import Column, Heading, Page, PagePart, Paragraph, Preformatted, Table, TableRow, elide_middle
from glassformer.page.format import visible
from glassformer.see.attention import SINK
from glassformer.see.view import View, flat_data

LevelKind: TypeAlias = Literal["model", "block", "group", "operation", "number", "head", "score"]
MAX_ROWS = 24  # of a long table, unless everything is shown


@dataclass(frozen=True)
class Crumb:
    """A level on the way to this one."""

    path: str
    label: str


@dataclass(frozen=True)
class Strip:
    """A vector as cells that can be drawn side by side."""

    size: int  # how many numbers it has
    group: int  # how many of them share a cell, which shows the one that is furthest from zero
    cells: tuple[float, ...]
    root_mean_square: float


@dataclass(frozen=True)
class LevelPart:
    """A part of a level: what it computes, from which parts, and what came out of it at the position."""

    path: str | None  # of the level inside it; None: it comes from outside this level
    name: str
    kind: str  # block, group, input, or the kind of its operation in the blueprint
    formula: str
    inputs: tuple[int, ...]  # the numbers of the parts that it reads
    shape: tuple[int, ...]  # of its result, for the whole text
    site: str | None  # where its result can be read and changed
    parameters: int
    strip: Strip | None


@dataclass(frozen=True)
class HeadRow:
    """What one head looks at from the position."""

    path: str
    head: int
    key_head: int  # the key and value head that it uses; several query heads may share one
    weights: Strip  # over the keys
    best: int  # the position of the token that it looks at most
    token: str
    weight: float
    sink: float | None = None  # what its sink takes; None: it has none


@dataclass(frozen=True)
class AttendedKey:
    """A token that a head may look at."""

    path: str
    position: int
    token: str
    visible: bool  # whether the mask lets the query see it
    score: float  # before softmax, scaled and with its bias
    weight: float


@dataclass(frozen=True)
class HeadSink:
    """A learned score beside those of the keys, which takes its part of the attention and stands for no token."""

    score: float
    weight: float


@dataclass(frozen=True)
class NamedStrip:
    name: str
    site: str | None
    strip: Strip


@dataclass(frozen=True)
class NumberLink:
    """A number of a vector that is worth opening."""

    path: str
    label: str
    value: float


@dataclass(frozen=True)
class ProductTerm:
    index: int
    left: float
    right: float
    product: float


@dataclass(frozen=True)
class DotProduct:
    """A sum of products: all of its terms, or the largest ones and the sum of the others."""

    name: str
    left: str
    right: str
    terms: tuple[ProductTerm, ...]
    others: int  # how many terms are not listed
    others_sum: float
    total: float


@dataclass(frozen=True)
class ArithmeticStep:
    """One line of a calculation."""

    name: str
    expression: str
    value: float


@dataclass(frozen=True)
class Inside(View):
    """One level of a model, at one position of a text."""

    SCHEMA = "glassformer.inside/1"

    model: str
    path: str
    kind: LevelKind
    title: str
    crumbs: tuple[Crumb, ...]  # from the model to this level
    previous: str | None  # the path of the level beside it
    next: str | None
    position: int
    side: Literal["text", "source"]  # whose tokens the position counts
    tokens: tuple[str, ...]  # of that side
    formula: str
    notes: tuple[str, ...]
    parts: tuple[LevelPart, ...]
    heads: tuple[HeadRow, ...]
    keys: tuple[AttendedKey, ...]
    strips: tuple[NamedStrip, ...]
    numbers: tuple[NumberLink, ...]
    products: tuple[DotProduct, ...]
    steps: tuple[ArithmeticStep, ...]
    result: float | None  # as the engine computed it; None where the engine does not keep it
    python: tuple[str, ...]  # lines that give these numbers; `reading` is the text, `model` the model
    sink: HeadSink | None = None  # of a head that has one, beside its keys

    @checked
    def records(self) -> list[dict[str, Any]]:
        """What this level has inside: parts, heads, keys, numbers, or the steps of its arithmetic."""
        inner = self.parts or self.heads or self.keys or self.numbers or self.products or self.steps or self.strips
        return [flat_data(each) for each in inner]

    def page(self, everything: bool = False) -> Page:
        trail = " › ".join(crumb.label for crumb in self.crumbs)
        parts: list[PagePart] = [
            Heading(f"{trail}, at {visible(self.tokens[self.position])} (position {self.position})"),
            *([Paragraph(self.formula)] if self.formula else []),
            *(Paragraph(note, "dim") for note in self.notes),
        ]
        for rows, table in ((self.parts, _parts), (self.heads, _heads), (self.keys, _keys), (self.numbers, _numbers)):
            parts += [table(self, everything)] if rows else []
        for product in self.products:
            parts += [Paragraph(f"\n{product.name}"), _product(product, everything)]
        parts += [Paragraph(""), _steps(self)] if self.steps else []
        return Page(f"{self.model}: {trail}", (*parts, Paragraph(""), Preformatted("\n".join(self.python))))


def _parts(view: Inside, everything: bool) -> Table:
    columns = (
        Column("part", min_width=12), Column("computes", priority=4, min_width=16), Column("shape"), Column("rms", "number"),
        Column("path", "code", priority=3),
    )  # fmt: skip
    rows = [
        TableRow((
            part.name, part.formula, "×".join(map(str, part.shape)),
            "" if part.strip is None else f"{part.strip.root_mean_square:.3f}", part.path or "",
        ))
        for part in view.parts
    ]  # fmt: skip
    return Table(columns, tuple(rows) if everything else elide_middle(rows, MAX_ROWS))


def _heads(view: Inside, everything: bool) -> Table:
    sinks = any(row.sink is not None for row in view.heads)
    columns = (
        Column("head", "number"), Column("looks most at", "token"), Column("weight", "number"),
        *([Column("sink", "number")] if sinks else []), Column("", "bar"),
    )  # fmt: skip
    rows = [
        TableRow((
            str(row.head), visible(row.token), f"{row.weight:.3f}", *([f"{row.sink or 0.0:.3f}"] if sinks else []),
            row.weight,
        ))
        for row in view.heads
    ]  # fmt: skip
    return Table(columns, tuple(rows) if everything else elide_middle(rows, MAX_ROWS))


def _keys(view: Inside, everything: bool) -> Table:
    columns = (
        Column("", "number"), Column("token", "token"), Column("score", "number"), Column("weight", "number"),
        Column("", "bar"),
    )  # fmt: skip
    rows = [
        TableRow((
            str(key.position), visible(key.token), f"{key.score:.4f}" if key.visible else "masked", f"{key.weight:.4f}",
            key.weight,
        ))
        for key in view.keys
    ]  # fmt: skip
    rows = rows if everything else [*elide_middle(rows, MAX_ROWS)]
    if (sink := view.sink) is not None:
        rows.append(TableRow(("", SINK, f"{sink.score:.4f}", f"{sink.weight:.4f}", sink.weight), "dim"))
    return Table(columns, tuple(rows))


def _numbers(view: Inside, everything: bool) -> Table:
    columns = (Column("furthest from zero", "token"), Column("value", "number"), Column("path", "code", priority=3))
    return Table(columns, tuple(TableRow((number.label, f"{number.value:+.4f}", number.path)) for number in view.numbers))


def _product(product: DotProduct, everything: bool) -> Table:
    names = (product.left.rpartition(".")[2], product.right, "product")
    listed = product.terms if everything else product.terms[:MAX_ROWS]
    rows = [
        TableRow((str(term.index), *(f"{number:.6f}" for number in (term.left, term.right, term.product))))
        for term in listed
    ]
    if hidden := product.others + len(product.terms) - len(listed):
        rest = product.total - sum(term.product for term in listed)
        rows.append(TableRow((f"{hidden} others", "", "", f"{rest:.6f}"), "dim"))
    rows.append(TableRow(("sum", "", "", f"{product.total:.4f}"), "strong"))
    return Table((Column("", "number"), *(Column(name, "number") for name in names)), tuple(rows))


def _steps(view: Inside) -> Table:
    columns = (Column("step"), Column("", min_width=12), Column("value", "number"))
    return Table(columns, tuple(TableRow((step.name, step.expression, f"{step.value:.4f}")) for step in view.steps))
