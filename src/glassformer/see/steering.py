"""Steering vectors from pairs of texts: where the first of each pair has what the second lacks, as a direction.

The mean difference is that of Rimsky et al. (2023, https://arxiv.org/abs/2312.06681); the principal component that of Zou
et al. (2023, https://arxiv.org/abs/2310.01405), here of the differences as they are, not centred, since what all pairs share
is what is looked for. A pair's projection is how far its first text lies from its second along the vector, in lengths of the
vector: 1 is the typical difference, and below 0 the pair disagrees.

Shapes: differences (pairs, numbers of one token at the site).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, Unpack

import numpy as np

from glassformer.ground.errors import GlassError, InputError
from glassformer.ground.operations import operation
from glassformer.ground.progress import Progress
from glassformer.ground.typecheck import OWN_CHECK, brief
from glassformer.page.document import Column, Page, PagePart, Paragraph, Table, TableRow, elide_middle
from glassformer.page.format import pluralize, visible
from glassformer.see.activations import Activations
from glassformer.see.protocols import ModelLike
from glassformer.see.reading import read
from glassformer.see.view import Floats, View
from glassformer.steering.library import Library
from glassformer.steering.vector import SteeringVector, token_site
from glassformer.text.prompt import Prompt, PromptKeywords, PromptOptions, prompt_texts

SteeringMethod: TypeAlias = Literal["mean", "pca"]
SteeringTokens: TypeAlias = Literal["last", "all"]
MAX_ROWS = 20
METHODS = {"mean": "the mean of the differences", "pca": "the first principal component of the differences"}


@dataclass(frozen=True)
class SteeringDirection:
    """The direction at one site."""

    site: str
    norm: float
    stream: float  # the mean length of a token's numbers there
    agreement: float  # the fraction of the pairs whose first text lies further along it than their second
    held_out: float | None  # the same for each pair by the vector of all others; None: there is only one pair


@dataclass(frozen=True)
class SteeringPair:
    """A pair of texts, and how far they lie apart along the direction, at each site."""

    positive: str
    negative: str
    projections: tuple[float, ...]


@dataclass(frozen=True)
class MadeSteeringVector(View):
    """A steering vector that was made from pairs of texts."""

    SCHEMA = "glassformer.steering-vector/1"

    model: str
    method: SteeringMethod
    tokens: SteeringTokens
    directions: tuple[SteeringDirection, ...]
    pairs: tuple[SteeringPair, ...]
    vector: Any = field(repr=False, compare=False, metadata={"stored": False})  # what `save` writes

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the vector itself as .safetensors; or this view of it: .json, .html or .txt."""
        return Path(self.vector.save(path)) if Path(path).suffix == ".safetensors" else super().save(path)

    def page(self, everything: bool = False) -> Page:
        title = f"a steering vector of {self.model} from {pluralize(len(self.pairs), 'pair')}"
        read = "the last token" if self.tokens == "last" else "all tokens"
        columns = (
            Column("site"), Column("length", "number"), Column("of the stream", "number", priority=5),
            Column("pairs agree", "number"), Column("held out", "number"),
        )  # fmt: skip
        rows = [
            TableRow((each.site, f"{each.norm:.3g}", f"{each.norm / each.stream:.0%}" if each.stream else "–",
                      f"{each.agreement:.0%}", "–" if each.held_out is None else f"{each.held_out:.0%}"))
            for each in self.directions
        ]  # fmt: skip
        parts: list[PagePart] = [
            Paragraph(f"{METHODS[self.method].capitalize()}, read at {read} of each text."),
            Table(columns, tuple(rows) if everything else elide_middle(rows, MAX_ROWS)),
        ]
        best = max(range(len(self.directions)), key=lambda n: self.directions[n].agreement)
        most = max((abs(pair.projections[best]) for pair in self.pairs), default=1.0) or 1.0
        pairs = [
            TableRow((visible(pair.positive), visible(pair.negative), f"{pair.projections[best]:.2f}",
                      pair.projections[best] / most))
            for pair in self.pairs
        ]  # fmt: skip
        parts += [
            Paragraph(f"How far the texts of each pair lie apart along it at {self.directions[best].site}:"),
            Table(
                (Column("with", min_width=12), Column("without", min_width=12), Column("apart", "number"),
                 Column("", "signed bar", priority=4)),
                tuple(pairs) if everything else elide_middle(pairs, MAX_ROWS),
            ),
        ]  # fmt: skip
        return Page.titled(title, *parts)


