"""A model as it learns: what each snapshot of a training makes of one text, read one model at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from glassformer.checkpoint.training_layout import SNAPSHOTS, step_folders
from glassformer.ground.errors import InputError
from glassformer.ground.progress import Progress
from glassformer.observe.attention import checked_index, layers_and_heads
from glassformer.observe.reading import Reading
from glassformer.views.learning import LayerGuess, Learning, SnapshotReading
from glassformer.views.tokens import find_token

MAX_TOKENS = 128  # of a text, so that its losses and maps at every step can be seen
MAX_SNAPSHOTS = 64
BEST = 5  # candidates after each token


def learning(
    folder: str | Path, read: Callable[[Path], Reading], *, position: int | str = -1, layer: int = -1, head: int = 0,
    best: int = BEST, progress: Progress | None = None,
) -> Learning:  # fmt: skip
    """What each snapshot in a training's folder makes of one text.

    Args:
        folder: of the training.
        read: the text as the model in a folder reads it: `lambda path: glass.load(path).read("My fellow", raw=True)`.
        position: the token after which predictions are shown, by its number or its text.
        layer: of the head whose attention is shown; from the end if it is negative.
        head: of that layer.
        best: candidates after each token.
    """
    name = Path(folder).resolve().name
    paths = _spread(step_folders(Path(folder) / SNAPSHOTS), MAX_SNAPSHOTS)
    if not paths:
        raise InputError(f"{name}: holds no snapshots of a training. Train with --snapshots, or name another folder.")
    snapshots: list[SnapshotReading] = []
    view = None
    for number, (step, path) in enumerate(paths.items(), 1):
        reading = read(path)  # the model before it is no longer held
        if view is None:
            view = _frame(name, reading, position, layer, head)
        if reading.texts != view.tokens:
            raise InputError(f"{path.name}: its tokens are not those of the other snapshots. Remove it.")
        snapshots.append(_snapshot(step, reading, view, best))
        del reading
        if progress is not None:
            progress(number, len(paths))
    assert view is not None
    return Learning(**{**vars(view), "snapshots": tuple(snapshots)})


def _spread(paths: dict[int, Path], most: int) -> dict[int, Path]:
    """At most so many of the snapshots, evenly, the first and the last among them."""
    steps = list(paths)
    if len(steps) <= most:
        return paths
    return {step: paths[step] for step in (steps[number * (len(steps) - 1) // (most - 1)] for number in range(most))}


def _frame(name: str, reading: Reading, position: int | str, layer: int, head: int) -> Learning:
    """What all snapshots have in common."""
    if not reading.model.writes:
        raise InputError(
            f"{reading.model.name} writes no text, so it cannot be asked what comes next. Leave the text out to see its "
            "curves."
        )
    if len(reading) > MAX_TOKENS:
        raise InputError(f"the text has {len(reading)} tokens, and {MAX_TOKENS} can be shown at most. Shorten it.")
    at = find_token(position, reading.texts)
    blocks, heads = layers_and_heads(reading, "self")
    own = checked_index(layer, blocks, "layer"), checked_index(head, heads, "head")
    return Learning(name, reading.texts, at, tuple(reading.stream), *own, blocks, heads, ())


def _snapshot(step: int, reading: Reading, view: Learning, best: int) -> SnapshotReading:
    trace = reading.trace(best)
    bits = [place.surprisal for place in trace.places[:-1]]
    losses = (None, *(None if surprisal is None else surprisal * math.log(2) for surprisal in bits))
    lens = reading.lens([view.position])
    guesses = (layer[0] for layer in lens.predictions)
    attention = reading.attention(view.layer, view.head)
    return SnapshotReading(
        step,
        trace.loss,
        losses,
        tuple(place.candidates for place in trace.places),
        tuple(LayerGuess(guess.id, guess.text, guess.probability) for guess in guesses),
        tuple(tuple(round(float(weight), 4) for weight in row) for row in attention.weights),
        None if attention.sink is None else tuple(round(float(weight), 4) for weight in attention.sink),
    )
