"""What many texts have in common at some sites: how large activations are, and where each neuron is strongest."""

from __future__ import annotations

from dataclasses import dataclass

from glassformer.page.document import Column, Heading, Page, PagePart, Paragraph, Table, TableRow
from glassformer.page.format import pluralize, reveal_line, visible
from glassformer.views.view import View

EXAMPLES = 3  # of a neuron that are shown, unless everything is
SITES = 4  # whose neurons are shown


@dataclass(frozen=True)
class NeuronExample:
    """A place where a neuron is strong."""

    value: float
    text: int  # its number, from 0
    position: int
    token: str
    before: str  # some of the text before the token
    after: str


@dataclass(frozen=True)
class NeuronStatistics:
    """One number of a site's values."""

    neuron: int
    mean: float
    deviation: float
    examples: tuple[NeuronExample, ...]  # the strongest first


@dataclass(frozen=True)
class SiteStatistics:
    site: str
    width: int
    rows: int  # tokens
    size: float  # of a token's vector: the root of its mean square
    mean_size: float  # of the mean vector
    neurons: tuple[NeuronStatistics, ...]  # those that stand out, or that were named


@dataclass(frozen=True)
class ActivationStatistics(View):
    """Means, deviations and the strongest examples of neurons, over many texts."""

    SCHEMA = "glassformer.activation-statistics/1"

    model: str
    texts: int
    tokens: int
    sites: tuple[SiteStatistics, ...]

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    def __repr__(self) -> str:
        return f"ActivationStatistics({self.texts:,} texts, {len(self.sites)} sites)"


def draw(view: ActivationStatistics, everything: bool = False) -> Page:
    title = f"{view.model}: activations of {pluralize(view.texts, 'text')}, {pluralize(view.tokens, 'token')}"
    most = max((site.size for site in view.sites), default=1.0) or 1.0
    columns = (
        Column("site"), Column("width", "number", priority=7), Column("size", "number"), Column("", "bar", priority=5),
        Column("size of mean", "number", priority=6),
    )  # fmt: skip
    rows = tuple(
        TableRow((site.site, f"{site.width:,}", f"{site.size:.2f}", site.size / most, f"{site.mean_size:.2f}"))
        for site in view.sites
    )
    parts: list[PagePart] = [
        Heading(title),
        Table(columns, rows),
        Paragraph(
            "size: the root of the mean square of a token's vector; a large mean is a direction that all share", "dim"
        ),
    ]
    shown = view.sites if everything else view.sites[:SITES]
    for site in shown:
        parts += site_parts(site, everything)
    if len(shown) < len(view.sites):
        parts.append(Paragraph(f"{pluralize(len(view.sites) - len(shown), 'more site')} (--all)", "dim"))
    return Page(title, tuple(parts))


def site_parts(site: SiteStatistics, everything: bool) -> list[PagePart]:
    """The neurons of a site."""
    columns = (
        Column("neuron", "number"), Column("mean ± deviation", "number", priority=6), Column("value", "number"),
        Column("token", "token", min_width=8), Column("where", min_width=12, keep_end=True),
        Column("text", "number", priority=4),
    )  # fmt: skip
    rows = []
    for neuron in site.neurons:
        for number, example in enumerate(neuron.examples if everything else neuron.examples[:EXAMPLES]):
            first = number == 0
            about = f"{neuron.mean:.2f} ± {neuron.deviation:.2f}" if first else ""
            where = reveal_line(f"{example.before}[{example.token}]{example.after}")
            cells = (str(neuron.neuron) if first else "", about, f"{example.value:.2f}", visible(example.token), where)
            rows.append(TableRow((*cells, str(example.text)), "" if first else "dim"))
    return [Heading(f"{site.site}: the neurons' strongest tokens"), Table(columns, tuple(rows))]
