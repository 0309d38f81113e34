"""The lens: what each layer would predict, were it the last (nostalgebraist's logit lens, 2020).

The stream as it leaves a block goes through the last norm and the head, which were trained for the last layer alone. So
early layers are read in a language that is not quite theirs, and the last one predicts exactly what the model does.

Shapes: states (positions, hidden); scores (positions, layers, vocabulary).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Annotated

import numpy as np

from glassformer.ground.errors import InputError, NotNumbers
from glassformer.ground.operations import about, operation
from glassformer.ground.progress import Progress
from glassformer.observe.activations import Activations
from glassformer.observe.protocols import Floats, ModelLike
from glassformer.observe.tokens import token_text
from glassformer.observe.tuned_lens import TunedLens
from glassformer.views.lens import LayerPrediction, Lens
from glassformer.views.tokens import find_token

POSITIONS = 12  # the last ones, unless others are named
SCORE_BYTES = 25_000_000  # that are held at a time: so few that the next ones get the same memory


@operation(route="lens")
def lens(
    reading: Activations,
    positions: Annotated[
        Sequence[int | str] | None, about("After these tokens: each one's position or text; by default the last few.")
    ] = None,
    *,
    tuned: Annotated[
        TunedLens | None, about("A tuned lens, through which the layers are read.", opened_by="load_lens")
    ] = None,
    progress: Progress | None = None,
) -> Lens:
    """Show what each layer would predict next, and where the answer emerges.

    `model.read_many(texts).train_lens()` gives a tuned lens, and so does `model.load_lens(path)`.
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
    if tuned is not None:
        states = {site: tuned.translate(layer, states[site]) for layer, site in stream.items()}
    table = np.stack([states[site] for site in stream.values()], 1)  # (positions, layers, hidden)
    by_position: list[tuple[LayerPrediction, ...]] = []
    step = max(1, SCORE_BYTES // (4 * len(stream) * model.config.vocab_size))  # positions whose scores are held at a time
    with ThreadPoolExecutor(model.executor.describe().threads if model.writes else 1) as pool:
        for start in range(0, len(chosen), step):
            rows = table[start : start + step]
            scores = model.unembed(rows.reshape(-1, rows.shape[-1])).reshape(*rows.shape[:2], -1)
            by_position += pool.map(partial(_predictions, model), scores)
            if progress is not None:
                progress(len(by_position), len(chosen))
    by_layer = tuple(zip(*by_position, strict=True))
    tokens = tuple(texts[at] for at in chosen)
    return Lens(model.name, tuple(chosen), tokens, tuple(stream), by_layer, tuned is not None)


def _predictions(model: ModelLike, scores: Floats) -> tuple[LayerPrediction, ...]:
    """What each layer would predict at one position, from all layers' scores: the last row is what the model predicts.

    A row is measured while the cache still holds it, and nothing of its size is kept.
    """
    last = scores[-1]
    final, final_stats = _best(last), model.entropy_stats(last)
    shares = np.exp(last - last[final]) / np.float32(final_stats.total)
    predictions = []
    for row in scores:
        token, stats = _best(row), model.entropy_stats(row)
        rank = int(np.count_nonzero(row > row[final])) + 1
        log_total, final_log_total = row[token] + math.log(stats.total), last[final] + math.log(final_stats.total)
        # KL as a sum of differences, which are small where it is; einsum, as BLAS would start threads for a dot product
        divergence = (float(np.einsum("v,v->", shares, last - row)) + float(log_total - final_log_total)) / math.log(2)
        probability = float(np.exp(row[final] - row[token]) / stats.total)
        predictions.append(
            LayerPrediction(
                token, token_text(model.tokenizer, token), 1 / stats.total, rank, probability,
                max(divergence, 0.0) if math.isfinite(divergence) else math.inf, stats.entropy,
            )
        )  # fmt: skip
    return tuple(predictions)


def _best(scores: Floats) -> int:
    """The token with the highest score, which must be a number."""
    best = int(scores.argmax())  # stops at the first NaN
    if not math.isfinite(scores[best]):
        raise NotNumbers("the scores are not numbers (NaN or infinite), so no layer predicts anything. Change less.")
    return best
