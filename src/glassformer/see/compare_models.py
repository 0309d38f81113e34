"""Two models over one text: another quantization, executor or change, or another model of the same vocabulary.

The text is fed as it is, in windows that begin anew, and each token is scored by what stands before it in its window. Where
both have the same stream, the states that leave each block are compared too, so that one sees where the difference begins.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from glassformer.ground.candidates import LogProbabilities, kl_divergence, log_softmax
from glassformer.ground.errors import InputError
from glassformer.ground.progress import Progress
from glassformer.page.document import Column, Heading, Page, PagePart, Paragraph, Table, TableRow
from glassformer.page.format import format_percent, tail, visible
from glassformer.see.activations import Activations
from glassformer.see.evaluation import WINDOW, added_bos, windows
from glassformer.see.protocols import ModelLike
from glassformer.see.tokens import token_text
from glassformer.see.view import Floats, View
from glassformer.text import Tokenizer

MAX_CONTEXT = 24  # characters of the text before a position
MAX_PLACES = 6  # that differ most, unless everything is shown
MAX_LAYERS = 8
LEGEND = "1, 2: the models · best: the most likely token · prob.: of the token in the text"


@dataclass(frozen=True)
class DifferingPlace:
    """One position in the text, and what both models predict there."""

    position: int
    before: str
    token: str  # the token there; empty after the end
    best: tuple[str, str]  # each model's most likely token
    probability: tuple[float | None, float | None]  # of the token there
    divergence: float  # of the second from the first, in bits


@dataclass(frozen=True)
class StreamDifference:
    """How far the two residual streams differ after one block."""

    layer: str
    error: float  # the norm of the difference over that of the first, mean over the tokens


@dataclass(frozen=True)
class ModelComparison(View):
    """Two models' predictions and residual streams over one text."""

    SCHEMA = "glassformer.compare-models/3"

    names: tuple[str, str]
    tokens: int  # that were scored
    perplexity: tuple[float, float]
    divergence: float  # mean, in bits a token
    agreement: float  # fraction of positions where the best token is the same
    first: DifferingPlace | None  # the first position where the best tokens differ
    worst: tuple[DifferingPlace, ...]  # by divergence
    gaps: tuple[StreamDifference, ...]  # by layer; none where the streams cannot be compared

    def page(self, everything: bool = False) -> Page:
        first, second = self.names
        rows = (
            TableRow(("tokens", f"{self.tokens:,}", "")),
            TableRow(("perplexity", f"{self.perplexity[0]:,.4f}", f"{self.perplexity[1]:,.4f}")),
            TableRow(("KL divergence", f"{self.divergence:.3g}", "bits per token")),
            TableRow(("same best token", f"{self.agreement:.2%}", "")),
        )
        title = f"{first}  ‖  {second}"
        parts: list[PagePart] = [
            Table((Column(), Column("first", "number", min_width=12), Column("second")), rows),
        ]
        if self.first is None:
            parts.append(Paragraph("the same best token at every position", "chosen"))
        else:
            parts.append(Paragraph(f"the best tokens first differ at position {self.first.position}:", "strong"))
            parts.append(_places_table([self.first]))
        if self.divergence:
            places = _places_table(self.worst if everything else self.worst[:MAX_PLACES])
            parts += [Heading("where they differ most"), places, Paragraph(LEGEND, "dim")]
        if self.gaps:
            most = max(gap.error for gap in self.gaps) or 1.0
            order = list(self.gaps) if everything else sorted(self.gaps, key=lambda gap: -gap.error)[:MAX_LAYERS]
            layers = tuple(TableRow((gap.layer, f"{gap.error:.2e}", gap.error / most)) for gap in order)
            parts += [
                Heading("difference of the residual streams, " + ("layer by layer" if everything else "worst layers first")),
                Table((Column("after", "number"), Column("error", "number"), Column("", "bar")), layers),
                Paragraph("error: the norm of the difference over that of the first, mean over the tokens", "dim"),
            ]
        return Page.titled(title, *parts)

    def __repr__(self) -> str:
        return f"ModelComparison({self.names[0]} ‖ {self.names[1]}: KL {self.divergence:.2g}, agree {self.agreement:.1%})"


