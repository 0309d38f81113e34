"""The lens: what each layer would predict, were it the last (nostalgebraist's logit lens, 2020).

The stream as it leaves a block goes through the last norm and the head, which were trained for the last layer alone. So
early layers are read in a language that is not quite theirs, and the last one predicts exactly what the model does. A tuned
lens (Belrose et al. 2023) puts an affine map before them for each layer, h + A·h + b, trained so that the prediction
diverges least from the model's own.

Shapes: states (positions, hidden); scores (positions, layers, vocabulary); a map's weight (hidden, hidden), bias (hidden).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from glassformer.ground.arguments import checked, checked_class
from glassformer.ground.errors import InputError, NotNumbers
from glassformer.ground.operations import about, operation
from glassformer.ground.progress import Progress
from glassformer.page.document import Column, Grid, Heading, Line, LineChart, Page, PagePart, Paragraph, Table, TableRow
from glassformer.page.format import format_percent, format_seconds, pluralize, visible
from glassformer.see.activations import Activations, residual_sites
from glassformer.see.protocols import ModelLike, RunLike
from glassformer.see.tensor_files import load_tensors, model_metadata, save_maps
from glassformer.see.tokens import find_token, token_text
from glassformer.see.view import Floats, View, flat_data


@dataclass(frozen=True)
class LayerPrediction:
    """What one layer would predict at one position."""

    id: int
    text: str
    probability: float
    rank: int  # of the token that the last layer predicts: 1 is the first choice
    final: float  # that token's probability in this layer
    divergence: float  # KL divergence of this layer's probabilities from the last one's, in bits
    entropy: float  # of this layer's probabilities, in bits


@dataclass(frozen=True)
class Lens(View):
    """The predictions of every layer at some positions of a text."""

    SCHEMA = "glassformer.lens/3"

    model: str
    positions: tuple[int, ...]
    tokens: tuple[str, ...]  # those at the positions
    layers: tuple[str, ...]  # 'embedding', then the blocks by index
    predictions: tuple[tuple[LayerPrediction, ...], ...]  # by layer, then by position
    tuned: bool = False  # each layer read through a map of its own

    @checked
    def records(self) -> list[dict[str, Any]]:
        """A row for each layer at each position."""
        return [
            {"layer": layer, "position": position, "token": token, **flat_data(prediction, "predicted_")}
            for layer, row in zip(self.layers, self.predictions, strict=True)
            for position, token, prediction in zip(self.positions, self.tokens, row, strict=True)
        ]

    def page(self, everything: bool = False) -> Page:
        title = f"{self.model}: {'tuned lens, ' if self.tuned else ''}what each layer would predict next"
        parts: list[PagePart] = [
            Paragraph(
                "each column is a token of the text, each cell the best next token there; shades are its probability", "dim"
            ),
            Grid(
                self.layers,
                tuple(map(visible, self.tokens)),
                tuple(tuple(cell.probability for cell in layer) for layer in self.predictions),
                tuple(tuple(visible(cell.text) for cell in layer) for layer in self.predictions),
                all_columns=everything,
            ),
        ]
        for index in range(len(self.positions)) if everything else (len(self.positions) - 1,):
            parts += position_parts(self, index)
        parts.append(Paragraph("KL to last: divergence of a layer's probabilities from the last layer's, in bits", "dim"))
        return Page.titled(title, *parts)

    @property
    def final(self) -> tuple[LayerPrediction, ...]:
        """What the model predicts, by position."""
        return self.predictions[-1]

    def settled(self, at: int = -1) -> str:
        """The layer from which on the prediction at a position, by its index in `positions`, does not change."""
        if not -len(self.positions) <= at < len(self.positions):
            raise InputError(f"there is no position {at} among the lens's {len(self.positions)}.")
        last = self.predictions[-1][at].id
        settled = len(self.layers) - 1
        while settled > 0 and self.predictions[settled - 1][at].id == last:
            settled -= 1
        return self.layers[settled]

    def __repr__(self) -> str:
        return f"Lens({len(self.layers)} layers × {len(self.positions)} positions)"


def position_parts(view: Lens, index: int) -> list[PagePart]:
    """One position, layer by layer."""
    last = visible(view.final[index].text)
    named = [(name, layer[index]) for name, layer in zip(view.layers, view.predictions, strict=True)]
    table = Table.of(
        named,
        (Column("layer", "number"), lambda row: row[0]),
        (Column("predicts", "token", min_width=8), lambda row: visible(row[1].text)),
        (Column("prob.", "number"), lambda row: format_percent(row[1].probability)),
        (Column(f"rank of {last}", "number"), lambda row: f"{row[1].rank:,}"),
        (Column("its prob.", "number"), lambda row: format_percent(row[1].final)),
        (Column("", "bar", priority=5), lambda row: row[1].final),
        (Column("KL to last", "number", priority=8), lambda row: f"{row[1].divergence:.2f}"),
        style=lambda row: "chosen" if row[1].id == view.final[index].id else "",
    )
    where = f"after {visible(view.tokens[index])} (position {view.positions[index]})"
    settled = view.settled(index)
    since = "from the start" if settled == "embedding" else f"is the first choice from layer {settled} on"
    return [Heading(f"{where}: {last} {since}"), table]


@dataclass(frozen=True)
class LayerDivergence:
    """KL divergence from the model's own probabilities, in bits, over held-out tokens."""

    layer: str  # 'embedding', then the blocks by index
    before: float  # of the logit lens
    after: float  # of the tuned lens