@dataclass(frozen=True)
class KnownVector:
    """A steering vector that can be named."""

    name: str
    sites: tuple[str, ...]
    norm: float
    made_with: str  # the model; of a control vector, what it says it is for
    method: str
    pairs: int
    problem: str | None  # why it cannot be used with this model


@dataclass(frozen=True)
class SteeringVectors(View):
    """The steering vectors that there are, and whether they fit a model."""

    SCHEMA = "glassformer.steering-vectors/1"

    model: str
    vectors: tuple[KnownVector, ...]

    def page(self, everything: bool = False) -> Page:
        title = f"steering vectors for {self.model}"
        if not self.vectors:
            return Page.titled(title, Paragraph("There are none. glass steer make makes one from pairs of texts."))
        rows = [
            TableRow((each.name, _sites(each.sites), f"{each.norm:.3g}", str(each.pairs or "–"), each.problem or "fits"),
                     "dim" if each.problem else "")
            for each in self.vectors
        ]  # fmt: skip
        columns = (
            Column("name"), Column("site", min_width=10), Column("length", "number", priority=5),
            Column("pairs", "number", priority=4), Column("this model", min_width=10, wraps=True),
        )  # fmt: skip
        return Page.titled(title, Table(columns, tuple(rows)))


def _sites(sites: tuple[str, ...]) -> str:
    return sites[0] if len(sites) == 1 else f"{sites[0]} and {len(sites) - 1} more"


MAX_PAIRS = 10_000


@operation()
def steering(
    model: ModelLike,
    pairs: Annotated[Sequence[tuple[Prompt, Prompt]], OWN_CHECK],
    site: str,
    *,
    tokens: SteeringTokens = "last",
    method: SteeringMethod = "mean",
    progress: Progress | None = None,
    **prompt_options: Unpack[PromptKeywords],
) -> MadeSteeringVector:
    """A steering vector from pairs of texts, of which the first has what the second lacks; `.save` writes it.

    Args:
        site: where it is read and will be added: `blocks.12.residual`, or a pattern for several.
        tokens: what is read of each text: its last token, or the mean of all.
        method: the mean of the pairs' differences, or their first principal component, of the same length.
        progress: called as (pairs so far, total).
    """
    PromptOptions.of(prompt_options, steering)
    pairs = _checked_pairs(pairs)
    if method not in METHODS or tokens not in ("last", "all"):
        raise InputError("a steering vector's method is 'mean' or 'pca', and its tokens are 'last' or 'all'.")
    sites = [name for name in model.blueprint.site_names.expand([site]) if "*" not in site or _has_tokens(model, name)]
    axes = {name: token_site(model.blueprint, name, model.name)[0] for name in sites}
    differences: dict[str, list[Floats]] = {name: [] for name in sites}
    lengths: dict[str, list[float]] = {name: [] for name in sites}
    texts = []
    for done, pair in enumerate(pairs, 1):
        readings = [read(model, text, **prompt_options) for text in pair]
        texts.append([_shown_text(*each) for each in zip(pair, readings, strict=True)])
        positive, negative = (_token_values(reading, axes, tokens) for reading in readings)
        for name in sites:
            differences[name].append(positive[name] - negative[name])
            lengths[name] += [float(np.linalg.norm(positive[name])), float(np.linalg.norm(negative[name]))]
        if progress is not None:
            progress(done, len(pairs))
    directions, infos, projections = {}, [], []
    for name in sites:
        stacked = np.stack(differences[name])
        flat = stacked.reshape(len(pairs), -1)
        direction = _direction(flat, method)
        size = float(direction @ direction)
        if not size > 0 or not np.isfinite(size):
            raise InputError(f"the texts of the pairs do not differ at {name}, so there is no direction. Give others.")
        directions[name] = direction.reshape(stacked.shape[1:])
        along = flat @ direction / size
        projections.append(along)
        infos.append(
            SteeringDirection(
                name, size**0.5, float(np.mean(lengths[name])), float((along > 0).mean()), _held_out(flat, method)
            )
        )
    vector = SteeringVector(directions, model.name, model.weights_digest, method, tokens, len(pairs))
    rows = tuple(
        SteeringPair(texts[index][0], texts[index][1], tuple(float(along[index]) for along in projections))
        for index in range(len(pairs))
    )
    return MadeSteeringVector(model.name, method, tokens, tuple(infos), rows, vector)


