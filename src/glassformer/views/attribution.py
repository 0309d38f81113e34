"""Direct logit attribution: what each part of the model added to a token's score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from glassformer.page.document import Column, Heading, Page, Paragraph, Table, TableRow
from glassformer.page.format import format_percent, visible
from glassformer.views.view import View

ScoreMetric: TypeAlias = Literal["lead", "logit"]
MAX_HEADS = 10  # unless everything is shown


@dataclass(frozen=True)
class Contribution:
    """What one part of the model added to a score."""

    name: str  # embedding, attention, cross, mlp, biases or rounding; among heads also 'attention bias' and 'cross bias'
    block: int | None
    head: int | None
    value: float  # in logits


@dataclass(frozen=True)
class Attribution(View):
    """A token's score as the sum of what each part added to it."""

    SCHEMA = "glassformer.attribution/3"

    model: str
    position: int
    before: str  # the token at the position
    id: int
    text: str
    score: float  # in logits: its own; if it is compared with another token, its lead over that
    probability: float
    rank: int  # 1: the model's first choice
    against: str | None  # the token that it is compared with
    centred: bool  # whether the mean over the vocabulary was subtracted from the score, and each part's share of it
    contributions: tuple[Contribution, ...]  # they sum to the score: the embedding, what each block adds, biases, rounding
    heads: tuple[Contribution, ...]  # attention's contributions again: head by head, and then the biases behind the heads

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    def __repr__(self) -> str:
        return f"Attribution({self.text!r}: {self.score:.2f} in {len(self.contributions)} parts)"


def draw(view: Attribution, everything: bool = False) -> Page:
    token, quantity = visible(view.text), "score" if view.against is None else f"lead over {visible(view.against)}"
    target = f"the score of {token}" if view.against is None else f"{token}'s {quantity}"
    title = f"{view.model}: which parts wrote {target} after {visible(view.before)} (position {view.position})"
    heads = sorted(view.heads, key=lambda head: -abs(head.value))
    return Page(
        title,
        (
            Heading(title),
            Paragraph(
                f"what each part added directly, in logits; together the {quantity}, {view.score:.2f}\n"
                f"{convention(view.centred, view.against)}\n"
                f"{token}: probability {format_percent(view.probability)}, rank {view.rank:,}",
                "dim",
            ),
            _table(view.contributions),
            Heading("the heads that added or subtracted most"),
            _table(heads if everything else heads[:MAX_HEADS]),
            Paragraph("What a head wrote for later parts to read is counted where they write.", "dim"),
        ),
    )


def convention(centred: bool, against: str | None) -> str:
    """What a score is held against, in words."""
    if against is not None:
        return "a lead: what both tokens got alike is not counted"
    if centred:
        return "centred: the mean over the vocabulary is subtracted"
    return "uncentred: the logit itself, as the model computes it"


def _table(parts: Sequence[Contribution]) -> Table:
    most = max((abs(part.value) for part in parts), default=1.0) or 1.0
    columns = (
        Column("part"),
        Column("adds", "number"),
        Column("", "signed bar", priority=8),
    )
    rows = (TableRow((_name(part), f"{round(part.value, 2) + 0.0:+.2f}", part.value / most)) for part in parts)
    return Table(columns, tuple(rows))


def _name(part: Contribution) -> str:
    if part.block is None:
        return part.name
    return f"block {part.block} {part.name}" + ("" if part.head is None else f" head {part.head}")
