"""Steering vectors from pairs of texts: where the first of each pair has what the second lacks, as a direction.

The mean difference is that of Rimsky et al. (2023, https://arxiv.org/abs/2312.06681); the principal component that of Zou
et al. (2023, https://arxiv.org/abs/2310.01405), here of the differences as they are, not centred, since what all pairs share
is what is looked for.

Shapes: differences (pairs, numbers of one token at the site).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from glassformer.ground.errors import GlassError, InputError
from glassformer.ground.progress import Progress
from glassformer.ground.sites import expand
from glassformer.ground.typecheck import brief
from glassformer.observe.activations import Activations
from glassformer.observe.prompt_warnings import prompt_texts
from glassformer.observe.protocols import Floats, ModelLike
from glassformer.steering.library import Library, local_library
from glassformer.steering.token_axis import token_site
from glassformer.steering.vector import SteeringVector
from glassformer.views.steering import (
    METHODS,
    KnownVector,
    MadeSteeringVector,
    SteeringDirection,
    SteeringMethod,
    SteeringPair,
    SteeringTokens,
    SteeringVectors,
)

MAX_PAIRS = 10_000


def make_steering_vector(
    model: ModelLike,
    pairs: Sequence[tuple[Any, Any]],
    site: str,
    read: Callable[[Any], Activations],
    *,
    tokens: SteeringTokens = "last",
    method: SteeringMethod = "mean",
    progress: Progress | None = None,
) -> MadeSteeringVector:
    """The vector at a site, or at all that a pattern means; `read` makes a text one that the model has read."""
    pairs = _checked_pairs(pairs)
    if method not in METHODS or tokens not in ("last", "all"):
        raise InputError("a steering vector's method is 'mean' or 'pca', and its tokens are 'last' or 'all'.")
    sites = [name for name in expand([site], *model.blueprint.block_counts) if "*" not in site or _has_tokens(model, name)]
    axes = {name: token_site(model.blueprint, name, model.name)[0] for name in sites}
    differences: dict[str, list[Floats]] = {name: [] for name in sites}
    lengths: dict[str, list[float]] = {name: [] for name in sites}
    texts = []
    for number, pair in enumerate(pairs, 1):
        readings = [read(text) for text in pair]
        texts.append([_shown_text(*each) for each in zip(pair, readings, strict=True)])
        positive, negative = (_token_values(reading, axes, tokens) for reading in readings)
        for name in sites:
            differences[name].append(positive[name] - negative[name])
            lengths[name] += [float(np.linalg.norm(positive[name])), float(np.linalg.norm(negative[name]))]
        if progress is not None:
            progress(number, len(pairs))
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
        SteeringPair(texts[number][0], texts[number][1], tuple(float(along[number]) for along in projections))
        for number in range(len(pairs))
    )
    return MadeSteeringVector(model.name, method, tokens, tuple(infos), rows, vector)


def known_vectors(model: ModelLike, library: Library | None) -> SteeringVectors:
    """The steering vectors of a library, and whether each fits the model."""
    library = library or local_library()
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
    for number, pair in enumerate(pairs):
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise InputError(f"pair {number} is {brief(pair)}; it must be two texts, the one with and the one without.")
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
