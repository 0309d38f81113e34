"""The training of a sparse autoencoder, as a view: what is left unexplained, and how many features are active or dead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from glassformer.page.document import Column, Line, LineChart, Page, Paragraph, Table, TableRow, elide_middle
from glassformer.page.format import pluralize
from glassformer.see.view import View

FeatureKind: TypeAlias = Literal["topk", "batchtopk", "l1"]
MAX_ROWS = 16


@dataclass(frozen=True)
class FeatureTrainingPoint:
    """The state after some steps, on rows that it is not trained on."""

    step: int
    rows: int  # that it has been trained on
    loss: float  # of the training, lately: the share of the variance that is left, and what sparsity costs
    unexplained: float  # the share of the held-out rows' variance
    active: float  # features at a row, on average (L0)
    dead: int  # features that no row has activated lately
    revived: int  # since the point before


@dataclass(frozen=True)
class FeatureTraining(View):
    """The training of a sparse autoencoder."""

    SCHEMA = "glassformer.feature-training/1"

    model: str
    site: str
    kind: str
    size: int
    width: int
    seconds: float
    points: tuple[FeatureTrainingPoint, ...]

    def page(self, everything: bool = False) -> Page:
        where = f"{self.model} at {self.site}" if self.site else self.model or "activations"
        title = f"{self.size:,} features ({self.kind}) of {where}"
        last = self.points[-1]
        summary = (
            f"{pluralize(last.rows, 'row')} of {self.width} numbers in {last.step:,} steps, {self.seconds:.0f} s. On "
            f"held-out rows it explains {1 - last.unexplained:.1%} of the variance with {last.active:.1f} active features; "
            f"{pluralize(last.dead, 'feature')} {'is' if last.dead == 1 else 'are'} dead."
        )
        charts = (
            ("loss", "loss"), ("unexplained", "unexplained variance of held-out rows"), ("active", "active features"),
            ("dead", "dead features"),
        )  # fmt: skip
        columns = tuple(Column(name, "number") for name in ("step", "loss", "unexplained", "active", "dead", "revived"))
        rows = [
            TableRow(
                (f"{p.step:,}", f"{p.loss:.4f}", f"{p.unexplained:.1%}", f"{p.active:.1f}", f"{p.dead:,}", f"{p.revived:,}")
            )
            for p in self.points
        ]
        return Page.titled(
            title,
            Paragraph(summary),
            *(LineChart(label, (_line(self, name, label),), "step", from_zero=True) for name, label in charts),
            Table(columns, tuple(rows) if everything else elide_middle(rows, MAX_ROWS)),
        )


def _line(view: FeatureTraining, name: str, label: str) -> Line:
    return Line(label, tuple((float(point.step), float(getattr(point, name))) for point in view.points))
