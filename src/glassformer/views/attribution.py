"""Direct logit attribution: what each block and each head added to a token's score."""

from __future__ import annotations

from dataclasses import dataclass

from glassformer.page.document import Column, Heading, Page, Row, Table, Words
from glassformer.page.format import share, visible
from glassformer.views.view import View


@dataclass(frozen=True)
class Share:
    """What one part of the model added to a score."""

    name: str  # 'embedding', 'attention', 'cross', 'mlp', 'biases' or 'rounding'
    block: int | None
    head: int | None
    value: float


@dataclass(frozen=True)
class Attribution(View):
    SCHEMA = "glassformer.attribution/1"

    model: str
    position: int
    before: str  # the token at the position
    id: int
    text: str
    score: float  # its own; if it is held against another token, how far it is ahead
    probability: float
    rank: int  # 1 is the model's first choice
    against: str | None  # the token that it is held against
    parts: tuple[Share, ...]  # that sum to the score: the embedding, each block's additions, biases, rounding
    heads: tuple[Share, ...]  # attention's parts once more, head by head

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    def __repr__(self) -> str:
        return f"Attribution({self.text!r}: {self.score:.2f} in {len(self.parts)} parts)"


BEST = 10  # heads that are shown


def draw(view: Attribution, everything: bool = False) -> Page:
    token, what = visible(view.text), "score" if view.against is None else f"lead over {visible(view.against)}"
    whose = f"the score of {token}" if view.against is None else f"{token}'s {what}"
    said = f"who wrote {whose} after {visible(view.before)} (position {view.position})"
    most = max((abs(part.value) for part in view.parts), default=1.0) or 1.0
    strongest = max((abs(part.value) for part in view.heads), default=1.0) or 1.0
    heads = sorted(view.heads, key=lambda part: -abs(part.value))
    return Page(
        said,
        (
            Heading(f"{view.model}: {said}"),
            Words(
                f"the {what} is {view.score:.2f} ({token} is {share(view.probability)} likely, rank {view.rank:,}): "
                "the sum of what each part added to it directly",
                "dim",
            ),
            _table(view.parts, most),
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
