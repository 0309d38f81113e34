"""Two models over one text: where and how far they differ. The second may be another quantization, executor or change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glassformer.page.document import Column, Heading, Page, PagePart, Paragraph, Table, TableRow
from glassformer.page.format import format_percent, tail, visible
from glassformer.views.view import View

MAX_CONTEXT = 24  # characters of the text before a position
MAX_PLACES = 6  # that differ most, unless everything is shown
MAX_LAYERS = 8
LEGEND = "1, 2: the models · best: the most likely token · prob.: of the token in the text"


@dataclass(frozen=True)
class DifferingPlace:
    """One position in the text, and what both models predict there."""

    position: int
    before: str
    token: str  # the token there; empty after the end
    best: tuple[str, str]  # each model's most likely token
    probability: tuple[float | None, float | None]  # of the token there
    divergence: float  # of the second from the first, in bits


@dataclass(frozen=True)
class StreamDifference:
    """How far the two residual streams differ after one block."""

    layer: str
    error: float  # the norm of the difference over that of the first, mean over the tokens


@dataclass(frozen=True)
class ModelComparison(View):
    """Two models' predictions and residual streams over one text."""

    SCHEMA = "glassformer.compare-models/3"

    names: tuple[str, str]
    tokens: int  # that were scored
    perplexity: tuple[float, float]
    divergence: float  # mean, in bits a token
    agreement: float  # fraction of positions where the best token is the same
    first: DifferingPlace | None  # the first position where the best tokens differ
    worst: tuple[DifferingPlace, ...]  # by divergence
    gaps: tuple[StreamDifference, ...]  # by layer; none where the streams cannot be compared

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    def __repr__(self) -> str:
        return f"ModelComparison({self.names[0]} ‖ {self.names[1]}: KL {self.divergence:.2g}, agree {self.agreement:.1%})"


def draw(view: ModelComparison, everything: bool = False) -> Page:
    first, second = view.names
    rows = (
        TableRow(("tokens", f"{view.tokens:,}", "")),
        TableRow(("perplexity", f"{view.perplexity[0]:,.4f}", f"{view.perplexity[1]:,.4f}")),
        TableRow(("KL divergence", f"{view.divergence:.3g}", "bits per token")),
        TableRow(("same best token", f"{view.agreement:.2%}", "")),
    )
    parts: list[PagePart] = [
        Heading(title := f"{first}  ‖  {second}"),
        Table((Column(), Column("first", "number", min_width=12), Column("second")), rows),
    ]
    if view.first is None:
        parts.append(Paragraph("the same best token at every position", "chosen"))
    else:
        parts.append(Paragraph(f"the best tokens first differ at position {view.first.position}:", "strong"))
        parts.append(_places_table([view.first]))
    if view.divergence:
        places = _places_table(view.worst if everything else view.worst[:MAX_PLACES])
        parts += [Heading("where they differ most"), places, Paragraph(LEGEND, "dim")]
    if view.gaps:
        most = max(gap.error for gap in view.gaps) or 1.0
        order = list(view.gaps) if everything else sorted(view.gaps, key=lambda gap: -gap.error)[:MAX_LAYERS]
        layers = tuple(TableRow((gap.layer, f"{gap.error:.2e}", gap.error / most)) for gap in order)
        parts += [
            Heading("difference of the residual streams, " + ("layer by layer" if everything else "worst layers first")),
            Table((Column("after", "number"), Column("error", "number"), Column("", "bar")), layers),
            Paragraph("error: the norm of the difference over that of the first, mean over the tokens", "dim"),
        ]
    return Page(title, tuple(parts))


def _places_table(places: Sequence[DifferingPlace]) -> Table:
    columns = (
        Column("", "number"),
        Column("context", min_width=10, keep_end=True),
        Column("token", "token", min_width=6),
        Column("best 1", "token", min_width=8),
        Column("best 2", "token", min_width=8),
        Column("prob. 1", "number", priority=6),
        Column("prob. 2", "number", priority=6),
        Column("KL, bits", "number"),
    )
    rows = (
        TableRow(
            (
                str(place.position),
                tail(place.before, MAX_CONTEXT),
                visible(place.token) if place.token else "",
                visible(place.best[0]),
                visible(place.best[1]),
                *("" if probability is None else format_percent(probability) for probability in place.probability),
                f"{place.divergence:.3g}",
            )
        )
        for place in places
    )
    return Table(columns, tuple(rows))