def _places_table(places: Sequence[DifferingPlace]) -> Table:
    def probability(place: DifferingPlace, model: int) -> str:
        value = place.probability[model]
        return "" if value is None else format_percent(value)

    return Table.of(
        places,
        (Column("", "number"), lambda place: str(place.position)),
        (Column("context", min_width=10, keep_end=True), lambda place: tail(place.before, MAX_CONTEXT)),
        (Column("token", "token", min_width=6), lambda place: visible(place.token) if place.token else ""),
        (Column("best 1", "token", min_width=8), lambda place: visible(place.best[0])),
        (Column("best 2", "token", min_width=8), lambda place: visible(place.best[1])),
        (Column("prob. 1", "number", priority=6), lambda place: probability(place, 0)),
        (Column("prob. 2", "number", priority=6), lambda place: probability(place, 1)),
        (Column("KL, bits", "number"), lambda place: f"{place.divergence:.3g}"),
    )


WORST = 12  # places that are shown
BEFORE = 16  # tokens whose text is shown before a place
CHUNK = 64  # tokens that go through both at a time


def compare_models(
    first: ModelLike,
    second: ModelLike,
    text: str,
    names: tuple[str, str] | None = None,
    progress: Progress | None = None,
) -> ModelComparison:
    """Two models over a text of any length, window by window."""
    if not first.writes or first.decoder_start_token is not None:
        raise InputError(f"{first.name} does not continue texts, so there is nothing to compare on one.")
    ids = first.tokenizer(text, add_special_tokens=False)["input_ids"]
    if second.tokenizer(text, add_special_tokens=False)["input_ids"] != ids:
        raise InputError(
            f"{first.name} and {second.name} cut this text into different tokens, so they cannot be compared on it."
        )
    spans = windows(ids, added_bos(first.tokenizer), min(WINDOW, first.config.context, second.config.context))
    readings, others = ([Activations(model, span, None, len(span)) for span in spans] for model in (first, second))
    return compare_windows(readings, others, names or labels(first, second), first.tokenizer, progress)


def compare_readings(
    first: Activations, second: Activations, names: tuple[str, str] | None = None, progress: Progress | None = None
) -> ModelComparison:
    """One text as two models have read it."""
    names = names or labels(first.model, second.model)
    return compare_windows([first], [second], names, first.model.tokenizer, progress)


def labels(first: ModelLike, second: ModelLike) -> tuple[str, str]:
    """Names for two models: by what differs."""
    if first.name != second.name:
        return first.name, second.name
    label, second_label = _label(first), _label(second)
    return label, second_label if second_label != label else f"{label}, again"


def _label(model: ModelLike) -> str:
    """A model with how it runs: its executor, its dtype and its options."""
    changed = ", changed" if model.changes else ""
    if not model.writes:
        return f"{model.name}{changed}"
    about = model.executor.describe()
    how = [about.name, about.dtype, *about.option_texts]
    return f"{model.name} ({', '.join(how)}{changed})"


def compare_windows(
    first: Sequence[Activations],
    second: Sequence[Activations],
    names: tuple[str, str],
    tokenizer: Tokenizer,
    progress: Progress | None = None,
) -> ModelComparison:
    """Two models over the same windows of a text."""
    sums = ComparisonSums()
    done, total = 0, sum(map(len, first))
    for pair in zip(first, second, strict=True):
        if pair[0].ids != pair[1].ids:
            raise InputError("the two models cut this text into different tokens, so they cannot be compared on it.")
        for place, agrees in _places(*pair, sums, tokenizer, done, done + len(pair[0]) == total):
            sums.add(place, agrees)
        done += len(pair[0])
        if progress is not None:
            progress(done, total)
    if not sums.scored:
        raise InputError("a text needs at least two tokens to compare two models on it. Give a longer one.")
    perplexity = tuple(math.exp(min(nats / sums.scored, 700)) for nats in sums.nats)
    worst = tuple(sorted(sums.worst(), key=lambda place: -place.divergence))
    gaps = tuple(StreamDifference(name, errors / tokens) for name, (errors, tokens) in sums.gaps.items())
    return ModelComparison(
        names, sums.scored, (perplexity[0], perplexity[1]), sums.divergence / sums.count, sums.same / sums.count,
        sums.first, worst, gaps,
    )  # fmt: skip


