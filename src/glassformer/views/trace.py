"""The trace: at each place of a text, what the model expected there, what was chosen or stood there, and its surprisal.

Surprisal and entropy are in bits; the loss is in nats, as the field has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glassformer.page.document import Column, Long, Page, Part, Row, Strip, Table, Words, middle
from glassformer.page.format import brief, many, share, visible
from glassformer.views.answers import Candidate
from glassformer.views.view import View


@dataclass(frozen=True)
class Place:
    """One place in a text."""

    position: int
    before: str  # the end of the text before it
    id: int | None  # the token that stands there; None after the end
    text: str
    written: bool  # chosen by the model, not given to it
    probability: float | None  # of that token, under the model
    surprisal: float | None  # in bits: 0 when it was certain
    rank: int | None  # of that token: 1 is the model's first choice; None when it is not known
    entropy: float | None  # of the model's probabilities, in bits
    candidates: tuple[Candidate, ...]  # the model's best
    draw: float | None = None  # the number that picked it; None when the best was taken, or it was given
    finish: str | None = None


@dataclass(frozen=True)
class Trace(View):
    SCHEMA = "glassformer.trace/2"

    model: str
    text: str
    places: tuple[Place, ...]
    tokens: int  # that were scored
    loss: float | None  # their mean surprisal, in nats
    perplexity: float | None

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    def __len__(self) -> int:
        return len(self.places)

    def __repr__(self) -> str:
        perplexity = "" if self.perplexity is None else f", perplexity {self.perplexity:.2f}"
        return f"Trace({len(self.places)} places{perplexity})"


MOST = 64  # places
SO_FAR = 18  # characters of the text before a place
STRONG = 12.0  # bits of surprisal that count as full
COLUMNS = (
    Column("", "number"),
    Column("text so far", least=8, ends=True),
    Column("token", "token", least=6),
    Column("probability", "number"),
    Column("", "bar", keep=2),
    Column("rank", "number", keep=6),
    Column("surprisal", "number", keep=7),
    Column("entropy", "number", keep=5),
    Column("draw", "number", keep=4),
    Column("most likely next", keep=8, least=22),
)


def draw(view: Trace, everything: bool = False) -> Page:
    drawn = any(place.draw is not None for place in view.places)
    columns = [at for at, column in enumerate(COLUMNS) if drawn or column.name != "draw"]
    rows = [_row(place) for place in view.places]
    rows = [Row(tuple(row.cells[at] for at in columns), row.style) for row in rows]
    parts: list[Part] = [Table(tuple(COLUMNS[at] for at in columns), tuple(rows) if everything else middle(rows, MOST))]
    parts.append(Words(f"\n{summary(view)}"))
    return Page(f"{view.model}: what was expected at each place", tuple(parts))


def summary(view: Trace) -> str:
    """What it adds up to."""
    if view.loss is None or view.perplexity is None:
        return "nothing here was scored: a text's first token has nothing before it"
    return (
        f"{many(view.tokens, 'token')} scored · loss {view.loss:.3f} nats per token · perplexity {view.perplexity:,.2f}\n"
        "surprisal (−log2 of the probability) and entropy are in bits: 0 is certain, 1 a coin toss"
    )


def _row(place: Place) -> Row:
    token = "" if place.id is None else visible(place.text)
    mark = "→ " if place.written else ""
    cells = (
        str(place.position),
        brief(place.before, SO_FAR),
        mark + token,
        "" if place.probability is None else share(place.probability),
        float(place.probability or 0.0),
        "" if place.rank is None else str(place.rank),
        "" if place.surprisal is None else f"{place.surprisal:.2f}",
        "" if place.entropy is None else f"{place.entropy:.2f}",
        "" if place.draw is None else f"{place.draw:.4f}",
        Long(best(place.candidates, 4), best(place.candidates, 2)),
    )
    return Row(cells)


def best(candidates: Sequence[Candidate], most: int) -> str:
    """The best few in a line."""
    return " · ".join(f"{visible(one.text)} {share(one.probability)}" for one in candidates[:most])


def strip(view: Trace) -> Strip:
    """The text, each token shaded by its surprisal."""
    scored = [place for place in view.places if place.id is not None and place.surprisal is not None]
    return Strip(
        tuple(visible(place.text) for place in scored),
        tuple(min(1.0, (place.surprisal or 0.0) / STRONG) for place in scored),
        tuple(f"{place.surprisal:.2f} bits" for place in scored),
    )
