"""Steering vectors: one that was made, pair by pair, and those that there are.

A pair's projection is how far its first text lies from its second along the vector, in lengths of the vector: 1 is the
typical difference, and below 0 the pair disagrees.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from glassformer.page.document import Column, Heading, Page, PagePart, Paragraph, Table, TableRow, elide_middle
from glassformer.page.format import pluralize, visible
from glassformer.views.view import View

SteeringMethod: TypeAlias = Literal["mean", "pca"]
SteeringTokens: TypeAlias = Literal["last", "all"]
MAX_ROWS = 20
METHODS = {"mean": "the mean of the differences", "pca": "the first principal component of the differences"}


@dataclass(frozen=True)
class SteeringDirection:
    """The direction at one site."""

    site: str
    norm: float
    stream: float  # the mean length of a token's numbers there
    agreement: float  # the fraction of the pairs whose first text lies further along it than their second
    held_out: float | None  # the same for each pair by the vector of all others; None: there is only one pair


@dataclass(frozen=True)
class SteeringPair:
    """A pair of texts, and how far they lie apart along the direction, at each site."""

    positive: str
    negative: str
    projections: tuple[float, ...]


@dataclass(frozen=True)
class MadeSteeringVector(View):
    """A steering vector that was made from pairs of texts."""

    SCHEMA = "glassformer.steering-vector/1"

    model: str
    method: SteeringMethod
    tokens: SteeringTokens
    directions: tuple[SteeringDirection, ...]
    pairs: tuple[SteeringPair, ...]
    vector: Any = field(repr=False, compare=False, metadata={"stored": False})  # what `save` writes

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the vector itself as .safetensors; or this view of it: .json, .html or .txt."""
        return Path(self.vector.save(path)) if Path(path).suffix == ".safetensors" else super().save(path)

    def page(self, everything: bool = False) -> Page:
        return draw_made(self, everything)


@dataclass(frozen=True)
class KnownVector:
    """A steering vector that can be named."""

    name: str
    sites: tuple[str, ...]
    norm: float
    made_with: str  # the model; of a control vector, what it says it is for
    method: str
    pairs: int
    problem: str | None  # why it cannot be used with this model


@dataclass(frozen=True)
class SteeringVectors(View):
    """The steering vectors that there are, and whether they fit a model."""

    SCHEMA = "glassformer.steering-vectors/1"

    model: str
    vectors: tuple[KnownVector, ...]

    def page(self, everything: bool = False) -> Page:
        return draw_known(self)


def draw_made(view: MadeSteeringVector, everything: bool = False) -> Page:
    title = f"a steering vector of {view.model} from {pluralize(len(view.pairs), 'pair')}"
    read = "the last token" if view.tokens == "last" else "all tokens"
    columns = (
        Column("site"), Column("length", "number"), Column("of the stream", "number", priority=5),
        Column("pairs agree", "number"), Column("held out", "number"),
    )  # fmt: skip
    rows = [
        TableRow((each.site, f"{each.norm:.3g}", f"{each.norm / each.stream:.0%}" if each.stream else "–",
                  f"{each.agreement:.0%}", "–" if each.held_out is None else f"{each.held_out:.0%}"))
        for each in view.directions
    ]  # fmt: skip
    parts: list[PagePart] = [
        Heading(title),
        Paragraph(f"{METHODS[view.method].capitalize()}, read at {read} of each text."),
        Table(columns, tuple(rows) if everything else elide_middle(rows, MAX_ROWS)),
    ]
    best = max(range(len(view.directions)), key=lambda n: view.directions[n].agreement)
    most = max((abs(pair.projections[best]) for pair in view.pairs), default=1.0) or 1.0
    pairs = [
        TableRow((visible(pair.positive), visible(pair.negative), f"{pair.projections[best]:.2f}",
                  pair.projections[best] / most))
        for pair in view.pairs
    ]  # fmt: skip
    parts += [
        Paragraph(f"How far the texts of each pair lie apart along it at {view.directions[best].site}:"),
        Table(
            (Column("with", min_width=12), Column("without", min_width=12), Column("apart", "number"),
             Column("", "signed bar", priority=4)),
            tuple(pairs) if everything else elide_middle(pairs, MAX_ROWS),
        ),
    ]  # fmt: skip
    return Page(title, tuple(parts))


def draw_known(view: SteeringVectors) -> Page:
    title = f"steering vectors for {view.model}"
    if not view.vectors:
        return Page(title, (Heading(title), Paragraph("There are none. glass steer make makes one from pairs of texts.")))
    rows = [
        TableRow((each.name, _sites(each.sites), f"{each.norm:.3g}", str(each.pairs or "–"), each.problem or "fits"),
                 "dim" if each.problem else "")
        for each in view.vectors
    ]  # fmt: skip
    columns = (
        Column("name"), Column("site", min_width=10), Column("length", "number", priority=5),
        Column("pairs", "number", priority=4), Column("this model", min_width=10, wraps=True),
    )  # fmt: skip
    return Page(title, (Heading(title), Table(columns, tuple(rows))))


def _sites(sites: tuple[str, ...]) -> str:
    return sites[0] if len(sites) == 1 else f"{sites[0]} and {len(sites) - 1} more"
