"""A text's states as one vector, as a sentence embedder's settings say, and how similar two vectors are.

Shapes: states (tokens, hidden); vectors (hidden,), or any number of them (…, hidden).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from glassformer.checkpoint.sentence_pooling import DenseLayer, Floats, SentenceSettings

POOLING: Mapping[str, Callable[[Floats, int], Floats]] = {  # of a text's states, from the first one on that counts
    "cls": lambda states, first: states[0],
    "max": lambda states, first: states[first:].max(0),
    "mean": lambda states, first: states[first:].mean(0),
    "mean_sqrt_len_tokens": lambda states, first: states[first:].sum(0) / np.sqrt(np.float32(len(states) - first)),
    "weightedmean": lambda states, first: np.average(states[first:], axis=0, weights=np.arange(first + 1, len(states) + 1)),
    "lasttoken": lambda states, first: states[-1],
}
ACTIVATIONS: Mapping[str, Callable[[Floats], Floats]] = {
    "Identity": lambda x: x,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, 0),
}


def sentence_vector(
    states: Floats, settings: SentenceSettings, pooling: str | None = None, normalize: bool | None = None,
    dimensions: int | None = None, unpooled: int = 0,
) -> Floats:  # fmt: skip
    """The vector of a text's states; what is None is as the settings say.

    Args:
        states: of all tokens, a prompt's too.
        settings: the model's own.
        pooling: which states are taken, and how.
        normalize: whether the vector gets length 1, after it is cut.
        dimensions: how many of its first numbers are kept.
        unpooled: how many of the first states are a prompt's that is not pooled; one state is left in any case.
    """
    poolings, unpooled = settings.pooling if pooling is None else (pooling,), min(unpooled, len(states) - 1)
    vector = np.concatenate([POOLING[name](states, unpooled) for name in poolings])
    for layer in settings.dense:
        vector = _apply_dense(layer, vector)
    vector = vector[: settings.dimensions if dimensions is None else dimensions]
    if settings.normalize if normalize is None else normalize:
        vector = vector / max(float(np.linalg.norm(vector)), 1e-12)
    return vector.astype(np.float32)


def prompted_text(text: str, prompt: str, settings: SentenceSettings) -> str:
    """A text as an embedder reads it, behind a prompt."""
    whole = prompt + text
    return whole.lower() if settings.lowercase else whole


def unpooled_tokens(tokenizer: Any, prompt: str, settings: SentenceSettings) -> int:
    """How many of a text's first tokens its vector is not made of: those of a prompt, for models trained that way."""
    if settings.pool_prompt or not prompt:
        return 0
    ids = tokenizer(prompt)["input_ids"]
    return len(ids) - (ids[-1] in tokenizer.all_special_ids)  # the end of the text comes after what follows the prompt


def similarity(function: str, left: Floats, right: Floats) -> Floats:
    """How similar vectors are, the higher the more: cosine, dot, euclidean or manhattan."""
    match function:
        case "dot":
            value = (left * right).sum(-1)
        case "euclidean":
            value = -np.linalg.norm(left - right, axis=-1)
        case "manhattan":
            value = -np.abs(left - right).sum(-1)
        case _:
            lengths = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
            value = (left * right).sum(-1) / np.maximum(lengths, 1e-12)
    return np.asarray(value, np.float32)


def _apply_dense(layer: DenseLayer, vector: Floats) -> Floats:
    out = layer.weight @ vector
    return ACTIVATIONS[layer.activation](out if layer.bias is None else out + layer.bias)
