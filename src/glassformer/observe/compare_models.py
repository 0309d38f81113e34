"""Two models over one text: another quantisation, executor or change, another model, or another library's run of it.

The text is fed as it is, in windows that begin anew, and each token is scored by what stands before it in its window. Where
both have the same stream, the states that leave each block are compared too, so that one sees where the difference begins.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.candidates import log_softmax
from glassformer.errors import InputError
from glassformer.observe.activations import Activations
from glassformer.observe.perplexity import WINDOW, begins_with
from glassformer.observe.protocols import Floats, ModelLike
from glassformer.progress import Progress
from glassformer.text import Tokenizer
from glassformer.text.pieces import shown_bytes
from glassformer.views.compare_models import DifferingPlace, ModelComparison, StreamDifference

WORST = 12  # places that are told
BEFORE = 16  # tokens whose text is shown before a place
CHUNK = 64  # tokens that go through both at a time
Logs: TypeAlias = npt.NDArray[np.float64]  # log-probabilities, (vocabulary,)


def compare_models(
    first: ModelLike,
    second: ModelLike,
    text: str,
    names: tuple[str, str] | None = None,
    progress: Progress | None = None,
) -> ModelComparison:
    """Two models over a text of any length, window by window."""
    if not first.writes or first.start is not None:
        raise InputError(f"{first.name} does not continue texts, so there is nothing to compare on one.")
    ids = first.tokenizer(text, add_special_tokens=False)["input_ids"]
    if second.tokenizer(text, add_special_tokens=False)["input_ids"] != ids:
        raise InputError(
            f"{first.name} and {second.name} cut this text into different tokens, so they cannot be compared on it."
        )
    spans = windows(ids, begins_with(first.tokenizer), min(WINDOW, first.config.context, second.config.context))
    one, other = ([Activations(model, span, None, len(span)) for span in spans] for model in (first, second))
    return compare_windows(one, other, names or labels(first, second), first.tokenizer, progress)


def compare_readings(
    first: Activations, second: Activations, names: tuple[str, str] | None = None, progress: Progress | None = None
) -> ModelComparison:
    """The same text as two models have read it."""
    names = names or labels(first.model, second.model)
    return compare_windows([first], [second], names, first.model.tokenizer, progress)


def windows(ids: Sequence[int], begin: int | None, size: int) -> list[tuple[int, ...]]:
    """A text in windows of so many tokens; each begins with `begin`, where there is such a token."""
    before = () if begin is None else (begin,)
    step = size - len(before)
    return [(*before, *ids[start : start + step]) for start in range(0, len(ids), step)]


def labels(first: ModelLike, second: ModelLike) -> tuple[str, str]:
    """What to call two models: by what differs."""
    if first.name != second.name:
        return first.name, second.name
    one, other = _label(first), _label(second)
    return one, other if other != one else f"{other}, again"


def _label(model: ModelLike) -> str:
    """A model with how it runs: its executor, its weights' kind, and what was asked for."""
    changed = ", changed" if model.changes else ""
    if not model.writes:
        return f"{model.name}{changed}"
    about = model.executor.describe()
    how = [about.name, about.dtype, *(f"{name} in {kind}" for name, kind in about.options.items())]
    return f"{model.name} ({', '.join(how)}{changed})"


def compare_windows(
    first: Sequence[Activations],
    second: Sequence[Activations],
    names: tuple[str, str],
    tokenizer: Tokenizer,
    progress: Progress | None = None,
) -> ModelComparison:
    """Two models over the same windows of a text."""
    sums = _Sums()
    done, total = 0, sum(len(one) for one in first)
    for one, other in zip(first, second, strict=True):
        if one.ids != other.ids:
            raise InputError("the two models cut this text into different tokens, so they cannot be compared on it.")
        for place in _places(one, other, sums, tokenizer, done, done + len(one) == total):
            sums.add(place)
        done += len(one)
        if progress is not None:
            progress(done, total)
    if not sums.scored:
        raise InputError("a text needs at least two tokens to compare two models on it. Give a longer one.")
    perplexity = tuple(math.exp(min(nats / sums.scored, 700)) for nats in sums.nats)
    worst = tuple(sorted(sums.worst(), key=lambda one: -one.divergence))
    gaps = tuple(StreamDifference(name, errors / tokens) for name, (errors, tokens) in sums.gaps.items())
    return ModelComparison(
        names, sums.scored, (perplexity[0], perplexity[1]), sums.divergence / sums.count, sums.same / sums.count,
        sums.first, worst, gaps,
    )  # fmt: skip


