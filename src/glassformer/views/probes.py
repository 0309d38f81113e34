"""Linear probes: from which layer on something about a text can be read off its activations."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from glassformer.page.document import Column, Heading, Line, LineChart, Page, PagePart, Paragraph, Table, TableRow
from glassformer.page.format import pluralize
from glassformer.views.view import View

DEVIATIONS = 1.959964  # standard ones on either side that hold 95 % of a normal distribution
BLOCK = re.compile(r"(encoder\.)?blocks\.(\d+)\.(.+)")


@dataclass(frozen=True)
class LabelCount:
    label: str
    texts: int


@dataclass(frozen=True)
class SiteProbe:
    """How well a probe of one site does."""

    site: str
    accuracy: float  # on held-out texts
    train_accuracy: float
    control: float  # of the same probe fitted to shuffled labels, on held-out texts


@dataclass(frozen=True)
class Probes(View):
    """The held-out accuracy of a linear probe at each of some sites."""

    SCHEMA = "glassformer.probes/1"
    RECORDS = "sites"

    model: str
    position: str  # which vector of a text is read: the 'last' token's, or the 'mean' of all
    labels: tuple[LabelCount, ...]
    train: int  # texts
    held_out: int  # texts
    baseline: float  # what always saying the commonest label gives, on held-out texts
    sites: tuple[SiteProbe, ...]

    def page(self, everything: bool = False) -> Page:
        return draw(self)

    @property
    def best(self) -> SiteProbe:
        """The first site of the highest held-out accuracy."""
        return max(self.sites, key=lambda site: site.accuracy)

    def interval(self, accuracy: float) -> tuple[float, float]:
        """The 95 % confidence interval of an accuracy on the held-out texts (Wilson 1927).

        Unlike the standard error it does not shrink to nothing where all of a few texts are right.
        """
        count, squared = self.held_out, DEVIATIONS * DEVIATIONS
        middle = accuracy + squared / (2 * count)
        half = DEVIATIONS * math.sqrt(accuracy * (1 - accuracy) / count + squared / (4 * count * count))
        low, high = ((middle + side) / (1 + squared / count) for side in (-half, half))
        return max(0.0, low), min(1.0, high)

    def __repr__(self) -> str:
        return f"Probes({len(self.sites)} sites, best {self.best.accuracy:.1%} at {self.best.site})"


def draw(view: Probes) -> Page:
    best = view.best
    title = f"{view.model}: a linear probe at {pluralize(len(view.sites), 'site')}"
    labels = ", ".join(f"{label.label} ({label.texts:,})" for label in view.labels)
    where = "at the last token" if view.position == "last" else "as the mean of all tokens"
    about = f"{labels}; {where}; {pluralize(view.train, 'text')} to train on, {view.held_out:,} held out"
    parts: list[PagePart] = [Heading(title), Paragraph(about)]
    charts = curves(view)
    if charts is not None:
        parts.append(charts)
    columns = (
        Column("site"), Column("held out", "number"), Column("", "bar", priority=5),
        Column("95% interval", "number", priority=6), Column("control", "number"),
        Column("trained on", "number", priority=7),
    )  # fmt: skip
    rows = tuple(
        TableRow(
            (
                site.site,
                f"{site.accuracy:.1%}",
                site.accuracy,
                "{:.0%}–{:.0%}".format(*view.interval(site.accuracy)),
                f"{site.control:.1%}",
                f"{site.train_accuracy:.1%}",
            ),
            "chosen" if site == best else "",
        )
        for site in view.sites
    )
    note = (
        f"always saying the commonest label: {view.baseline:.1%} · control: the same probe of shuffled labels · "
        "interval: Wilson's, of the held-out accuracy · "
        f"best: {best.accuracy:.1%} at {best.site}"
    )
    return Page(title, (*parts, Table(columns, rows), Paragraph(note, "dim")))


def curves(view: Probes) -> LineChart | None:
    """Accuracy over layers, a line for each kind of site; none where there are fewer than two layers."""
    kinds: dict[str, list[tuple[float, SiteProbe]]] = {}
    for site in view.sites:
        if match := BLOCK.fullmatch(site.site):
            kinds.setdefault(f"{match[1] or ''}{match[3]}", []).append((float(match[2]), site))
    lines = []
    for kind, points in kinds.items():
        if len(points) > 1:
            lines.append(Line(kind, tuple((layer, site.accuracy) for layer, site in points), marked=True))
            lines.append(Line(f"{kind}, control", tuple((layer, site.control) for layer, site in points)))
    if not lines:
        return None
    layers = [x for line in lines for x, _ in line.points]
    lines.append(Line("commonest label", ((min(layers), view.baseline), (max(layers), view.baseline))))
    return LineChart("held-out accuracy", tuple(lines), "layer", from_zero=True)
