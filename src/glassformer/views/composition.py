"""Composition of heads: how much each head reads of what each earlier head writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from glassformer.ground.arguments import checked
from glassformer.page.document import Column, Grid, Heading, Page, PagePart, Paragraph, Table, TableRow
from glassformer.views.view import View

SHOWN = 10  # pairs of each kind, unless everything is shown
EVERYTHING = 100

Shares = tuple[tuple[float | None, ...], ...]  # (later heads, earlier heads); None: not earlier


@dataclass(frozen=True)
class HeadName:
    layer: int
    head: int


@dataclass(frozen=True)
class Composition(View):
    """For pairs of heads, how far one reads from where an earlier one writes: 1 is all of it."""

    SCHEMA = "glassformer.composition/1"

    model: str
    baseline: float  # of heads that have nothing to do with each other: 1 / sqrt(hidden)
    subtracted: bool  # whether the baseline was subtracted
    later: tuple[HeadName, ...]  # those that read
    earlier: tuple[HeadName, ...]  # those that write
    query: Shares
    key: Shares
    value: Shares

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    @checked
    def records(self) -> list[dict[str, Any]]:
        """A row for each pair of heads."""
        scores = [[*row] for row in zip(self.query, self.key, self.value, strict=True)]
        return [
            {"later_layer": later.layer, "later_head": later.head, "earlier_layer": earlier.layer,
             "earlier_head": earlier.head, "query": query, "key": key, "value": value}
            for later, rows in zip(self.later, scores, strict=True)
            for earlier, query, key, value in zip(self.earlier, *rows, strict=True)
            if query is not None
        ]  # fmt: skip

    def strongest(self, kind: str, count: int = SHOWN) -> list[tuple[HeadName, HeadName, float]]:
        """The pairs with the highest scores: who reads, who wrote, the score; `kind`: 'query', 'key' or 'value'."""
        shares: Shares = {"query": self.query, "key": self.key, "value": self.value}[kind]
        pairs = (
            (later, earlier, share)
            for later, row in zip(self.later, shares, strict=True)
            for earlier, share in zip(self.earlier, row, strict=True)
            if share is not None
        )
        return sorted(pairs, key=lambda pair: -pair[2])[:count]

    def __repr__(self) -> str:
        return f"Composition({len(self.later)} heads with {len(self.earlier)} before them)"


def draw(view: Composition, everything: bool = False) -> Page:
    title = f"{view.model}: which heads read what earlier heads write"
    subtracted = "already subtracted" if view.subtracted else "not subtracted (--baseline)"
    parts: list[PagePart] = [
        Heading(title),
        Paragraph(
            "composition scores from weights: 1 if a head reads just what the earlier one writes; of unrelated heads about "
            f"{view.baseline:.3f}, {subtracted}",
            "dim",
        ),
    ]
    for kind, name in (("query", "Q"), ("key", "K"), ("value", "V")):
        pairs = view.strongest(kind, EVERYTHING if everything else SHOWN)
        most = max((abs(share) for _, _, share in pairs), default=1.0) or 1.0
        rows = tuple(
            TableRow(
                (f"{later.layer}.{later.head}", f"{earlier.layer}.{earlier.head}", f"{share:.3f}", max(share / most, 0.0))
            )
            for later, earlier, share in pairs
        )
        columns = (Column("head"), Column("reads"), Column("score", "number"), Column("", "bar", priority=5))
        parts += [Heading(f"{name}-composition: by its {kind}"), _grid(view, kind), Table(columns, rows)]
    return Page(title, tuple(parts))


def _grid(view: Composition, kind: str) -> Grid:
    """The strongest pair of each two layers."""
    best: dict[tuple[int, int], float] = {}
    for later, earlier, share in view.strongest(kind, len(view.later) * len(view.earlier)):
        best.setdefault((later.layer, earlier.layer), share)
    rows, columns = sorted({head.layer for head in view.later}), sorted({head.layer for head in view.earlier})
    most = max((abs(share) for share in best.values()), default=1.0) or 1.0
    values = tuple(tuple(best[row, column] / most if (row, column) in best else None for column in columns) for row in rows)
    return Grid(tuple(map(str, rows)), tuple(map(str, columns)), values)
