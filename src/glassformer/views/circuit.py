"""A head's circuits in tokens: which keys a query looks for (QK), and what a token it reads is written as (OV)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glassformer.page.document import Column, Heading, Page, PagePart, Paragraph, Table, TableRow
from glassformer.page.format import format_percent, visible
from glassformer.views.view import View

SHOWN = 12  # tokens, unless everything is shown


@dataclass(frozen=True)
class ScoredToken:
    id: int
    text: str
    score: float  # an attention score, or a part of a logit


@dataclass(frozen=True)
class TokenCircuit:
    """One token in a head, from weights alone."""

    id: int
    text: str
    looks_for: tuple[ScoredToken, ...]  # as a query: the keys with the highest attention scores, best first
    writes: tuple[ScoredToken, ...]  # as what is read: the tokens whose logits it raises most, best first
    own_score: float  # what reading it adds to its own logit
    own_rank: int  # 1: it is the first of what it writes


@dataclass(frozen=True)
class PositionWrites:
    """What a head did at one position of a text."""

    position: int
    token: str
    attends_to: int  # the position with the highest attention weight; a sink may take more
    attended_token: str
    weight: float
    writes: tuple[ScoredToken, ...]  # the tokens whose logits it raised most, and by how much, as `attribution` has it
    sink: float | None = None  # what its sink took of the attention; None: it has none


@dataclass(frozen=True)
class HeadCircuit(View):
    """What a head looks for and what it writes."""

    SCHEMA = "glassformer.circuit/1"

    model: str
    layer: int
    head: int
    key_value_head: int  # the head of keys and values that it uses
    distance: int  # how many tokens before the query the keys stand; 0: no positions
    copying: float  # sum of the full OV circuit's eigenvalues over the sum of their sizes: 1 copies, -1 does the opposite
    tokens: tuple[TokenCircuit, ...]
    chosen: bool  # whether the tokens were named; otherwise they are those whose own logit the head raises most
    positions: tuple[PositionWrites, ...]  # of a text; none if there is none

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    def __repr__(self) -> str:
        return f"HeadCircuit(layer {self.layer} head {self.head}: copying {self.copying:+.2f}, {len(self.tokens)} tokens)"


def draw(view: HeadCircuit, everything: bool = False) -> Page:
    title = f"{view.model}: what layer {view.layer} head {view.head} looks for and writes"
    distance = "without positions" if not view.distance else f"for keys {view.distance} tokens back"
    sentence = f"from weights alone, as if tokens were read as they enter the first layer; attention scores {distance}"
    tokens = view.tokens if everything else view.tokens[:SHOWN]
    rows = tuple(
        TableRow((visible(token.text), _list(token.looks_for), _list(token.writes), f"{token.own_rank:,}"))
        for token in tokens
    )
    columns = (
        Column("token", "token"), Column("as a query looks for", "text", min_width=20),
        Column("when read, writes", "text", min_width=20), Column("itself at", "number", priority=5),
    )  # fmt: skip
    chosen = "these tokens" if view.chosen else "the tokens that it copies most"
    parts: list[PagePart] = [
        Heading(title),
        Paragraph(
            f"{sentence}\ncopying score {view.copying:+.2f}: the eigenvalues' sum over the sum of their sizes; 1 raises "
            "each token's own logit, -1 lowers it",
            "dim",
        ),
        Heading(f"its circuits for {chosen}"),
        Table(columns, rows),
    ]
    if len(tokens) < len(view.tokens):
        parts.append(Paragraph(f"{len(view.tokens) - len(tokens)} more tokens (--all)", "dim"))
    if view.positions:
        places = view.positions if everything else view.positions[-SHOWN:]
        parts += [Heading("what it wrote in this text"), _positions(places)]
        if len(places) < len(view.positions):
            parts.append(Paragraph(f"{len(view.positions) - len(places)} positions before these (--all)", "dim"))
    return Page(title, tuple(parts))


def _positions(places: Sequence[PositionWrites]) -> Table:
    sinks = any(place.sink is not None for place in places)
    columns = (
        Column("at", "number"), Column("token", "token"), Column("attends most to", "token"), Column("weight", "number"),
        *([Column("sink", "number")] if sinks else []), Column("writes", "text", min_width=20),
    )  # fmt: skip
    rows = (
        TableRow(
            (
                str(place.position), visible(place.token), f"{visible(place.attended_token)} ({place.attends_to})",
                format_percent(place.weight), *([format_percent(place.sink or 0.0)] if sinks else []), _list(place.writes),
            )
        )
        for place in places
    )  # fmt: skip
    return Table(columns, tuple(rows))


def _list(tokens: Sequence[ScoredToken]) -> str:
    return "  ".join(visible(token.text) for token in tokens)
