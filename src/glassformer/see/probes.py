"""Linear probes: what can be read off a site by a straight cut (Alain and Bengio 2016).

Of each text one vector is taken, that of its last token or the mean of all, and a multinomial logistic regression is fitted
to the labels. What counts is the accuracy on texts that were held out, beside two others: always saying the commonest label,
and a control, the same probe fitted to shuffled labels (after Hewitt and Liang 2019), which says what a probe of this size
makes of nothing at all.

Shapes: vectors (texts, width); weight (labels, width), bias (labels).
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.ground.arguments import checked_class
from glassformer.ground.errors import InputError, SiteError, did_you_mean, reason_of
from glassformer.ground.operations import operation
from glassformer.ground.progress import Progress
from glassformer.ground.typecheck import brief
from glassformer.page.document import Column, Line, LineChart, Page, PagePart, Paragraph, Table
from glassformer.page.format import pluralize
from glassformer.see.protocols import ModelLike
from glassformer.see.tensor_files import load_tensors, model_metadata, save_maps
from glassformer.see.text_batches import batches_of_texts, token_sites
from glassformer.see.view import Floats, View

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
        best = self.best
        title = f"{self.model}: a linear probe at {pluralize(len(self.sites), 'site')}"
        labels = ", ".join(f"{label.label} ({label.texts:,})" for label in self.labels)
        where = "at the last token" if self.position == "last" else "as the mean of all tokens"
        about = f"{labels}; {where}; {pluralize(self.train, 'text')} to train on, {self.held_out:,} held out"
        parts: list[PagePart] = [Paragraph(about)]
        charts = curves(self)
        if charts is not None:
            parts.append(charts)
        table = Table.of(
            self.sites,
            (Column("site"), lambda site: site.site),
            (Column("held out", "number"), lambda site: f"{site.accuracy:.1%}"),
            (Column("", "bar", priority=5), lambda site: site.accuracy),
            (
                Column("95% interval", "number", priority=6),
                lambda site: "{:.0%}–{:.0%}".format(*self.interval(site.accuracy)),
            ),
            (Column("control", "number"), lambda site: f"{site.control:.1%}"),
            (Column("trained on", "number", priority=7), lambda site: f"{site.train_accuracy:.1%}"),
            style=lambda site: "chosen" if site == best else "",
        )
        note = (
            f"always saying the commonest label: {self.baseline:.1%} · control: the same probe of shuffled labels · "
            "interval: Wilson's, of the held-out accuracy · "
            f"best: {best.accuracy:.1%} at {best.site}"
        )
        return Page.titled(title, *parts, table, Paragraph(note, "dim"))

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


FORMAT = "glassformer.linear-probe/1"
MAX_LABELS = 1000
ITERATIONS = 200  # of L-BFGS, at most
Pooling: TypeAlias = Literal["last", "mean"]
Classes: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Probe:
    """A linear classifier over a site's values."""

    weight: Floats
    bias: Floats

    def scores(self, vectors: Floats) -> Floats:
        scores: Floats = vectors @ self.weight.T + self.bias
        return scores

    def accuracy(self, vectors: Floats, classes: Classes) -> float:
        return float((self.scores(vectors).argmax(1) == classes).mean())


