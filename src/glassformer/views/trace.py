"""The trace: at each position of a text, what the model expected, which token is there, and its surprisal.

Surprisal and entropy are in bits; the loss is in nats, as trainings have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glassformer.page.document import (
    Column,
    Page,
    PagePart,
    Paragraph,
    Shortenable,
    Table,
    TableRow,
    TokenStrip,
    elide_middle,
)
from glassformer.page.format import format_percent, pluralize, tail, visible
from glassformer.views.answers import Candidate
from glassformer.views.view import View

MAX_PLACES = 64  # unless everything is shown
MAX_CONTEXT = 18  # characters of the text before a position
MAX_SURPRISAL = 12.0  # bits that are shaded fully
LEGEND = (
    "surprisal: how unexpected the token was, −log2 of its probability, in bits\n"
    "entropy: how undecided the model was, in bits; 0 is certain, 1 a coin toss"
)
COLUMNS = (
    Column("", "number"),
    Column("context", min_width=8, keep_end=True),
    Column("token", "token", min_width=6),
    Column("prob.", "number"),
    Column("", "bar", priority=2),
    Column("rank", "number", priority=6),
    Column("surprisal", "number", priority=7),
    Column("entropy", "number", priority=5),
    Column("draw", "number", priority=4),
    Column("most likely next", priority=8, min_width=22),
)


@dataclass(frozen=True)
class TracePlace:
    """One position of a text."""

    position: int
    before: str  # the text before it, its end
    id: int | None  # of the token there; None after the end
    text: str
    written: bool  # chosen by the model, not part of its prompt
    probability: float | None  # of that token, under the model
    surprisal: float | None  # in bits: 0 when it was certain
    rank: int | None  # of that token: 1 is the model's first choice; None: not recorded
    entropy: float | None  # of the model's probabilities, in bits
    candidates: tuple[Candidate, ...]  # the model's best
    draw: float | None = None  # the random number that picked it; None: there was none
    finish: str | None = None


@dataclass(frozen=True)
class Trace(View):
    """What the model expected at each position of a text."""

    SCHEMA = "glassformer.trace/2"

    model: str
    text: str
    places: tuple[TracePlace, ...]
    tokens: int  # that were scored
    loss: float | None  # as trainings have it: their mean surprisal, in nats
    perplexity: float | None
    surprisal: float | None = None  # their mean, in bits

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    def __len__(self) -> int:
        return len(self.places)

    def __repr__(self) -> str:
        perplexity = "" if self.perplexity is None else f", perplexity {self.perplexity:.2f}"
        return f"Trace({len(self.places)} places{perplexity})"


def draw(view: Trace, everything: bool = False) -> Page:
    sampled = any(place.draw is not None for place in view.places)
    columns = [at for at, column in enumerate(COLUMNS) if sampled or column.name != "draw"]
    rows = [_row(place) for place in view.places]
    rows = [TableRow(tuple(row.cells[at] for at in columns), row.style) for row in rows]
    parts: list[PagePart] = [
        Table(tuple(COLUMNS[at] for at in columns), tuple(rows) if everything else elide_middle(rows, MAX_PLACES))
    ]
    parts.append(Paragraph(f"\n{summary(view)}"))
    return Page(f"{view.model}: what was expected at each position", tuple(parts))


def summary(view: Trace) -> str:
    """The mean surprisal, and what the columns mean."""
    if view.surprisal is None or view.perplexity is None:
        return "nothing here was scored: a text's first token has nothing before it"
    mean = f"mean surprisal {view.surprisal:.3f} bits · perplexity {view.perplexity:,.2f}"
    return f"{pluralize(view.tokens, 'token')} scored · {mean}\n{LEGEND}"


def _row(place: TracePlace) -> TableRow:
    token = "" if place.id is None else visible(place.text)
    mark = "→ " if place.written else ""
    cells = (
        str(place.position),
        tail(place.before, MAX_CONTEXT),
        mark + token,
        "" if place.probability is None else format_percent(place.probability),
        float(place.probability or 0.0),
        "" if place.rank is None else str(place.rank),
        "" if place.surprisal is None else f"{place.surprisal:.2f}",
        "" if place.entropy is None else f"{place.entropy:.2f}",
        "" if place.draw is None else f"{place.draw:.4f}",
        Shortenable(_best(place.candidates, 4), _best(place.candidates, 2)),
    )
    return TableRow(cells)


def _best(candidates: Sequence[Candidate], limit: int) -> str:
    """The best candidates in a line."""
    shown = candidates[:limit]
    return " · ".join(f"{visible(candidate.text)} {format_percent(candidate.probability)}" for candidate in shown)


def strip(view: Trace) -> TokenStrip:
    """The text, each token shaded by its surprisal."""
    scored = [place for place in view.places if place.id is not None and place.surprisal is not None]
    return TokenStrip(
        tuple(visible(place.text) for place in scored),
        tuple(min(1.0, (place.surprisal or 0.0) / MAX_SURPRISAL) for place in scored),
        tuple(f"{place.surprisal:.2f} bits" for place in scored),
    )
