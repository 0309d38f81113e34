"""Activation patching over many pairs of texts, with a metric that is chosen, or one's own.

One pair says where its own difference is carried; the mean over many that differ in the same way says what the model does
in general, and the spread how far one may trust it.

Shapes: scores (vocabulary); values (pairs, layers, columns), NaN where a pair has no such place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from glassformer.ground.candidates import kl_divergence, log_softmax
from glassformer.ground.errors import InputError, SettingError, did_you_mean
from glassformer.ground.progress import Progress
from glassformer.ground.typecheck import brief
from glassformer.observe.activations import Activations
from glassformer.observe.patching import answer_tokens
from glassformer.observe.protocols import Floats
from glassformer.observe.text_pair import BY_HEAD, ReadPair, TextPair, check_part, check_size, read_pairs
from glassformer.views.patching import AnswerToken, PatchedPart
from glassformer.views.patching_pairs import MetricName, PairPatching, PatchedPair

READ_TOKENS = 256  # of the pairs that are read together, about


class PairError(InputError):
    """What is wrong with one of the pairs; whoever has read them from a file says where it stands."""

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(f"pair {number}{problem}")
        self.number, self.problem = number, problem


class PairTexts(NamedTuple):
    """A pair to patch: two texts, and the tokens to tell apart, if they are not what each text leads to."""

    first: Any
    second: Any
    answer: int | str | None = None
    against: int | str | None = None


@dataclass(frozen=True)
class ScoredPair:
    """What a metric knows of a pair beside the scores under a patch."""

    first: Activations
    second: Activations
    answer: int  # the token's id
    against: int
    first_scores: Floats  # without a patch
    second_scores: Floats


Metric: TypeAlias = Callable[[Floats, ScoredPair], float]


def logit_difference(scores: Floats, pair: ScoredPair) -> float:
    return float(scores[pair.answer] - scores[pair.against])


def recovered(scores: Floats, pair: ScoredPair) -> float:
    """The logit difference, as a share of the way from the second text's to the first's."""
    clean, corrupted = logit_difference(pair.first_scores, pair), logit_difference(pair.second_scores, pair)
    if clean == corrupted:
        raise InputError("the answer has the same lead after both texts, so no patch can change it.")
    return (logit_difference(scores, pair) - corrupted) / (clean - corrupted)


def probability(scores: Floats, pair: ScoredPair) -> float:
    return float(np.exp(log_softmax(scores)[pair.answer]))


def kl(scores: Floats, pair: ScoredPair) -> float:
    """The divergence of what follows under a patch from what follows the first text, in bits."""
    return kl_divergence(log_softmax(pair.first_scores), log_softmax(scores))


METRICS: dict[str, Metric] = {
    "recovered": recovered,
    "logit_difference": logit_difference,
    "probability": probability,
    "kl": kl,
}


def patching_pairs(
    pairs: Sequence[tuple[Activations, Activations, int | str | None, int | str | None]],
    part: PatchedPart = "heads",
    positions: Sequence[int | str] | int | None = None,
    *,
    metric: MetricName | Metric = "recovered",
    progress: Progress | None = None,
) -> PairPatching:
    """Patch the first text of each pair into the second, place by place, and average what a metric makes of it."""
    check_part(part)
    name, function = _metric(metric)
    if not pairs:
        raise InputError("there are no pairs of texts to patch. Give at least one.")
    text_pairs = []
    for number, (first, second, *_) in enumerate(pairs, 1):
        with pair_named(number):
            text_pairs.append(TextPair(first, second, positions, aligned=True))
    costs = [pair.cost(part) for pair in text_pairs]
    check_size((sum(cost[0] for cost in costs), costs[0][1], sum(cost[2] for cost in costs)))
    total = sum(columns * layers for columns, layers, _ in costs)
    described, cells, done = [], [], 0
    for numbers in _groups(text_pairs):
        with read_pairs([text_pairs[number] for number in numbers], text_pairs[0].sites(part).values()) as group:
            for number, read in zip(numbers, group, strict=True):
                pair, (_, _, answer, against) = read.pair, pairs[number]
                with pair_named(number + 1):
                    own: dict[tuple[str, int], float] = {}
                    scored, answers = _scored(read, answer, against)
                    first_value, second_value = (_value(function, name, scores, scored) for scores in read.scores)
                    texts = pair.text(pair.first), pair.text(pair.second)
                    described.append(PatchedPair(texts, answers, (first_value, second_value), pair.unaligned))
                    for patch, scores, _ in read.patched(pair.patches(part, read.values)):
                        column = patch.column if part in BY_HEAD else pair.positions[patch.column]
                        own[patch.layer, column] = _value(function, name, scores, scored)
                        done += 1
                        if progress is not None:
                            progress(done, total)
                    cells.append(own)
    return _averaged(text_pairs, part, name, tuple(described), cells)


def parse_pairs(pairs: Sequence[Sequence[Any] | Mapping[str, Any]]) -> list[PairTexts]:
    """Pairs as they are given: (first, second), (first, second, answer, against), or mappings with these names."""
    parsed, known = [], PairTexts._fields
    for number, pair in enumerate(pairs, 1):
        fields = dict(pair) if isinstance(pair, Mapping) else dict(zip(known, pair, strict=False))
        if unknown := sorted(map(str, set(fields) - set(known))):
            raise PairError(number, f" has a field {unknown[0]!r}; those of a pair are {', '.join(known)}.")
        if fields.get("first") is None or fields.get("second") is None or len(pair) > len(known):
            raise PairError(number, f" is {brief(pair)}; it must have a first and a second text, and perhaps two answers.")
        parsed.append(PairTexts(**fields))
    return parsed


def _metric(metric: MetricName | Metric) -> tuple[str, Metric]:
    if callable(metric):
        return getattr(metric, "__name__", "metric"), metric
    if metric not in METRICS:
        raise SettingError(
            f"there is no metric {metric!r}.{did_you_mean(str(metric), METRICS)} Metrics: "
            f"{', '.join(get_args(MetricName))}; or a function of scores and a pair."
        )
    return metric, METRICS[metric]


def _value(function: Metric, name: str, scores: Floats, pair: ScoredPair) -> float:
    """A metric's number for some scores."""
    try:
        value = function(scores, pair)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"the metric {name!r} failed with {type(error).__name__}: {error}") from error
    value = value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
    if isinstance(value, bool) or not isinstance(value, Real) or not np.isfinite(float(value)):
        raise InputError(f"the metric {name!r} returned {brief(value)}; it must return a finite number.")
    return float(value)


