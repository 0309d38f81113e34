"""The lens: what each layer would predict, were it the last (nostalgebraist's logit lens, 2020).

The stream as it leaves a block goes through the last norm and the head, which were trained for the last layer alone. So
early layers are read in a language that is not quite theirs, and the last one predicts exactly what the model does.

Shapes: states (positions, hidden); scores (positions, vocabulary).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from glassformer.candidates import LogProbabilities, kl_divergence, log_softmax
from glassformer.errors import InputError
from glassformer.observe.activations import Activations
from glassformer.observe.tokens import token_text
from glassformer.observe.tuned_lens import TunedLens
from glassformer.progress import Progress
from glassformer.text import Tokenizer
from glassformer.views.lens import LayerPrediction, Lens
from glassformer.views.tokens import find_token

POSITIONS = 12  # the last ones, unless others are named


def lens(
    reading: Activations, positions: Sequence[int | str] | None = None, *, tuned: TunedLens | None = None,
    progress: Progress | None = None,
) -> Lens:  # fmt: skip
    """What each layer would predict at some positions: the last few, unless others are named.

    `tuned`: read each layer through its own map, instead of as if it were the last.
    """
    model, texts, stream = reading.model, reading.texts, reading.stream
    if positions is None:
        chosen = list(range(max(0, len(texts) - POSITIONS), len(texts)))
    else:
        chosen = [find_token(name, texts) for name in ([positions] if isinstance(positions, (int, str)) else positions)]
    if not chosen:
        raise InputError("a lens needs at least one position.")
    if tuned is not None:
        tuned.check(model)
    model.unembed(np.zeros((0, model.config.hidden_size), np.float32))  # raises now if this model scores no tokens
    states = reading.values_at(chosen, *stream.values())
    last = log_softmax(model.unembed(states[stream[[*stream][-1]]]))
    predictions = []
    for number, (layer, site) in enumerate(stream.items(), 1):
        own = states[site] if tuned is None else tuned.translate(layer, states[site])
        logs = log_softmax(model.unembed(own))
        predictions.append(tuple(_prediction(model.tokenizer, *pair) for pair in zip(logs, last, strict=True)))
        if progress is not None:
            progress(number, len(stream))
    tokens = tuple(texts[at] for at in chosen)
    return Lens(model.name, tuple(chosen), tokens, tuple(stream), tuple(predictions), tuned is not None)


def _prediction(tokenizer: Tokenizer, logs: LogProbabilities, last: LogProbabilities) -> LayerPrediction:
    """One layer's best token at a position, and how it stands to the last layer's."""
    token, final = int(logs.argmax()), int(last.argmax())
    rank = int(np.count_nonzero(logs > logs[final])) + 1
    probabilities = float(np.exp(logs[token])), rank, float(np.exp(logs[final]))
    entropy = -float((np.exp(logs) * logs).sum()) / math.log(2)  # no dot product: BLAS would start threads for it
    return LayerPrediction(token, token_text(tokenizer, token), *probabilities, kl_divergence(last, logs), entropy)