@checked_class
@dataclass(frozen=True, eq=False, repr=False)
class TrainedProbes:
    """The probes of some sites; `view` shows how well each does."""

    model: ModelLike
    labels: tuple[str, ...]
    position: Pooling
    probes: Mapping[str, Probe]  # by site
    view: Probes | None = None  # of probes that were just trained

    def __repr__(self) -> str:
        return f"TrainedProbes({len(self.probes)} sites, labels {', '.join(self.labels)})"

    def direction(self, site: str, label: str | None = None) -> Floats:
        """The direction at a site, of length 1, along which a label gets likelier; of two labels, the second's by default.

        It is what `Change(onto=…)` and `Change(away_from=…)` take.
        """
        probe = self._probe(site)
        if label is None and len(self.labels) == 2:
            label = self.labels[1]
        if label not in self.labels:
            raise InputError(f"label is {label!r}; it must be one of {', '.join(map(repr, self.labels))}.")
        weight, index = probe.weight, self.labels.index(label)
        others = np.delete(weight, index, 0).mean(0)
        direction: Floats = weight[index] - others
        return direction / np.float32(max(float(np.linalg.norm(direction)), 1e-30))

    def predict(self, texts: Sequence[str], site: str) -> list[str]:
        """The label of each text, by the probe of a site."""
        probe = self._probe(site)
        vectors = text_vectors(self.model, texts, [site], self.position)[site]
        return [self.labels[index] for index in probe.scores(vectors).argmax(1)]

    def _probe(self, site: str) -> Probe:
        if site not in self.probes:
            raise SiteError(
                f"there is no probe of {site!r}.{did_you_mean(site, self.probes)} Sites: {', '.join(self.probes)}."
            )
        return self.probes[site]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write them as safetensors, with the digest of the model's weights."""
        more = {"labels": json.dumps(self.labels), "position": self.position}
        maps = {site: {"weight": probe.weight, "bias": probe.bias} for site, probe in self.probes.items()}
        return save_maps(path, maps, model_metadata(self.model, FORMAT, **more))


@operation(owner="model.read_many.probe", route="probe", name="view", is_property=True)
def measured_probes(probes: TrainedProbes) -> Probes:
    """Train a linear probe of labelled texts at each of some sites, and measure it on held-out ones."""
    assert probes.view is not None
    return probes.view


@operation()
def load_probes(model: ModelLike, path: str | os.PathLike[str]) -> TrainedProbes:
    """Linear probes of this model that were saved."""
    file = Path(path)
    arrays, metadata = load_tensors(file, FORMAT, model)
    try:
        labels = json.loads(metadata["labels"])
        position: Pooling = "mean" if metadata["position"] == "mean" else "last"
        if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
            raise ValueError("labels")
        sites = [name.removesuffix(".weight") for name in arrays if name.endswith(".weight")]
        shapes = token_sites(model, sites)
        probes = {site: Probe(arrays[f"{site}.weight"], arrays[f"{site}.bias"]) for site in sites}
        for site, probe in probes.items():
            if probe.weight.shape != (len(labels), int(np.prod(shapes[site]))) or probe.bias.shape != (len(labels),):
                raise ValueError(site)
    except (KeyError, ValueError, RecursionError) as error:
        raise InputError(f"{file}: damaged ({reason_of(error)}). Train the probes again.") from error
    return TrainedProbes(model, tuple(labels), position, probes)


def train_probes(
    model: ModelLike, texts: Iterable[str], labels: Sequence[str], patterns: Sequence[str], *, length: int | None,
    position: Pooling, held_out: float, penalty: float, seed: int, progress: Progress | None,
) -> TrainedProbes:  # fmt: skip
    """A probe for each site, each with its accuracy on held-out texts, and what a control gives."""
    names, classes = _classes(labels, len(texts) if isinstance(texts, Sized) else None)
    if not 0 < held_out < 1:
        raise InputError(f"held_out is {held_out}; it must be a share between 0 and 1.")
    if not penalty > 0:
        raise InputError(f"penalty is {penalty}; it must be above 0.")
    train, test = split(classes, held_out, seed)
    sites = list(token_sites(model, patterns))
    vectors = text_vectors(model, texts, sites, position, length, progress, count=len(classes))
    shuffled = np.random.default_rng(seed + 1).permutation(classes)
    probes, rows = {}, []
    for site in sites:
        trained, held = vectors[site][train], vectors[site][test]
        probe = probes[site] = fit_probe(trained, classes[train], len(names), penalty)
        control = fit_probe(trained, shuffled[train], len(names), penalty).accuracy(held, shuffled[test])
        rows.append(SiteProbe(site, probe.accuracy(held, classes[test]), probe.accuracy(trained, classes[train]), control))
    commonest = np.bincount(classes[train], minlength=len(names)).argmax()
    counts = tuple(LabelCount(name, int((classes == index).sum())) for index, name in enumerate(names))
    baseline = float((classes[test] == commonest).mean())
    view = Probes(model.name, position, counts, len(train), len(test), baseline, tuple(rows))
    return TrainedProbes(model, names, position, probes, view)