@operation(route="steering", passes=False)
def steering_vectors(model: ModelLike) -> SteeringVectors:
    """List the steering vectors that can be named, and whether each fits the model."""
    library = model.library
    return SteeringVectors(model.name, tuple(_known_vector(model, library, name) for name in sorted(library.vectors())))


def _known_vector(model: ModelLike, library: Library, name: str) -> KnownVector:
    try:
        vector = library.vector(name)
    except GlassError as error:
        return KnownVector(name, (), 0.0, "", "", 0, str(error))
    problem = None
    try:
        if vector.weights is not None:
            vector.check_weights(model.name, model.weights_digest)
        vector.changes(1.0, model.blueprint, model.name)
    except GlassError as error:
        problem = str(error)
    return KnownVector(name, tuple(vector.directions), vector.norm, vector.model, vector.method, vector.pairs, problem)


def _checked_pairs(pairs: Any) -> list[tuple[Any, Any]]:
    if isinstance(pairs, (str, bytes)) or not isinstance(pairs, Sequence):
        raise InputError(f"pairs are a list of two texts each, the one with and the one without; not {brief(pairs)}.")
    for index, pair in enumerate(pairs):
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise InputError(f"pair {index} is {brief(pair)}; it must be two texts, the one with and the one without.")
    if not 1 <= len(pairs) <= MAX_PAIRS:
        raise InputError(f"a steering vector is made from 1 to {MAX_PAIRS:,} pairs of texts, not from {len(pairs)}.")
    return [(first, second) for first, second in pairs]


def _has_tokens(model: ModelLike, site: str) -> bool:
    """Whether a site that a pattern means exists in this model; one without numbers for each token is still refused."""
    return site in model.blueprint.sites


def _token_values(reading: Activations, axes: dict[str, int], tokens: SteeringTokens) -> dict[str, Floats]:
    """At each site, the last token's numbers, or the mean of all tokens'.

    The first token is left out of the mean: in most decoders its numbers are huge whatever it is, since others attend to it
    where they have nothing to attend to, and texts of different lengths would differ by it alone.
    """
    values = {name: np.moveaxis(value, axes[name], 0) for name, value in reading.values(*axes).items()}
    only_last = {name: tokens == "last" or len(value) == 1 for name, value in values.items()}
    return {name: value[-1] if only_last[name] else value[1:].mean(axis=0) for name, value in values.items()}


def _shown_text(prompt: Any, reading: Activations) -> str:
    """A text as it was given, without what the chat template puts around it; of token ids, what they stand for."""
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], Mapping)):
        return "\n".join(prompt_texts(prompt))
    return str(reading.model.tokenizer.decode(reading.source or reading.ids))


def _direction(differences: Floats, method: SteeringMethod) -> Floats:
    mean: Floats = differences.mean(axis=0)
    if method == "mean":
        return mean
    _, _, components = np.linalg.svd(differences, full_matrices=False)
    first = components[0]
    component: Floats = (first * (mean @ first)).astype(np.float32)  # as far as the pairs lie apart along it
    return component


def _held_out(differences: Floats, method: SteeringMethod) -> float | None:
    """The fraction of the pairs that lie the right way along the vector of all others."""
    count = len(differences)
    if count < 2:
        return None
    if method == "mean":  # (total - own) · own, for all at once
        inner = differences @ differences.sum(axis=0) - (differences * differences).sum(axis=1)
        return float((inner > 0).mean())
    folds = np.array_split(np.arange(count), min(count, 10))  # a component for each pair would take long
    right = [
        differences[fold] @ _direction(np.delete(differences, fold, axis=0), method) > 0
        for fold in folds
        if len(fold) < count
    ]
    return float(np.concatenate(right).mean())
