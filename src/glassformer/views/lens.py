"""The logit lens: what each layer would predict at each position, and how one prediction forms, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from glassformer.ground.arguments import checked
from glassformer.ground.errors import InputError
from glassformer.page.document import Column, Grid, Heading, Page, PagePart, Paragraph, Table, TableRow
from glassformer.page.format import format_percent, visible
from glassformer.views.view import View, flat_data


@dataclass(frozen=True)
class LayerPrediction:
    """What one layer would predict at one position."""

    id: int
    text: str
    probability: float
    rank: int  # of the token that the last layer predicts: 1 is the first choice
    final: float  # that token's probability in this layer
    divergence: float  # KL divergence of this layer's probabilities from the last one's, in bits
    entropy: float  # of this layer's probabilities, in bits


@dataclass(frozen=True)
class Lens(View):
    """The predictions of every layer at some positions of a text."""

    SCHEMA = "glassformer.lens/3"

    model: str
    positions: tuple[int, ...]
    tokens: tuple[str, ...]  # those at the positions
    layers: tuple[str, ...]  # 'embedding', then the blocks by number
    predictions: tuple[tuple[LayerPrediction, ...], ...]  # by layer, then by position
    tuned: bool = False  # each layer read through a map of its own

    @checked
    def records(self) -> list[dict[str, Any]]:
        """A row for each layer at each position."""
        return [
            {"layer": layer, "position": position, "token": token, **flat_data(prediction, "predicted_")}
            for layer, row in zip(self.layers, self.predictions, strict=True)
            for position, token, prediction in zip(self.positions, self.tokens, row, strict=True)
        ]

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    @property
    def final(self) -> tuple[LayerPrediction, ...]:
        """What the model predicts, by position."""
        return self.predictions[-1]

    def settled(self, at: int = -1) -> str:
        """The layer from which on the prediction at a position, by its index in `positions`, does not change."""
        if not -len(self.positions) <= at < len(self.positions):
            raise InputError(f"there is no position {at} among the lens's {len(self.positions)}.")
        last = self.predictions[-1][at].id
        settled = len(self.layers) - 1
        while settled > 0 and self.predictions[settled - 1][at].id == last:
            settled -= 1
        return self.layers[settled]

    def __repr__(self) -> str:
        return f"Lens({len(self.layers)} layers × {len(self.positions)} positions)"


def draw(view: Lens, everything: bool = False) -> Page:
    parts: list[PagePart] = [
        Heading(title := f"{view.model}: {'tuned lens, ' if view.tuned else ''}what each layer would predict next"),
        Paragraph(
            "each column is a token of the text, each cell the best next token there; shades are its probability", "dim"
        ),
        Grid(
            view.layers,
            tuple(map(visible, view.tokens)),
            tuple(tuple(cell.probability for cell in layer) for layer in view.predictions),
            tuple(tuple(visible(cell.text) for cell in layer) for layer in view.predictions),
            all_columns=everything,
        ),
    ]
    for at in range(len(view.positions)) if everything else (len(view.positions) - 1,):
        parts += position_parts(view, at)
    parts.append(Paragraph("KL to last: divergence of a layer's probabilities from the last layer's, in bits", "dim"))
    return Page(title, tuple(parts))


def position_parts(view: Lens, at: int) -> list[PagePart]:
    """One position, layer by layer."""
    last = visible(view.final[at].text)
    columns = (
        Column("layer", "number"), Column("predicts", "token", min_width=8), Column("prob.", "number"),
        Column(f"rank of {last}", "number"), Column("its prob.", "number"), Column("", "bar", priority=5),
        Column("KL to last", "number", priority=8),
    )  # fmt: skip
    rows = tuple(
        TableRow(
            (
                name,
                visible(prediction.text),
                format_percent(prediction.probability),
                f"{prediction.rank:,}",
                format_percent(prediction.final),
                prediction.final,
                f"{prediction.divergence:.2f}",
            ),
            "chosen" if prediction.id == view.final[at].id else "",
        )
        for name, prediction in zip(view.layers, (layer[at] for layer in view.predictions), strict=True)
    )
    where = f"after {visible(view.tokens[at])} (position {view.positions[at]})"
    settled = view.settled(at)
    since = "from the start" if settled == "embedding" else f"is the first choice from layer {settled} on"
    return [Heading(f"{where}: {last} {since}"), Table(columns, rows)]