def _scored(
    read: ReadPair, answer: int | str | None, against: int | str | None
) -> tuple[ScoredPair, tuple[AnswerToken, AnswerToken]]:
    pair = read.pair
    answers = answer_tokens(pair.first.model, read.scores, answer, against)
    return ScoredPair(pair.first, pair.second, answers[0].id, answers[1].id, *read.scores), answers


def _groups(pairs: Sequence[TextPair]) -> Iterator[list[int]]:
    """The numbers of the pairs that are read together."""
    group: list[int] = []
    tokens = 0
    for number, pair in enumerate(pairs):
        size = len(pair.ids(pair.first)) + len(pair.ids(pair.second))
        if group and tokens + size > READ_TOKENS:
            yield group
            group, tokens = [], 0
        group.append(number)
        tokens += size
    yield group


@contextmanager
def pair_named(number: int) -> Iterator[None]:
    """Around the work on one pair: an error says which it was."""
    try:
        yield
    except InputError as error:
        raise PairError(number, f": {error}") from error


def _averaged(
    pairs: Sequence[TextPair], part: PatchedPart, metric: str, described: tuple[PatchedPair, ...],
    cells: Sequence[Mapping[tuple[str, int], float]],
) -> PairPatching:  # fmt: skip
    """All pairs' cells side by side: by head, or by position, from the end where the texts have different lengths."""
    lengths = [len(pair.ids(pair.second)) for pair in pairs]
    if part not in BY_HEAD and len(set(lengths)) > 1:
        cells = [
            {(layer, at - length): value for (layer, at), value in own.items()}
            for own, length in zip(cells, lengths, strict=True)
        ]
    layers = tuple(dict.fromkeys(layer for own in cells for layer, _ in own))
    columns = sorted({column for own in cells for _, column in own})
    values = np.array([[[own.get((layer, column), np.nan) for column in columns] for layer in layers] for own in cells])
    counts = np.isfinite(values).sum(0)
    totals = np.nansum(values, 0)
    means = np.where(counts > 0, totals / np.maximum(counts, 1), np.nan)
    squares = np.nansum((values - means) ** 2, 0)
    errors = np.where(counts > 1, np.sqrt(squares / np.maximum(counts - 1, 1) / np.maximum(counts, 1)), np.nan)
    first, by_head = pairs[0], part in BY_HEAD
    return PairPatching(
        first.first.model.name,
        part,
        metric,
        described,
        layers,
        () if by_head else tuple(columns),
        len(columns) if by_head else 0,
        first.heads // len(columns) if part in ("key", "value") else 1,
        _numbers(means),
        _numbers(errors),
        tuple(tuple(map(int, row)) for row in counts),
        tuple(_numbers(own) for own in values),
        tuple(first.first.model.changes),
    )


def _numbers(values: npt.NDArray[np.float64]) -> tuple[tuple[float | None, ...], ...]:
    return tuple(tuple(None if np.isnan(value) else float(value) for value in row) for row in values)