@dataclass(frozen=True)
class LensTraining(View):
    """The divergence of each layer's prediction before and after a tuned lens was trained."""

    SCHEMA = "glassformer.lens-training/2"

    model: str
    texts: int
    tokens: int  # that were trained on
    held_out: int  # tokens that were measured on
    steps: int
    seconds: float
    layers: tuple[LayerDivergence, ...]  # all but the last, which needs no map

    def page(self, everything: bool = False) -> Page:
        title = f"{self.model}: a tuned lens"
        about = (
            f"{pluralize(self.texts, 'text')}, {pluralize(self.tokens, 'token')} to train on and {self.held_out:,} held "
            f"out; {pluralize(self.steps, 'step')} in {format_seconds(self.seconds)}"
        )
        blocks = [layer for layer in self.layers if layer.layer.isdecimal()]  # the embedding's divergence dwarfs all others
        lines = tuple(
            Line(name, tuple((float(layer.layer), getattr(layer, field)) for layer in blocks))
            for name, field in (("logit lens", "before"), ("tuned lens", "after"))
        )
        most = max((layer.before for layer in blocks), default=1.0) or 1.0
        columns = (
            Column("layer", "number"), Column("logit lens", "number"), Column("", "bar", priority=5),
            Column("tuned lens", "number"), Column("", "bar", priority=6),
        )  # fmt: skip
        rows = tuple(
            TableRow((row.layer, *(cell for kl in (row.before, row.after) for cell in (f"{kl:.3f}", min(1.0, kl / most)))))
            for row in self.layers
        )
        note = "KL divergence of a layer's prediction from the model's own, in bits, over held-out tokens"
        chart = LineChart("KL to the last layer, in bits", lines, "block", from_zero=True)
        return Page.titled(title, Paragraph(about), chart, Table(columns, rows), Paragraph(note, "dim"))

    def __repr__(self) -> str:
        before, after = (sum(getattr(row, name) for row in self.layers) / len(self.layers) for name in ("before", "after"))
        return f"LensTraining({len(self.layers)} layers, mean KL {before:.2f} → {after:.2f})"


FORMAT = "glassformer.tuned-lens/1"
SHIPPED_MAPS: dict[Path, Mapping[str, Translator]] = {}  # of lenses that come with the package and were read


@dataclass(frozen=True, eq=False)
class Translator:
    """The map of one layer: what is added to its states, in full or of a low rank."""

    weight: Floats  # (hidden, hidden); of a low rank (rank, hidden)
    bias: Floats  # (hidden)
    up: Floats | None = None  # of a low rank (hidden, rank)

    def __call__(self, states: Floats) -> Floats:
        change: Floats = states @ self.weight.T
        translated: Floats = states + (change if self.up is None else change @ self.up.T) + self.bias
        return translated

    def arrays(self) -> dict[str, Floats]:
        """Its parts, as files name them."""
        return {name: array for name, array in vars(self).items() if array is not None}


@checked_class
@dataclass(frozen=True, eq=False, repr=False)
class TunedLens:
    """The maps of all layers but the last, which needs none; `view` says what they brought."""

    model: ModelLike
    translators: Mapping[str, Translator]  # by layer: 'embedding', then each block's index
    view: LensTraining | None = None  # of a lens that was just trained

    def __repr__(self) -> str:
        return f"TunedLens({self.model.name}, {len(self.translators)} layers)"

    def translate(self, layer: str, states: Floats) -> Floats:
        """A layer's states as the last layer would have them."""
        return self.translators[layer](states) if layer in self.translators else states

    def check(self, model: ModelLike) -> None:
        """Refuse a model that it was not trained with."""
        if model is not self.model and model.weights_digest != self.model.weights_digest:
            raise InputError(f"the tuned lens was trained with {self.model.name}, not with {model.name}. Train one with it.")

    def save(self, path: str | os.PathLike[str], *, packed: bool = False) -> Path:
        """Write it as safetensors, with the digest of the model's weights; `packed`: matrices in 8 bits."""
        maps = {layer: translator.arrays() for layer, translator in self.translators.items()}
        return save_maps(path, maps, model_metadata(self.model, FORMAT), packed=packed)


