"""Who wrote a score: block by block, and the heads that did most."""

from __future__ import annotations

from glassformer.observe.attribution import Attribution, Share
from glassformer.show.page import Column, Heading, Page, Row, Table, Words
from glassformer.show.words import share, visible

BEST = 10  # heads that are shown


def page(found: Attribution, everything: bool = False) -> Page:
    token, what = visible(found.text), "score" if found.against is None else f"lead over {visible(found.against)}"
    whose = f"the score of {token}" if found.against is None else f"{token}'s {what}"
    said = f"who wrote {whose} after {visible(found.before)} (position {found.position})"
    most = max((abs(part.value) for part in found.parts), default=1.0) or 1.0
    strongest = max((abs(part.value) for part in found.heads), default=1.0) or 1.0
    heads = sorted(found.heads, key=lambda part: -abs(part.value))
    return Page(
        said,
        (
            Heading(f"{found.model}: {said}"),
            Words(
                f"the {what} is {found.score:.2f} ({token} is {share(found.probability)} likely, rank {found.rank:,}): "
                "the sum of what each part added to it directly",
                "dim",
            ),
            _table(found.parts, most),
            Heading("the heads that added or took away most"),
            _table(heads if everything else heads[:BEST], strongest),
            Words("What a head wrote for later ones to read is counted where they write. Biases stand apart.", "dim"),
        ),
    )


def _table(parts: list[Share] | tuple[Share, ...], most: float) -> Table:
    columns = (Column("part"), Column("adds", "number"), Column("less", "bar", keep=7), Column("more", "bar", keep=8))
    rows = (
        Row((_name(part), f"{part.value:+.2f}", max(0.0, -part.value) / most, max(0.0, part.value) / most)) for part in parts
    )
    return Table(columns, tuple(rows))


def _name(part: Share) -> str:
    if part.block is None:
        return part.name
    return f"block {part.block} {part.name}" + ("" if part.head is None else f" head {part.head}")
