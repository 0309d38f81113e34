"""A trace: a line for each place, with what was expected there and what came."""

from __future__ import annotations

from collections.abc import Sequence

from glassformer.observe.journey import Candidate
from glassformer.observe.trace import Place, Trace
from glassformer.show.page import Column, Long, Page, Part, Row, Strip, Table, Words, middle
from glassformer.show.words import brief, many, share, visible

MOST = 64  # places
SO_FAR = 18  # characters of the text before a place
STRONG = 12.0  # bits of surprise that count as full

COLUMNS = (
    Column("", "number"),
    Column("text so far", least=8, ends=True),
    Column("came", "token", least=6),
    Column("chance", "number"),
    Column("", "bar", keep=2),
    Column("rank", "number", keep=6),
    Column("surprise", "number", keep=7),
    Column("open", "number", keep=5),
    Column("draw", "number", keep=4),
    Column("most likely next", keep=8, least=22),
)


def page(found: Trace, everything: bool = False) -> Page:
    drawn = any(place.draw is not None for place in found.places)
    columns = [at for at, column in enumerate(COLUMNS) if drawn or column.name != "draw"]
    rows = [_row(place) for place in found.places]
    rows = [Row(tuple(row.cells[at] for at in columns), row.style) for row in rows]
    parts: list[Part] = [Table(tuple(COLUMNS[at] for at in columns), tuple(rows) if everything else middle(rows, MOST))]
    parts.append(Words(f"\n{summary(found)}"))
    return Page(f"{found.model}: what was expected at each place", tuple(parts))


def summary(found: Trace) -> str:
    """What it adds up to."""
    if found.loss is None or found.perplexity is None:
        return "nothing here was scored: a text's first token has nothing before it"
    return (
        f"{many(found.tokens, 'token')} scored · loss {found.loss:.3f} nats a token · perplexity {found.perplexity:,.2f}\n"
        "surprise and open are in bits: 0 is certain, 1 a toss of a coin"
    )


def _row(place: Place) -> Row:
    came = "" if place.id is None else visible(place.text)
    mark = "→ " if place.written else ""
    cells = (
        str(place.position),
        brief(place.before, SO_FAR),
        mark + came,
        "" if place.probability is None else share(place.probability),
        float(place.probability or 0.0),
        "" if place.rank is None else str(place.rank),
        "" if place.surprise is None else f"{place.surprise:.2f}",
        "" if place.entropy is None else f"{place.entropy:.2f}",
        "" if place.draw is None else f"{place.draw:.4f}",
        Long(best(place.candidates, 4), best(place.candidates, 2)),
    )
    return Row(cells)


def best(found: Sequence[Candidate], most: int) -> str:
    """The best few in a line."""
    return " · ".join(f"{visible(one.text)} {share(one.probability)}" for one in found[:most])


def strip(found: Trace) -> Strip:
    """The text, each token as strong as it surprised."""
    told = [place for place in found.places if place.id is not None and place.surprise is not None]
    return Strip(
        tuple(visible(place.text) for place in told),
        tuple(min(1.0, (place.surprise or 0.0) / STRONG) for place in told),
        tuple(f"{place.surprise:.2f} bits" for place in told),
    )
