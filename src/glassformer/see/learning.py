"""A model as it learns: one text under its snapshots. The loss of each token, what was expected after one of them, what each
layer would have predicted there, and what one head attended to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from glassformer.checkpoint.training_layout import SNAPSHOTS, step_folders
from glassformer.ground.errors import InputError
from glassformer.ground.operations import about, described
from glassformer.ground.progress import Progress
from glassformer.page.document import (
    Column,
    Grid,
    Heading,
    Page,
    PagePart,
    Paragraph,
    Shortenable,
    Table,
    TableRow,
    ThumbnailGrid,
)
from glassformer.page.format import format_percent, visible
from glassformer.see.attention import NOTE, SINK, checked_index, layers_and_heads
from glassformer.see.reading import Reading
from glassformer.see.tokens import Candidate, find_token
from glassformer.see.view import View


@dataclass(frozen=True)
class LayerGuess:
    """The token that one layer would predict, were it the last."""

    id: int
    text: str
    probability: float


@dataclass(frozen=True)
class SnapshotReading:
    """The text as the model reads it after a step."""

    step: int
    loss: float | None  # the mean of its tokens', in nats
    losses: tuple[float | None, ...]  # of each token; the first one has nothing before it
    candidates: tuple[tuple[Candidate, ...], ...]  # the best next tokens after each one
    layers: tuple[LayerGuess, ...]  # after the token at the position
    attention: tuple[tuple[float, ...], ...]  # one head's weights, (queries, keys)
    sink: tuple[float, ...] | None = None  # what the head's sink took of each row; None: there is none


@dataclass(frozen=True)
class Learning(View):
    """What each snapshot of a training makes of one text."""

    SCHEMA = "glassformer.learning/1"

    name: str  # of the training's folder
    tokens: tuple[str, ...]
    position: int  # of the token after which a next one is predicted
    layers: tuple[str, ...]  # 'embedding', then the blocks by index
    layer: int  # whose attention it is
    head: int
    blocks: int  # that the model has
    heads: int  # of each block
    snapshots: tuple[SnapshotReading, ...]  # from the first step to the last
    note: str = NOTE

    def page(self, everything: bool = False) -> Page:
        title = f"{self.name}: a text as the model learns"
        steps = tuple(f"{step:,}" for step in self.steps)
        last = visible(self.tokens[self.position])
        by_layer = list(zip(*(snapshot.layers for snapshot in self.snapshots), strict=True))
        parts: list[PagePart] = [
            Paragraph("each row is the model after so many steps; numbers are the loss of each token, in nats", "dim"),
            _losses(self, steps, everything),
            Heading(f"expected after {last} (position {self.position})"),
            _expected(self, steps),
            Heading(f"what each layer would predict after {last}, by step"),
            Grid(
                self.layers,
                steps,
                tuple(tuple(best.probability for best in layer) for layer in by_layer),
                tuple(tuple(visible(best.text) for best in layer) for layer in by_layer),
                all_columns=True,
            ),
            Heading(f"what {last} attends to, in layer {self.layer}, head {self.head}"),
            _attended(self, steps, everything),
        ]
        if len(self.tokens) > 1:
            maps = np.array([[snapshot.attention for snapshot in self.snapshots]])
            parts.append(
                ThumbnailGrid((f"layer {self.layer}, head {self.head}",), steps, np.rint(maps * 255).astype(np.uint8))
            )
        return Page.titled(title, *parts, Paragraph(self.note, "dim"))

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(snapshot.step for snapshot in self.snapshots)

    def __repr__(self) -> str:
        return f"Learning({len(self.snapshots)} snapshots × {len(self.tokens)} tokens)"


def _attended(view: Learning, steps: tuple[str, ...], everything: bool) -> Grid:
    keys = tuple(map(visible, view.tokens[: view.position + 1]))
    weights = [snapshot.attention[view.position][: len(keys)] for snapshot in view.snapshots]
    sinks = [() if snapshot.sink is None else (snapshot.sink[view.position],) for snapshot in view.snapshots]
    rows = tuple((*row, *sink) for row, sink in zip(weights, sinks, strict=True))
    texts = tuple(tuple(map(format_percent, row)) for row in rows)
    keys = (*keys, SINK) if any(sinks) else keys
    return Grid(steps, keys, rows, texts, texts_optional=True, all_columns=everything)


def _losses(view: Learning, steps: Sequence[str], everything: bool) -> Grid:
    largest = max((loss for snapshot in view.snapshots for loss in snapshot.losses if loss is not None), default=1.0) or 1.0
    return Grid(
        tuple(steps),
        tuple(map(visible, view.tokens)),
        tuple(tuple(None if loss is None else loss / largest for loss in snapshot.losses) for snapshot in view.snapshots),
        tuple(tuple("" if loss is None else f"{loss:.2f}" for loss in snapshot.losses) for snapshot in view.snapshots),
        tuple(tuple("" if loss is None else f"{loss:.3f} nats" for loss in snapshot.losses) for snapshot in view.snapshots),
        texts_optional=True,
        all_columns=everything,
    )


def _expected(view: Learning, steps: Sequence[str]) -> Table:
    columns = (
        Column("step", "number"), Column("mean loss", "number"), Column("the best", "bar", priority=5),
        Column("most likely next", min_width=22),
    )  # fmt: skip
    rows = []
    for step, snapshot in zip(steps, view.snapshots, strict=True):
        best = snapshot.candidates[view.position]
        loss = "" if snapshot.loss is None else f"{snapshot.loss:.3f}"
        rows.append(TableRow((step, loss, best[0].probability, Shortenable(_line(best, 5), _line(best, 2)))))
    return Table(columns, tuple(rows))


def _line(candidates: Sequence[Candidate], limit: int) -> str:
    return " · ".join(f"{visible(best.text)} {format_percent(best.probability)}" for best in candidates[:limit])


MAX_TOKENS = 128  # of a text, so that its losses and maps at every step can be seen
MAX_SNAPSHOTS = 64
BEST = 5  # candidates after each token


@described
def learning(
    folder: str | Path,
    read: Callable[[Path], Reading],
    *,
    position: Annotated[
        int | str,
        about(
            "Predict after this token: its position or text; by default the last.",
            "--token",
            "-t",
            default_shown=False,
            served_length=200,
        ),
    ] = -1,
    layer: Annotated[int, about("Of the attention that is shown; by default the last.", default_shown=False)] = -1,
    head: Annotated[int, about("Of that layer.")] = 0,
    best: Annotated[int, about("Candidates after each token.", typed=False, served=False)] = BEST,
    progress: Progress | None = None,
) -> Learning:
    """What each snapshot in a training's folder makes of one text: its loss, predictions, lens, and a head's attention.

    `read` gives the text as the model in a folder reads it: `lambda path: glass.load(path).read("My fellow", raw=True)`.
    """
    name = Path(folder).resolve().name
    paths = _spread(step_folders(Path(folder) / SNAPSHOTS), MAX_SNAPSHOTS)
    if not paths:
        raise InputError(f"{name}: holds no snapshots of a training. Train with --snapshots, or name another folder.")
    snapshots: list[SnapshotReading] = []
    view = None
    for done, (step, path) in enumerate(paths.items(), 1):
        reading = read(path)  # the model before it is no longer held
        if view is None:
            view = _frame(name, reading, position, layer, head)
        if reading.texts != view.tokens:
            raise InputError(f"{path.name}: its tokens are not those of the other snapshots. Remove it.")
        snapshots.append(_snapshot(step, reading, view, best))
        del reading
        if progress is not None:
            progress(done, len(paths))
    assert view is not None
    return Learning(**{**vars(view), "snapshots": tuple(snapshots)})


def _spread(paths: dict[int, Path], most: int) -> dict[int, Path]:
    """At most `most` of the snapshots, evenly, the first and the last among them."""
    steps = list(paths)
    if len(steps) <= most:
        return paths
    return {step: paths[step] for step in (steps[index * (len(steps) - 1) // (most - 1)] for index in range(most))}


def _frame(name: str, reading: Reading, position: int | str, layer: int, head: int) -> Learning:
    """What all snapshots have in common."""
    if not reading.model.writes:
        raise InputError(
            f"{reading.model.name} writes no text, so it cannot be asked what comes next. Leave the text out to see its "
            "curves."
        )
    if len(reading) > MAX_TOKENS:
        raise InputError(f"the text has {len(reading)} tokens, and {MAX_TOKENS} can be shown at most. Shorten it.")
    index = find_token(position, reading.texts)
    blocks, heads = layers_and_heads(reading, "self")
    chosen = checked_index(layer, blocks, "layer"), checked_index(head, heads, "head")
    return Learning(name, reading.texts, index, tuple(reading.stream), *chosen, blocks, heads, ())


def _snapshot(step: int, reading: Reading, view: Learning, best: int) -> SnapshotReading:
    trace = reading.trace(best)
    bits = [place.surprisal for place in trace.places[:-1]]
    losses = (None, *(None if surprisal is None else surprisal * math.log(2) for surprisal in bits))
    several = reading.model.blueprint.mixes_streams  # which have no lens
    guesses = () if several else (layer[0] for layer in reading.lens([view.position]).predictions)
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
