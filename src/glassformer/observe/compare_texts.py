"""Two texts in one model: where they part, and what the same token is in each.

What a token becomes depends on all that stands before it, and on nothing behind it. So the same token after the same
beginning is the same at every layer, whatever follows; after another beginning it parts at the layer where attention first
brings the difference in.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glassformer.candidates import log_softmax, top
from glassformer.engine.protocol import alike
from glassformer.errors import InputError
from glassformer.observe.activations import Activations
from glassformer.observe.answers import candidates
from glassformer.observe.protocols import Floats
from glassformer.views.answers import Candidate
from glassformer.views.compare_texts import LayerDifference, TextComparison
from glassformer.views.tokens import find_token

TOP = 6


def compare_texts(first: Activations, second: Activations, token: int | str | None = None) -> TextComparison:
    """One token in two texts: the last that both have, unless one is named."""
    sides = (first, second)
    spelt = tuple(tuple(one.text for one in side.tokens) for side in sides)
    positions = _meeting(first, second, spelt[0], token)
    states = [_states(side, at) for side, at in zip(sides, positions, strict=True)]
    names = ("embedding", *(str(number) for number in range(first.model.blueprint.blocks)))
    layers = tuple(_apart(name, one, other) for name, one, other in zip(names, *states, strict=True))
    parts = next((one.layer for one in layers if one.largest > 0), None)
    scores = [_scores(side, state[-1]) for side, state in zip(sides, states, strict=True)]
    best: tuple[tuple[Candidate, ...], ...] = ((), ())
    divergence = None
    if all(one is not None for one in scores):
        one, other = (log_softmax(row) for row in scores if row is not None)
        divergence = max(0.0, float((np.exp(one) * (one - other)).sum()))
        best = tuple(candidates(first.model.tokenizer, top(row, TOP)) for row in scores if row is not None)
    return TextComparison(
        first.model.name,
        (first.model.tokenizer.decode(first.ids), first.model.tokenizer.decode(second.ids)),
        (spelt[0], spelt[1]),
        alike(first.ids, second.ids),
        spelt[0][positions[0]],
        positions,
        layers,
        parts,
        (best[0], best[1]),
        divergence,
    )


def _meeting(first: Activations, second: Activations, texts: Sequence[str], token: int | str | None) -> tuple[int, int]:
    """Where a token stands in each text: at the same place if it does, else its last; a number is a place in both."""
    if isinstance(token, int):
        return find_token(token, texts), find_token(token, [one.text for one in second.tokens])
    places = reversed(range(len(first.ids))) if token is None else (find_token(token, texts),)
    for at in places:
        found = [number for number, other in enumerate(second.ids) if other == first.ids[at]]
        if found:
            return at, at if at in found else found[-1]
    if token is None:
        raise InputError("the two texts have no token in common, so there is nothing to compare in them.")
    raise InputError(f"the second text has no token {texts[find_token(token, texts)]!r}. Name one that both have.")


def _states(side: Activations, position: int) -> Floats:
    """The stream at one position: (layers, hidden)."""
    sites = ["embedding", *(f"blocks.{number}.residual" for number in range(side.model.blueprint.blocks))]
    found = np.zeros((len(sites), side.model.config.hidden_size), np.float32)
    for chunk in side.chunks(*sites):
        if chunk.start <= position < chunk.start + chunk.count:
            for site, value in chunk.sites.items():
                found[sites.index(site)] = value[position - chunk.start]
    return found


def _scores(side: Activations, state: Floats) -> Floats | None:
    if not (side.model.writes or side.model.head == "masked"):
        return None
    found: Floats = side.model.unembed(state[None])[0]
    return found


def _apart(name: str, one: Floats, other: Floats) -> LayerDifference:
    product = float(np.linalg.norm(one) * np.linalg.norm(other))
    cosine = float(one @ other) / product if product else 1.0
    return LayerDifference(name, float(np.abs(one - other).max()), min(1.0, cosine))