class ComparisonSums:
    """What adds up over a text."""

    def __init__(self) -> None:
        self.count, self.scored, self.same, self.divergence = 0, 0, 0, 0.0
        self.nats = [0.0, 0.0]
        self.first: DifferingPlace | None = None
        self.gaps: dict[str, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, DifferingPlace]] = []

    def add(self, place: DifferingPlace, agrees: bool) -> None:
        self.count += 1
        self.same += agrees
        self.divergence += place.divergence
        if place.probability != (None, None):
            self.scored += 1
            pairs = zip(self.nats, place.probability, strict=True)
            self.nats = [nats - math.log(max(probability or 0.0, 1e-300)) for nats, probability in pairs]
        if not agrees and self.first is None:
            self.first = place
        heapq.heappush(self._heap, (place.divergence, self.count, place))
        if len(self._heap) > WORST:
            heapq.heappop(self._heap)

    def worst(self) -> list[DifferingPlace]:
        return [place for _, _, place in self._heap]

    def add_states(self, layer: str, first: Floats, second: Floats) -> None:
        """Errors relative to each token's own state, since the first token's is often far longer than all others'."""
        so_far, tokens = self.gaps.get(layer, (0.0, 0))
        lengths = np.linalg.norm(first.astype(np.float64), axis=1)
        errors = np.linalg.norm((first - second).astype(np.float64), axis=1) / np.maximum(lengths, 1e-12)
        self.gaps[layer] = (so_far + float(errors.sum()), tokens + len(errors))


def _places(
    first: Activations, second: Activations, sums: ComparisonSums, tokenizer: Tokenizer, offset: int, last: bool
) -> Iterator[tuple[DifferingPlace, bool]]:
    """Every place of a window, and whether both models' best tokens agree there.

    `last`: it ends the text, so what would come next is compared too.
    """
    sites = {}
    if first.stream == second.stream and first.model.config.hidden_size == second.model.config.hidden_size:
        sites = dict([*first.stream.items()][:-1]) | {"final": "final"}
    pairs = zip(*(side.chunks(*sites.values(), scored=True, size=CHUNK) for side in (first, second)), strict=True)
    for chunk, other in pairs:
        for layer, site in sites.items():
            sums.add_states(layer, chunk.sites[site], other.sites[site])
        assert chunk.scores is not None
        assert other.scores is not None
        size = min(chunk.scores.shape[1], other.scores.shape[1])
        for index in range(chunk.count):
            position = chunk.start + index + 1
            if position < len(first.ids) or last:
                logs = log_softmax(chunk.scores[index, :size]), log_softmax(other.scores[index, :size])
                yield _place(first.ids, position, logs, tokenizer, offset)


def _place(
    ids: Sequence[int], position: int, logs: tuple[LogProbabilities, LogProbabilities], tokenizer: Tokenizer, offset: int
) -> tuple[DifferingPlace, bool]:
    token, best = ids[position] if position < len(ids) else None, (int(logs[0].argmax()), int(logs[1].argmax()))
    text = "" if token is None else token_text(tokenizer, token)
    texts = token_text(tokenizer, best[0]), token_text(tokenizer, best[1])
    before = tokenizer.decode(ids[max(0, position - BEFORE) : position])
    probabilities = (None, None) if token is None else (float(np.exp(logs[0][token])), float(np.exp(logs[1][token])))
    place = DifferingPlace(offset + position, before, text, texts, probabilities, kl_divergence(*logs))
    return place, best[0] == best[1]
