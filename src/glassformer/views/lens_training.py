"""What training a tuned lens brought: how far each layer's prediction diverges from the model's own, before and after."""

from __future__ import annotations

from dataclasses import dataclass

from glassformer.page.document import Column, Heading, Line, LineChart, Page, Paragraph, Table, TableRow
from glassformer.page.format import format_seconds, pluralize
from glassformer.views.view import View


@dataclass(frozen=True)
class LayerDivergence:
    """KL divergence from the model's own probabilities, in bits, over held-out tokens."""

    layer: str  # 'embedding', then the blocks by number
    before: float  # of the logit lens
    after: float  # of the tuned lens


@dataclass(frozen=True)
class LensTraining(View):
    """The divergence of each layer's prediction before and after a tuned lens was trained."""

    SCHEMA = "glassformer.lens-training/2"

    model: str
    texts: int
    tokens: int  # that were trained on
    held_out: int  # tokens that were measured on
    steps: int
    seconds: float
    layers: tuple[LayerDivergence, ...]  # all but the last, which needs no map

    def page(self, everything: bool = False) -> Page:
        return draw(self)

    def __repr__(self) -> str:
        before, after = (sum(getattr(at, name) for at in self.layers) / len(self.layers) for name in ("before", "after"))
        return f"LensTraining({len(self.layers)} layers, mean KL {before:.2f} → {after:.2f})"


def draw(view: LensTraining) -> Page:
    title = f"{view.model}: a tuned lens"
    about = (
        f"{pluralize(view.texts, 'text')}, {pluralize(view.tokens, 'token')} to train on and {view.held_out:,} held out; "
        f"{pluralize(view.steps, 'step')} in {format_seconds(view.seconds)}"
    )
    blocks = [layer for layer in view.layers if layer.layer.isdecimal()]  # the embedding's divergence dwarfs all others
    lines = tuple(
        Line(name, tuple((float(layer.layer), getattr(layer, field)) for layer in blocks))
        for name, field in (("logit lens", "before"), ("tuned lens", "after"))
    )
    most = max((layer.before for layer in blocks), default=1.0) or 1.0
    columns = (
        Column("layer", "number"), Column("logit lens", "number"), Column("", "bar", priority=5),
        Column("tuned lens", "number"), Column("", "bar", priority=6),
    )  # fmt: skip
    rows = tuple(
        TableRow((at.layer, f"{at.before:.3f}", min(1.0, at.before / most), f"{at.after:.3f}", min(1.0, at.after / most)))
        for at in view.layers
    )
    note = "KL divergence of a layer's prediction from the model's own, in bits, over held-out tokens"
    chart = LineChart("KL to the last layer, in bits", lines, "block", from_zero=True)
    return Page(title, (Heading(title), Paragraph(about), chart, Table(columns, rows), Paragraph(note, "dim")))