def text_vectors(
    model: ModelLike,
    texts: Iterable[str],
    patterns: Sequence[str],
    position: Pooling,
    length: int | None = None,
    progress: Progress | None = None,
    count: int | None = None,
) -> dict[str, Floats]:
    """One vector of each text at each site; `count`: how many texts there must be."""
    sites = token_sites(model, patterns)
    vectors: dict[str, list[Floats]] = {site: [] for site in sites}
    for batch, parts in batches_of_texts(model, texts, sites, length, progress):
        pooled = {site: np.zeros((len(batch), int(np.prod(shape))), np.float32) for site, shape in sites.items()}
        for part in parts:
            tokens = len(batch[part.text_index].ids)
            for site, values in part.values.items():
                rows = values.reshape(len(values), -1)
                if position == "mean":
                    pooled[site][part.text_index] += rows.sum(0) / np.float32(tokens)
                elif part.start + len(rows) == tokens:
                    pooled[site][part.text_index] = rows[-1]
        for site, rows in pooled.items():
            vectors[site].append(rows)
    joined = {site: np.concatenate(rows) for site, rows in vectors.items()}
    read = len(next(iter(joined.values())))
    if count is not None:
        _check_count(count, read)
    return joined


def fit_probe(vectors: Floats, classes: Classes, labels: int, penalty: float) -> Probe:
    """A multinomial logistic regression over standardized values, with a penalty on the squares of its weights.

    It minimizes the sum of cross-entropies + penalty / 2 · |weight|², by L-BFGS in float64.
    """
    import torch
    from torch.nn.functional import cross_entropy

    from glassformer.see.fit import fit

    values = torch.from_numpy(vectors.astype(np.float64))
    mean, deviation = values.mean(0), values.std(0, correction=0).clamp(min=1e-8)
    values, targets = (values - mean) / deviation, torch.from_numpy(classes)
    weight = torch.zeros(labels, values.shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(labels, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def losses(step: int) -> Iterator[torch.Tensor]:
        yield cross_entropy(values @ weight.T + bias, targets, reduction="sum") + penalty / 2 * (weight * weight).sum()

    fit(optimizer, losses)
    scaled = weight.detach() / deviation
    return Probe(scaled.float().numpy(), (bias.detach() - scaled @ mean).float().numpy())


def split(classes: Classes, share: float, seed: int) -> tuple[Classes, Classes]:
    """The numbers of the texts to train on, and of those held out: of each label the same share, and at least one."""
    random = np.random.default_rng(seed)
    held: list[int] = []
    for index in range(int(classes.max()) + 1):
        labelled = random.permutation(np.flatnonzero(classes == index))
        held += labelled[: min(len(labelled) - 1, max(1, round(share * len(labelled))))].tolist()
    test = np.array(sorted(held), np.int64)
    return np.setdiff1d(np.arange(len(classes)), test), test


def _check_count(labels: int, texts: int) -> None:
    if labels != texts:
        raise InputError(f"{pluralize(labels, 'label')} for {pluralize(texts, 'text')}: give one for each.")


def _classes(labels: Sequence[str], texts: int | None) -> tuple[tuple[str, ...], Classes]:
    """The labels' names, sorted, and the number of each text's; `texts`: how many there are, where that is known."""
    if isinstance(labels, (str, bytes)) or not all(isinstance(label, str) for label in labels):
        raise InputError(f"labels is {brief(labels)}; it must be a list of strings, one for each text.")
    if texts is not None:
        _check_count(len(labels), texts)
    counts = Counter(labels)
    names = tuple(sorted(counts))
    if not 2 <= len(names) <= MAX_LABELS:
        raise InputError(f"there are {len(names)} different labels; a probe tells 2 to {MAX_LABELS:,} apart.")
    if rare := [name for name in names if counts[name] < 2]:
        raise InputError(f"the label {rare[0]!r} has one text alone, and needs another to be held out. Give it more.")
    numbers = {name: index for index, name in enumerate(names)}
    return names, np.array([numbers[label] for label in labels], np.int64)