def load_tuned_lens(path: str | os.PathLike[str], model: ModelLike) -> TunedLens:
    """A tuned lens that `save` wrote, for the model that it was trained with."""
    file = Path(path)
    arrays, _ = load_tensors(file, FORMAT, model)
    *layers, _ = residual_sites(model.blueprint)
    maps: dict[str, dict[str, Floats]] = {layer: {} for layer in layers}
    for name, array in arrays.items():
        layer, _, part = name.rpartition(".")
        maps.setdefault(layer, {})[part] = np.ascontiguousarray(array)
    if list(maps) != layers or not all(_is_map(parts, model.config.hidden_size) for parts in maps.values()):
        raise InputError(f"{file}: does not have a map for each layer of {model.name}. Train it again.")
    return TunedLens(model, {layer: Translator(**parts) for layer, parts in maps.items()})


def _is_map(parts: Mapping[str, Floats], hidden: int) -> bool:
    """Whether these are a layer's map: a matrix and a bias, or two matrices of a low rank and a bias."""
    rank = math.prod(parts["up"].shape[1:]) if "up" in parts else hidden
    shapes = {"weight": (rank, hidden), "bias": (hidden,), **({"up": (hidden, rank)} if "up" in parts else {})}
    return {name: array.shape for name, array in parts.items()} == shapes


POSITIONS = 12  # the last ones, unless others are named
SCORE_BYTES = 25_000_000  # that are held at a time: so few that the next ones get the same memory


@operation(
    route="lens",
    example='glass lens --raw "The capital of France is"   ·   glass lens --raw "The capital of France is" --wrote " Paris"'
    "   ·   glass lens --train lines.txt --out lens.safetensors",
)
def lens(
    reading: Activations,
    positions: Annotated[
        Sequence[int | str] | None,
        about(
            "After these tokens: each one's position or text; by default the last few.", "--token", "-t", every_position=True
        ),
    ] = None,
    *,
    tuned: Annotated[
        TunedLens | Literal["auto"] | None,
        about(
            "A tuned lens, through which the layers are read, or 'none': the logit lens; by default the one that comes with "
            "the package for this model, if there is one.",
            metavar="FILE",
            none_word="none",
            opened_by="load_lens",
        ),
    ] = "auto",
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
    if tuned == "auto":
        tuned = shipped_lens(model)
    if tuned is not None:
        tuned.check(model)
    model.unembed(np.zeros((0, model.config.hidden_size), np.float32))  # raises now if this model scores no tokens
    states = reading.values_at(chosen, *stream.values())
    if tuned is not None:
        states = {site: tuned.translate(layer, states[site]) for layer, site in stream.items()}
    table = np.stack([states[site] for site in stream.values()], 1)  # (positions, layers, hidden)
    by_position: list[tuple[LayerPrediction, ...]] = []
    step = max(1, SCORE_BYTES // (4 * len(stream) * model.config.vocab_size))  # positions whose logits are held at a time
    with ThreadPoolExecutor(model.executor.describe().threads if model.writes else 1) as pool:
        for start in range(0, len(chosen), step):
            rows = table[start : start + step]
            logits = model.unembed(rows.reshape(-1, rows.shape[-1])).reshape(*rows.shape[:2], -1)
            by_position += pool.map(partial(_predictions, model), logits)
            if progress is not None:
                progress(len(by_position), len(chosen))
    by_layer = tuple(zip(*by_position, strict=True))
    tokens = tuple(texts[index] for index in chosen)
    return Lens(model.name, tuple(chosen), tokens, tuple(stream), by_layer, tuned is not None)


def _predictions(model: ModelLike, logits: Floats) -> tuple[LayerPrediction, ...]:
    """What each layer would predict at one position, from all layers' logits: the last row is what the model predicts.

    A row is measured while the cache still holds it, and nothing of its size is kept.
    """
    last = logits[-1]
    final, final_stats = _best(last), model.entropy_stats(last)
    shares = np.exp(last - last[final]) / np.float32(final_stats.total)
    predictions = []
    for row in logits:
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


def _best(logits: Floats) -> int:
    """The token with the highest logit, which must be a number."""
    best = int(logits.argmax())  # stops at the first NaN
    if not math.isfinite(logits[best]):
        raise NotNumbers("the scores are not numbers (NaN or infinite), so no layer predicts anything. Change less.")
    return best


@operation(name="lens")
def lens_of_run(run: RunLike, positions: Sequence[int | str] | None = None) -> Lens:
    """What each layer would have predicted before each of the text's last tokens, or at the positions named."""
    reading = Activations.of_run(run)
    if positions is None and run.steps:
        last = len(reading) - 1
        positions = range(max(0, last - min(len(run.steps), POSITIONS)), last)
    return lens(reading, positions)


@operation()
def load_lens(model: ModelLike, path: str | os.PathLike[str]) -> TunedLens:
    """A tuned lens of this model that was saved; on a server, by its name in the operator's folder."""
    return model.library.tuned_lens(os.fspath(path), lambda file: load_tuned_lens(file, model))


def shipped_lens(model: ModelLike) -> TunedLens | None:
    """The tuned lens that comes with the package for this model's weights."""
    path = model.library.shipped_lens
    if path is not None and path not in SHIPPED_MAPS:
        SHIPPED_MAPS[path] = load_tuned_lens(path, model).translators
    return None if path is None else TunedLens(model, SHIPPED_MAPS[path])
