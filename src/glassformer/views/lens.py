"""The logit lens as pictures: layers down, positions across; and how one answer came about, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

from glassformer.page.document import Column, Grid, Heading, Page, Part, Row, Table, Words
from glassformer.page.format import share, visible
from glassformer.views.view import View


@dataclass(frozen=True)
class LayerPrediction:
    """What one layer would have said at one position."""

    id: int
    text: str
    probability: float
    rank: int  # of the token that the last layer says: 1 is the first choice
    final: float  # the probability of that token here
    divergence: float  # of what is said here from what is said at the end: Kullback and Leibler's, in nats


@dataclass(frozen=True)
class Lens(View):
    SCHEMA = "glassformer.lens/2"

    model: str
    positions: tuple[int, ...]
    tokens: tuple[str, ...]  # those at the positions
    layers: tuple[str, ...]  # 'embedding', then the blocks by number
    predictions: tuple[tuple[LayerPrediction, ...], ...]  # by layer, then by position

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    @property
    def final(self) -> tuple[LayerPrediction, ...]:
        """What the model said, by position."""
        return self.predictions[-1]

    def settled(self, at: int = -1) -> str:
        """The layer from which on the answer at a position, by its place in `positions`, does not change."""
        last = self.predictions[-1][at].id
        settled = len(self.layers) - 1
        while settled > 0 and self.predictions[settled - 1][at].id == last:
            settled -= 1
        return self.layers[settled]

    def __repr__(self) -> str:
        return f"Lens({len(self.layers)} layers × {len(self.positions)} positions)"


def draw(view: Lens, everything: bool = False) -> Page:
    parts: list[Part] = [
        Heading(f"{view.model}: what each layer would have said next"),
        Words("each column is a token of the text, each cell the best next token there; shades are its probability", "dim"),
        Grid(
            view.layers,
            tuple(map(visible, view.tokens)),
            tuple(tuple(one.probability for one in layer) for layer in view.predictions),
            tuple(tuple(visible(one.text) for one in layer) for layer in view.predictions),
            whole=everything,
        ),
    ]
    for at in range(len(view.positions)) if everything else (len(view.positions) - 1,):
        parts += position(view, at)
    parts.append(Words("KL to the end: how far what is said here is from what is said at the end, in nats", "dim"))
    return Page(f"{view.model}: the lens", tuple(parts))


def position(view: Lens, at: int) -> list[Part]:
    """One position, layer by layer."""
    end = visible(view.final[at].text)
    columns = (
        Column("layer", "number"), Column("says", "token", least=8), Column("chance", "number"),
        Column(f"rank of {end}", "number"), Column("its chance", "number"), Column("", "bar", keep=5),
        Column("KL to the end", "number", keep=8),
    )  # fmt: skip
    rows = tuple(
        Row(
            (
                name,
                visible(one.text),
                share(one.probability),
                f"{one.rank:,}",
                share(one.final),
                one.final,
                f"{one.divergence:.2f}",
            ),
            "chosen" if one.id == view.final[at].id else "",
        )
        for name, one in zip(view.layers, (layer[at] for layer in view.predictions), strict=True)
    )
    where = f"after {visible(view.tokens[at])} (position {view.positions[at]})"
    said = (
        f"{end} is the first choice from layer {view.settled(at)} on"
        if view.settled(at) != "embedding"
        else f"{end} from the start"
    )
    return [Heading(f"{where}: {said}"), Table(columns, rows)]
