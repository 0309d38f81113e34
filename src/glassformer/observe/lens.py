"""The lens: what each layer would have said, had it been the last (nostalgebraist's logit lens, 2020).

The stream as it leaves a block goes through the last norm and the head, which the last layer alone was made for. So early
layers speak a language that is not quite theirs, and the last one says exactly what the model said.

Shapes: states (positions, hidden); scores (positions, vocabulary).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.candidates import log_softmax
from glassformer.errors import InputError
from glassformer.observe.activations import Activations
from glassformer.observe.protocols import Floats
from glassformer.progress import Progress
from glassformer.text.pieces import shown_bytes
from glassformer.views.lens import LayerPrediction, Lens
from glassformer.views.tokens import find_token

POSITIONS = 12  # that are looked at unless others are named: the last ones
Logs: TypeAlias = npt.NDArray[np.float64]  # log-probabilities, (vocabulary,)


def lens(reading: Activations, positions: Sequence[int | str] | None = None, *, progress: Progress | None = None) -> Lens:
    """What each layer would have said at some positions: the last few, unless others are named."""
    model, texts = reading.model, [token.text for token in reading.tokens]
    if positions is None:
        chosen = list(range(max(0, len(texts) - POSITIONS), len(texts)))
    else:
        chosen = [find_token(one, texts) for one in ([positions] if isinstance(positions, (int, str)) else positions)]
    if not chosen:
        raise InputError("a lens needs at least one position.")
    model.unembed(np.zeros((0, model.config.hidden_size), np.float32))  # says now if this model scores no tokens
    sites = ["embedding", *(f"blocks.{number}.residual" for number in range(model.blueprint.blocks))]
    states = _states(reading, sites, chosen)
    end = log_softmax(model.unembed(states[-1]))
    best = end.argmax(1)
    said = []
    for number, layer in enumerate(states):
        logs = log_softmax(model.unembed(layer))
        said.append(tuple(_said(reading, *each) for each in zip(logs, end, best.tolist(), strict=True)))
        if progress is not None:
            progress(number + 1, len(states))
    names = ("embedding", *(str(number) for number in range(model.blueprint.blocks)))
    return Lens(model.name, tuple(chosen), tuple(texts[one] for one in chosen), names, tuple(said))


def _states(reading: Activations, sites: Sequence[str], positions: Sequence[int]) -> Floats:
    """The stream at some positions: (sites, positions, hidden)."""
    found = np.zeros((len(sites), len(positions), reading.model.config.hidden_size), np.float32)
    for chunk in reading.chunks(*sites):
        inside = [(at, one - chunk.start) for at, one in enumerate(positions) if 0 <= one - chunk.start < chunk.count]
        for site, value in chunk.sites.items():
            for at, row in inside:
                found[sites.index(site), at] = value[row]
    return found


def _said(reading: Activations, logs: Logs, end: Logs, final: int) -> LayerPrediction:
    token = int(logs.argmax())
    text = shown_bytes(reading.model.tokenizer.token_bytes(token))
    rank = int(np.count_nonzero(logs > logs[final])) + 1
    divergence = max(0.0, float((np.exp(end) * (end - logs)).sum(dtype=np.float64)))
    return LayerPrediction(token, text, float(np.exp(logs[token])), rank, float(np.exp(logs[final])), divergence)
