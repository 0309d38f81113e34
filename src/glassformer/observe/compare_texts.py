"""Two texts in one model: where they diverge, and what the same token is in each.

What a token becomes depends on all that stands before it, and on nothing after it. So the same token after the same
beginning is the same at every layer, whatever follows; after another beginning it differs from the layer on where attention
first brings the difference in.
"""

from __future__ import annotations

import numpy as np

from glassformer.engine.protocol import common_prefix
from glassformer.ground.candidates import kl_divergence, log_softmax, top
from glassformer.ground.errors import InputError
from glassformer.observe.activations import Activations
from glassformer.observe.answers import candidates
from glassformer.observe.protocols import Floats
from glassformer.views.answers import Candidate
from glassformer.views.compare_texts import LayerDifference, TextComparison
from glassformer.views.tokens import find_token

TOP = 6


def compare_texts(first: Activations, second: Activations, token: int | str | None = None) -> TextComparison:
    """One token in two texts: the last that both have, unless one is named."""
    model, stream = first.model, first.stream
    positions = _common_token(first, second, token)
    texts = zip((first, second), positions, strict=True)
    states = [[value[0] for value in text.values_at([at], *stream.values()).values()] for text, at in texts]
    layers = tuple(_difference(*layer) for layer in zip(stream, *states, strict=True))
    best: tuple[tuple[Candidate, ...], ...] = ((), ())
    divergence = None
    if model.writes or model.head == "masked":
        scores = [model.unembed(layers[-1][None])[0] for layers in states]
        divergence = kl_divergence(*map(log_softmax, scores))
        best = tuple(candidates(model.tokenizer, top(row, TOP)) for row in scores)
    return TextComparison(
        model.name,
        (model.tokenizer.decode(first.ids), model.tokenizer.decode(second.ids)),
        (first.texts, second.texts),
        common_prefix(first.ids, second.ids),
        first.texts[positions[0]],
        positions,
        layers,
        next((layer.layer for layer in layers if layer.largest > 0), None),
        (best[0], best[1]),
        divergence,
    )


def _common_token(first: Activations, second: Activations, token: int | str | None) -> tuple[int, int]:
    """Where a token stands in each text: at the same position if it does, else its last; a number is a position in both."""
    if isinstance(token, int):
        return find_token(token, first.texts), find_token(token, second.texts)
    positions = reversed(range(len(first.ids))) if token is None else (find_token(token, first.texts),)
    for at in positions:
        matches = [number for number, token_id in enumerate(second.ids) if token_id == first.ids[at]]
        if matches:
            return at, at if at in matches else matches[-1]
    if token is None:
        raise InputError("the two texts have no token in common, so there is nothing to compare in them.")
    raise InputError(f"the second text has no token {first.texts[at]!r}. Name one that both have.")


def _difference(layer: str, first: Floats, second: Floats) -> LayerDifference:
    product = float(np.linalg.norm(first) * np.linalg.norm(second))
    cosine = float(first @ second) / product if product else 1.0
    return LayerDifference(layer, float(np.abs(first - second).max()), min(1.0, cosine))