class _Sums:
    """What adds up over a text."""

    def __init__(self) -> None:
        self.count, self.scored, self.same, self.divergence = 0, 0, 0, 0.0
        self.nats = [0.0, 0.0]
        self.first: DifferingPlace | None = None
        self.gaps: dict[str, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, DifferingPlace]] = []

    def add(self, place: tuple[DifferingPlace, bool]) -> None:
        one, agrees = place
        self.count += 1
        self.same += agrees
        self.divergence += one.divergence
        if one.probability != (None, None):
            self.scored += 1
            pairs = zip(self.nats, one.probability, strict=True)
            self.nats = [nats - math.log(max(share or 0.0, 1e-300)) for nats, share in pairs]
        if not agrees and self.first is None:
            self.first = one
        heapq.heappush(self._heap, (one.divergence, self.count, one))
        if len(self._heap) > WORST:
            heapq.heappop(self._heap)

    def worst(self) -> list[DifferingPlace]:
        return [one for _, _, one in self._heap]

    def apart(self, name: str, one: Floats, other: Floats) -> None:
        """Token by token, since the first one's state is often far longer than all others'."""
        so_far, tokens = self.gaps.get(name, (0.0, 0))
        lengths = np.linalg.norm(one.astype(np.float64), axis=1)
        errors = np.linalg.norm((one - other).astype(np.float64), axis=1) / np.maximum(lengths, 1e-12)
        self.gaps[name] = (so_far + float(errors.sum()), tokens + len(errors))


def _places(
    one: Activations, other: Activations, sums: _Sums, tokenizer: Tokenizer, offset: int, last: bool
) -> Iterator[tuple[DifferingPlace, bool]]:
    """Every place of a window; `last`: it ends the text, so what would come next is compared too."""
    blueprints = one.model.blueprint, other.model.blueprint
    alike = blueprints[0].blocks == blueprints[1].blocks and one.model.config.hidden_size == other.model.config.hidden_size
    sites = ["embedding", *(f"blocks.{number}.residual" for number in range(blueprints[0].blocks - 1)), "final"]
    watched = sites if alike else []
    pairs = zip(one.chunks(*watched, scored=True, size=CHUNK), other.chunks(*watched, scored=True, size=CHUNK), strict=True)
    for mine, theirs in pairs:
        for site in watched:
            sums.apart(site.removeprefix("blocks.").removesuffix(".residual"), mine.sites[site], theirs.sites[site])
        assert mine.scores is not None
        assert theirs.scores is not None
        size = min(mine.scores.shape[1], theirs.scores.shape[1])
        for number in range(mine.count):
            at = mine.start + number + 1
            if at < len(one.ids) or last:
                logs = log_softmax(mine.scores[number, :size]), log_softmax(theirs.scores[number, :size])
                yield _place(one, at, logs, tokenizer, offset)


def _place(
    side: Activations, at: int, logs: tuple[Logs, Logs], tokenizer: Tokenizer, offset: int
) -> tuple[DifferingPlace, bool]:
    came, best = side.ids[at] if at < len(side.ids) else None, [int(one.argmax()) for one in logs]
    divergence = max(0.0, float((np.exp(logs[0]) * (logs[0] - logs[1])).sum()))
    texts = ["" if token is None else shown_bytes(tokenizer.token_bytes(token)) for token in (came, *best)]
    before = tokenizer.decode(side.ids[max(0, at - BEFORE) : at])
    shares = (None, None) if came is None else (float(np.exp(logs[0][came])), float(np.exp(logs[1][came])))
    return DifferingPlace(offset + at, before, texts[0], (texts[1], texts[2]), shares, divergence), best[0] == best[1]
