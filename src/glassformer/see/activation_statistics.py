"""What many texts have in common at some sites, in one pass and without keeping their activations.

Means and covariances are accumulated in float64 and merged batch by batch (Chan, Golub and LeVeque 1979), so that they do
not depend on how far the values are from zero. Of each neuron (a number of a site's last axes) the highest activations stay,
with the place where each was found.

Shapes: rows (tokens, width); moments (width) and (width, width); the best (width, examples).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from glassformer.ground.errors import InputError
from glassformer.ground.operations import about, described, operation
from glassformer.ground.progress import Progress
from glassformer.page.document import Column, Heading, Page, PagePart, Paragraph, Table, TableRow
from glassformer.page.format import pluralize, reveal_line, visible
from glassformer.see.protocols import ModelLike
from glassformer.see.tensor_files import model_metadata, save_tensors
from glassformer.see.text_batches import batches_of_texts, token_sites
from glassformer.see.tokens import token_text
from glassformer.see.view import Floats, View

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
        title = f"{self.model}: activations of {pluralize(self.texts, 'text')}, {pluralize(self.tokens, 'token')}"
        most = max((site.size for site in self.sites), default=1.0) or 1.0
        columns = (
            Column("site"), Column("width", "number", priority=7), Column("size", "number"), Column("", "bar", priority=5),
            Column("size of mean", "number", priority=6),
        )  # fmt: skip
        rows = tuple(
            TableRow((site.site, f"{site.width:,}", f"{site.size:.2f}", site.size / most, f"{site.mean_size:.2f}"))
            for site in self.sites
        )
        parts: list[PagePart] = [
            Table(columns, rows),
            Paragraph(
                "size: the root of the mean square of a token's vector; a large mean is a direction that all share", "dim"
            ),
        ]
        shown = self.sites if everything else self.sites[:SITES]
        for site in shown:
            parts += site_parts(site, everything)
        if len(shown) < len(self.sites):
            parts.append(Paragraph(f"{pluralize(len(self.sites) - len(shown), 'more site')} (--all)", "dim"))
        return Page.titled(title, *parts)

    def __repr__(self) -> str:
        return f"ActivationStatistics({self.texts:,} texts, {len(self.sites)} sites)"


def site_parts(site: SiteStatistics, everything: bool) -> list[PagePart]:
    """The neurons of a site."""
    columns = (
        Column("neuron", "number"), Column("mean ± deviation", "number", priority=6), Column("value", "number"),
        Column("token", "token", min_width=8), Column("where", min_width=12, keep_end=True),
        Column("text", "number", priority=4),
    )  # fmt: skip
    rows = []
    for neuron in site.neurons:
        for index, example in enumerate(neuron.examples if everything else neuron.examples[:EXAMPLES]):
            first = index == 0
            about = f"{neuron.mean:.2f} ± {neuron.deviation:.2f}" if first else ""
            where = reveal_line(f"{example.before}[{example.token}]{example.after}")
            cells = (str(neuron.neuron) if first else "", about, f"{example.value:.2f}", visible(example.token), where)
            rows.append(TableRow((*cells, str(example.text)), "" if first else "dim"))
    return [Heading(f"{site.site}: the neurons' strongest tokens"), Table(columns, tuple(rows))]


Numbers = npt.NDArray[np.float64]
FORMAT = "glassformer.text-statistics/1"
SHOWN = 8  # neurons of a site, unless others are named
CONTEXT = 8  # tokens before an example, and half as many after it


class Moments:
    """Mean and covariance of rows that come batch by batch; without `covariance`, the variance of each number alone."""

    def __init__(self, width: int, covariance: bool) -> None:
        self.count = 0
        self.mean: Numbers = np.zeros(width)
        self.scatter: Numbers = np.zeros((width, width) if covariance else width)  # sums of products of deviations

    def add(self, rows: Floats) -> None:
        values = rows.astype(np.float64)
        count, mean = len(values), values.mean(0)
        centered, shift = values - mean, mean - self.mean
        total = self.count + count
        weight = self.count * count / total
        if self.scatter.ndim == 2:
            self.scatter += centered.T @ centered + np.outer(shift, shift) * weight
        else:
            self.scatter += (centered * centered).sum(0) + shift * shift * weight
        self.mean += shift * (count / total)
        self.count = total

    @property
    def covariance(self) -> Numbers:
        """As numpy.cov gives it; the variances alone, where no more was accumulated."""
        scaled: Numbers = self.scatter / max(1, self.count - 1)
        return scaled

    @property
    def deviation(self) -> Numbers:
        variances = np.diagonal(self.covariance) if self.scatter.ndim == 2 else self.covariance
        deviations: Numbers = np.sqrt(variances)
        return deviations


class Highest:
    """The highest values of each neuron, and in which text and at which position each stands; ties go to the first."""

    def __init__(self, width: int, examples: int) -> None:
        self.values: Floats = np.full((width, examples), -np.inf, np.float32)
        self.texts = np.full((width, examples), -1, np.int64)
        self.positions = np.full((width, examples), -1, np.int64)

    def add(self, rows: Floats, text: int, start: int) -> None:
        examples = self.values.shape[1]
        few = min(examples, len(rows))
        positions = np.argsort(-rows, axis=0, kind="stable")[:few].T
        values = np.concatenate((self.values, np.take_along_axis(rows, positions.T, 0).T), 1)
        texts = np.concatenate((self.texts, np.full(positions.shape, text)), 1)
        positions = np.concatenate((self.positions, positions + start), 1)
        order = np.lexsort((positions, texts, -values), axis=1)[:, :examples]
        self.values, self.texts, self.positions = (
            np.take_along_axis(array, order, 1) for array in (values, texts, positions)
        )


@dataclass(frozen=True, eq=False)
class TextStatistics:
    """The statistics of some sites over many texts, as arrays; `view` shows some of it."""

    model: ModelLike
    ids: Sequence[npt.NDArray[np.int32]]  # of each text
    moments: Mapping[str, Moments]
    highest: Mapping[str, Highest]

    def __repr__(self) -> str:
        return f"TextStatistics({len(self.ids):,} texts, {len(self.moments)} sites)"

    def save(self, path: Path) -> Path:
        """Write all of it as safetensors: SITE.mean, SITE.covariance (or .variance), SITE.values, .texts and .positions."""
        arrays: dict[str, npt.NDArray[Any]] = {}
        for site, moments in self.moments.items():
            arrays[f"{site}.mean"] = moments.mean
            arrays[f"{site}.{'covariance' if moments.scatter.ndim == 2 else 'variance'}"] = moments.covariance
            for name in ("values", "texts", "positions"):
                arrays[f"{site}.{name}"] = getattr(self.highest[site], name)
        count = next(iter(self.moments.values())).count
        save_tensors(path, arrays, model_metadata(self.model, FORMAT, rows=str(count)))
        return path

    @operation(owner="model.read_many.statistics", route="activations")
    @described
    def view(
        self,
        neurons: Annotated[
            Sequence[int] | None,
            about("These of each site; by default those that stand out most.", served_minimum=0, served_items=(0, 64)),
        ] = None,
    ) -> ActivationStatistics:
        """Show what texts have in common at some sites: means, deviations, and where neurons are strongest."""
        sites = tuple(self._site(site, neurons) for site in self.moments)
        return ActivationStatistics(self.model.name, len(self.ids), sum(map(len, self.ids)), sites)

    def _site(self, site: str, neurons: Sequence[int] | None) -> SiteStatistics:
        moments, highest = self.moments[site], self.highest[site]
        width, deviation = len(moments.mean), moments.deviation
        if wrong := [neuron for neuron in neurons or () if not 0 <= neuron < width]:
            raise InputError(f"there is no neuron {wrong[0]} at {site}: there are {width}, 0 to {width - 1}.")
        if neurons is None:
            above = (highest.values[:, 0] - moments.mean) / np.maximum(deviation, 1e-12)
            neurons = np.argsort(-above, kind="stable")[:SHOWN].tolist()
        chosen = tuple(self._neuron(highest, neuron, moments.mean[neuron], deviation[neuron]) for neuron in neurons)
        size = float(np.sqrt((moments.mean**2).sum() + (deviation**2).sum()))
        return SiteStatistics(site, width, moments.count, size, float(np.linalg.norm(moments.mean)), chosen)

    def _neuron(self, highest: Highest, neuron: int, mean: float, deviation: float) -> NeuronStatistics:
        examples = tuple(
            self._example(float(value), int(text), int(position))
            for value, text, position in zip(
                highest.values[neuron], highest.texts[neuron], highest.positions[neuron], strict=True
            )
            if text >= 0
        )
        return NeuronStatistics(neuron, float(mean), float(deviation), examples)

    def _example(self, value: float, text: int, position: int) -> NeuronExample:
        ids = self.ids[text].tolist()
        tokenizer = self.model.tokenizer
        before = tokenizer.decode(ids[max(0, position - CONTEXT) : position])
        after = tokenizer.decode(ids[position + 1 : position + 1 + CONTEXT // 2])
        return NeuronExample(value, text, position, token_text(tokenizer, ids[position]), before, after)


def text_statistics(
    model: ModelLike, texts: Iterable[str], patterns: Sequence[str], *, length: int | None, examples: int, covariance: bool,
    progress: Progress | None,
) -> TextStatistics:  # fmt: skip
    """Means, deviations or covariances, and each neuron's strongest examples, over all tokens of many texts."""
    if examples < 1:
        raise InputError(f"examples is {examples}; of each neuron at least one is kept.")
    sites = token_sites(model, patterns)
    widths = {site: int(np.prod(shape)) for site, shape in sites.items()}
    moments = {site: Moments(width, covariance) for site, width in widths.items()}
    highest = {site: Highest(width, examples) for site, width in widths.items()}
    ids: list[npt.NDArray[np.int32]] = []
    for batch, parts in batches_of_texts(model, texts, sites, length, progress):
        first = len(ids)
        ids += [np.array(text.ids, np.int32) for text in batch]
        for part in parts:
            for site, values in part.values.items():
                rows = values.reshape(len(values), -1)
                moments[site].add(rows)
                highest[site].add(rows, first + part.text_index, part.start)
    return TextStatistics(model, ids, moments, highest)
