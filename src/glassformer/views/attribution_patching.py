"""Attribution patching: what patching each place would recover, estimated for all places at once by gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.ground.arguments import checked
from glassformer.page.document import Column, Heading, Page, PagePart, Paragraph, Table, TableRow
from glassformer.page.format import visible
from glassformer.views.patching import PatchedPlace, Patching
from glassformer.views.view import ArrayView

MAX_MISSES = 10  # unless everything is shown
EXPLANATION = (
    "estimated from one backward pass, to first order: (the first text's value − the second's) · the second's gradient"
)


@dataclass(frozen=True)
class EstimateMiss:
    """A place, what was estimated for it, and what patching it gave."""

    layer: str
    place: str  # the token at it, or the head
    position: int | None  # None: a head
    estimate: float
    patched: float


@dataclass(frozen=True)
class EstimateCheck:
    """How good an estimate is: beside true patching."""

    patching: Patching
    correlation: float | None  # of all places' estimates with what patching gave; None: one of them is the same everywhere
    mean_error: float  # the mean distance between them
    misses: tuple[EstimateMiss, ...]  # all places, the largest errors first


@dataclass(frozen=True)
class AttributionPatching(ArrayView):
    """What patching each place would recover, estimated by gradients."""

    SCHEMA = "glassformer.attribution-patching/1"

    estimate: Patching
    check: EstimateCheck | None  # on request

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    @property
    def cells(self) -> list[PatchedPlace]:
        """All places with their estimates, the largest first, in either direction."""
        return self.estimate.cells

    def at(self, layer: int | str, column: int) -> float:
        """One estimate: after or in this layer (or 'embedding'), at this position of the text, or in this head."""
        return self.estimate.at(layer, column)

    def numbers(self) -> npt.NDArray[np.float64]:
        return self.estimate.numbers()

    @checked
    def records(self) -> list[dict[str, Any]]:
        return self.estimate.records()

    def __repr__(self) -> str:
        view = self.estimate
        found = "" if self.check is None or self.check.correlation is None else f", correlation {self.check.correlation:.3f}"
        return f"AttributionPatching({len(view.layers)} × {len(view.columns)} {view.part}{found})"


def draw(view: AttributionPatching, everything: bool = False) -> Page:
    page = view.estimate.page(everything)
    title, parts = f"{page.title}: an estimate", list(page.body)
    return Page(title, (Heading(title), Paragraph(EXPLANATION, "dim"), *parts, *_check(view.check, everything)))


def _check(check: EstimateCheck | None, everything: bool) -> tuple[PagePart, ...]:
    if check is None:
        return (Paragraph("How good the estimate is, patching itself tells: --check, or check=True.", "dim"),)
    correlation = "undefined" if check.correlation is None else f"{check.correlation:.3f}"
    is_head = check.misses[0].position is None
    columns = [Column("layer", "number"), Column("head" if is_head else "position", "number")]
    columns += [] if is_head else [Column("token", "token", min_width=8)]
    columns += [Column("estimated", "number"), Column("patched", "number"), Column("error", "number")]
    rows = []
    for miss in check.misses if everything else check.misses[:MAX_MISSES]:
        where = (miss.place,) if is_head else (str(miss.position), visible(miss.place))
        numbers = (miss.estimate, miss.patched, miss.estimate - miss.patched)
        rows.append(TableRow((miss.layer, *where, *(f"{number:+.1%}" for number in numbers))))
    return (
        Heading("beside true patching"),
        Paragraph(f"correlation {correlation} · mean error {check.mean_error:.1%} of the answer's lead"),
        Paragraph("the largest misses", "dim"),
        Table(tuple(columns), tuple(rows)),
    )
