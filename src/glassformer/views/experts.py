"""Experts: to which experts of a mixture each token of a text goes, and how evenly the tokens are spread over them."""

from __future__ import annotations

from dataclasses import dataclass

from glassformer.page.document import Column, Grid, Heading, Page, PagePart, Paragraph, Table, TableRow
from glassformer.page.format import format_percent, pluralize, visible
from glassformer.views.view import View

MAX_BUSIEST = 3  # experts listed for each layer, unless everything is shown


@dataclass(frozen=True)
class ExpertShare:
    """One of the experts that a token goes to."""

    expert: int
    share: float  # by which its output is multiplied
    score: float  # the router's, a logit


@dataclass(frozen=True)
class ExpertLoad:
    """What one expert has to do in a layer."""

    expert: int
    tokens: int  # that go to it
    share: float  # of all that the layer's experts add, its part: from 0 to 1


@dataclass(frozen=True)
class ExpertLayer:
    """One layer that has experts."""

    layer: int
    tokens: tuple[tuple[ExpertShare, ...], ...]  # for each token, the experts that it goes to, largest share first
    loads: tuple[ExpertLoad, ...]  # of all experts, by number


@dataclass(frozen=True)
class Experts(View):
    """To which experts each token of a text goes, layer by layer."""

    SCHEMA = "glassformer.experts/1"

    model: str
    tokens: tuple[str, ...]
    experts: int  # of each layer
    chosen: int  # for each token
    layers: tuple[ExpertLayer, ...]

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    def __repr__(self) -> str:
        return f"Experts({len(self.layers)} layers × {len(self.tokens)} tokens: {self.chosen} of {self.experts} experts)"


def draw(view: Experts, everything: bool = False) -> Page:
    title = f"{view.model}: where each token went, {view.chosen} of {view.experts} experts"
    parts: list[PagePart] = [
        Heading(title),
        Paragraph("each cell is the expert with the largest share of a token's update; shades are that share", "dim"),
        Grid(
            tuple(str(layer.layer) for layer in view.layers),
            tuple(map(visible, view.tokens)),
            tuple(tuple(_first(token).share for token in layer.tokens) for layer in view.layers),
            tuple(tuple(str(_first(token).expert) for token in layer.tokens) for layer in view.layers),
            tuple(tuple(share_list(token) for token in layer.tokens) for layer in view.layers),
            all_columns=everything,
        ),
        Heading("how evenly the tokens are spread"),
        _loads_table(view, everything),
        Paragraph(
            "tokens: how many go to an expert; in brackets, its part of all that the layer's experts add", "dim"
        ),
    ]  # fmt: skip
    for at in range(len(view.tokens)) if everything else (len(view.tokens) - 1,):
        parts += token_parts(view, at)
    return Page(title, tuple(parts))


def token_parts(view: Experts, at: int) -> list[PagePart]:
    """One token, layer by layer."""
    rows = tuple(
        TableRow((str(layer.layer), share_list(layer.tokens[at]), _first(layer.tokens[at]).share)) for layer in view.layers
    )
    columns = (Column("layer", "number"), Column("experts", wraps=True), Column("largest share", "bar", priority=5))
    return [Heading(f"{visible(view.tokens[at])} (position {at}) goes to"), Table(columns, rows)]


def share_list(token: tuple[ExpertShare, ...]) -> str:
    """The experts of a token with their shares."""
    return " · ".join(f"{choice.expert}: {format_percent(choice.share)}" for choice in token) or "none"


def _first(token: tuple[ExpertShare, ...]) -> ExpertShare:
    return token[0] if token else ExpertShare(-1, 0.0, 0.0)  # where a change has switched all of them off


def _loads_table(view: Experts, everything: bool) -> Table:
    columns = (Column("layer", "number"), Column("experts used", "number"), Column("busiest", wraps=True))
    rows = []
    for layer in view.layers:
        used = sorted((load for load in layer.loads if load.tokens), key=lambda load: (-load.tokens, load.expert))
        shown = used if everything else used[:MAX_BUSIEST]
        busiest = " · ".join(
            f"{load.expert}: {pluralize(load.tokens, 'token')} ({format_percent(load.share)})" for load in shown
        )
        rows.append(TableRow((str(layer.layer), f"{len(used)} of {view.experts}", busiest)))
    return Table(columns, tuple(rows))
