"""How patching is computed: pairs of texts × places × a metric × a method.

Two texts lead to two answers. The second one is read again and again, each time with a value inside taken from the first.
Where that restores the first text's answer, the difference was carried through that place. Every kind of patching is made
of the same four things: pairs of texts (`pair.py`), places (a part of every layer here, the paths between some places in
`paths.py`), a metric of the logits under a patch, and a method: each patch is run (`run_patches`), or all are estimated at
once by gradients (`estimate.py`). What came of a pair is a `PairOutcome` in each case.

One pair says where its difference is carried; the mean over many that differ in the same way says what the model does
in general, and the spread how far one may trust it.

Shapes: logits (vocabulary); values (layers, columns), of many pairs (pairs, layers, columns) with NaN where a pair has no
such place: a column for each position, or for each head.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from numbers import Real
from typing import Generic, Protocol, TypeAlias, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from glassformer.ground.candidates import kl_divergence, log_softmax
from glassformer.ground.changes import Change
from glassformer.ground.errors import InputError, InputTypeError, SettingError, did_you_mean, spell
from glassformer.ground.progress import Progress
from glassformer.ground.sites import Watch
from glassformer.ground.typecheck import brief
from glassformer.see.activations import Activations
from glassformer.see.attribution import resolve_token_id
from glassformer.see.passes import grouped
from glassformer.see.patching.pair import PatchedRun, Place, ReadPair, TextPair, check_size, read_pairs
from glassformer.see.patching.view import (
    AnswerToken,
    GridValues,
    MetricName,
    PairPatching,
    PatchedPair,
    PatchedPart,
    Patching,
)
from glassformer.see.tokens import token_text
from glassformer.see.view import Floats

SITES: dict[str, str] = {
    "residual": "blocks.{}.residual",
    "attention": "blocks.{}.attention.update",
    "recurrent": "blocks.{}.recurrent.update",
    "mlp": "blocks.{}.mlp.update",
    "heads": "blocks.{}.attention.heads",
    "recurrent_heads": "blocks.{}.recurrent.heads",
    "query": "blocks.{}.attention.query",
    "key": "blocks.{}.attention.key",
    "value": "blocks.{}.attention.value",
    "pattern": "blocks.{}.attention.pattern",
}
BY_HEAD = frozenset({"heads", "recurrent_heads", "query", "key", "value", "pattern"})
LIKELY = 10  # tokens of each text among which a better pair is looked for
READ_TOKENS = 256  # of the pairs that are read together, about
Cell: TypeAlias = tuple[str, int]  # a layer and a column

# Places ---------------------------------------------------------------------------------------------------------

AnyPlace = TypeVar("AnyPlace", covariant=True)


class Places(Protocol[AnyPlace]):
    """Where values of the first text are put into the second."""

    def sites(self, pair: TextPair) -> Collection[str]:
        """What is read in the first text."""

    def size(self, pair: TextPair) -> tuple[int, int, int]:
        """How many columns and layers there are to patch, and how many tokens that reads."""

    def patched(self, read: ReadPair) -> Iterator[tuple[AnyPlace, Floats]]:
        """The second text's logits under each place's patch."""


@dataclass(frozen=True)
class PartPlaces:
    """A part of every layer: at each position, or each head's at all positions."""

    part: PatchedPart

    def __post_init__(self) -> None:
        names = get_args(PatchedPart)
        if not isinstance(self.part, str):
            raise InputTypeError(f"part is {brief(self.part)}; it must be one of {', '.join(map(repr, names))}.")
        if self.part not in SITES:
            nearest = did_you_mean(self.part, SITES)
            raise SettingError(f"there is no part {self.part!r} to patch.{nearest} Parts: {', '.join(names)}.")

    @property
    def by_head(self) -> bool:
        return self.part in BY_HEAD

    def layers(self, pair: TextPair) -> dict[str, str]:
        """The sites, by layer."""
        blueprint = pair.first.model.blueprint
        blocks = blueprint.encoder_blocks if pair.in_encoder else blueprint.blocks

        def known(part: str) -> dict[str, str]:
            every = {str(block): pair.prefix + SITES[part].format(block) for block in range(blocks)}
            return {block: site for block, site in every.items() if site in blueprint.sites}

        sites = known(self.part)
        if not sites:
            parts = ", ".join(filter(known, SITES))
            raise InputError(f"{pair.first.model.name} has no {self.part!r} to patch. Its layers have: {parts}.")
        if not blueprint.site_names.derived.isdisjoint(sites.values()):
            raise InputError(
                f"{pair.first.model.name} makes each head's {self.part} again of what it remembers, so that none can be "
                "patched. Patch 'query', 'heads' or 'pattern'."
            )
        return {"embedding": f"{pair.prefix}embedding", **sites} if self.part == "residual" else sites

    def sites(self, pair: TextPair) -> Collection[str]:
        return self.layers(pair).values()

    def heads(self, pair: TextPair) -> int:
        """How many columns are heads: as many as the layer with the most has; fewer where heads share a key and value."""
        return max(int(pair.first.shape(site)[0]) for site in self.layers(pair).values()) if self.by_head else 0

    def sharing(self, pair: TextPair) -> int:
        return PartPlaces("query").heads(pair) // self.heads(pair) if self.part in ("key", "value") else 1

    def size(self, pair: TextPair) -> tuple[int, int, int]:
        layers, length = len(self.layers(pair)), len(pair.ids(pair.second))
        starts = [min(pair.positions)] * self.heads(pair) if self.by_head else pair.positions
        return len(starts), layers, layers * sum(length - start if pair.causal else length for start in starts)

    def patched(self, read: ReadPair) -> Iterator[tuple[Cell, Floats]]:
        pair, sites = read.pair, self.layers(read.pair)
        if self.part == "pattern" and len(pair.ids(pair.first)) != len(pair.ids(pair.second)):
            raise InputError("patterns of texts with different numbers of tokens have different shapes. Patch query or key.")
        origins = [pair.origins[position] for position in pair.positions]
        patches: list[tuple[Cell, int, Change]]
        if self.by_head:
            whole = self.part == "pattern" and pair.first.model.blueprint.state_size > 0  # which a state has of whole texts
            start = 0 if whole else min(pair.positions)
            patches = [
                ((layer, head), start, Change(0.0, value[None, origins], pair.positions, [head]))
                for layer, site in sites.items()
                for head, value in enumerate(read.values[site])
            ]
        else:
            patches = [
                ((layer, column), position, Change(0.0, read.values[site][origin], [position]))
                for column, (position, origin) in enumerate(zip(pair.positions, origins, strict=True))
                for layer, site in sites.items()
            ]
        runs = [
            PatchedRun(cell, Watch(changes={sites[cell[0]]: change}), start, int(cell[0]) if cell[0].isdecimal() else 0)
            for cell, start, change in patches
        ]
        return ((place, logits) for place, logits, _ in read.patched(runs))


# Metrics --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScoredPair:
    """What a metric knows of a pair beside the logits under a patch."""

    first: Activations
    second: Activations
    answer: int  # the token's id
    against: int
    first_scores: Floats  # the logits without a patch
    second_scores: Floats

    @property
    def answers(self) -> tuple[AnswerToken, AnswerToken]:
        """The two tokens that are told apart."""
        tokenizer = self.first.model.tokenizer
        answer, against = (AnswerToken(token, token_text(tokenizer, token)) for token in (self.answer, self.against))
        return answer, against

    @cached_property
    def leads(self) -> tuple[float, float]:
        """The answer's lead over the other token after each text; refused where they are the same."""
        clean, corrupted = (logit_difference(logits, self) for logits in (self.first_scores, self.second_scores))
        if clean == corrupted:
            answer, other = (token.text for token in self.answers)
            raise InputError(f"{answer!r} has the same lead over {other!r} after both texts, so no patch can change it.")
        return clean, corrupted


Metric: TypeAlias = Callable[[Floats, ScoredPair], float]


def logit_difference(logits: Floats, pair: ScoredPair) -> float:
    return float(logits[pair.answer] - logits[pair.against])


def recovered(logits: Floats, pair: ScoredPair) -> float:
    """The logit difference, as a share of the way from the second text's to the first's."""
    clean, corrupted = pair.leads
    return (logit_difference(logits, pair) - corrupted) / (clean - corrupted)


def probability(logits: Floats, pair: ScoredPair) -> float:
    return float(np.exp(log_softmax(logits)[pair.answer]))


def kl(logits: Floats, pair: ScoredPair) -> float:
    """The divergence of what follows under a patch from what follows the first text, in bits."""
    return kl_divergence(log_softmax(pair.first_scores), log_softmax(logits))


METRICS: dict[str, Metric] = {metric.__name__: metric for metric in (recovered, logit_difference, probability, kl)}


def named_metric(metric: MetricName | Metric) -> tuple[str, Metric]:
    """A metric's name, and the metric with each of its values checked."""
    if not callable(metric) and metric not in METRICS:
        raise SettingError(
            f"there is no metric {metric!r}.{did_you_mean(str(metric), METRICS)} Metrics: "
            f"{', '.join(get_args(MetricName))}; or a function of scores and a pair."
        )
    function = metric if callable(metric) else METRICS[metric]
    name = getattr(function, "__name__", "metric")

    def measure(logits: Floats, pair: ScoredPair) -> float:
        try:
            value = function(logits, pair)
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"the metric {name!r} failed with {type(error).__name__}: {error}") from error
        value = value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
        if isinstance(value, bool) or not isinstance(value, Real) or not np.isfinite(float(value)):
            raise InputError(f"the metric {name!r} returned {brief(value)}; it must return a finite number.")
        return float(value)

    return name, measure


# What came of a pair --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairOutcome(Generic[Place]):
    """A pair, the tokens that are told apart, and what a metric gave at each place."""

    pair: TextPair
    scored: ScoredPair
    unpatched: tuple[float, float]  # the metric after each text
    values: Mapping[Place, float]

    @property
    def texts(self) -> tuple[str, str]:
        return self.pair.text(self.pair.first), self.pair.text(self.pair.second)


def run_patches(
    pairs: Sequence[TextPair], places: Places[Place], metric: Metric = recovered, progress: Progress | None = None
) -> list[PairOutcome[Place]]:
    """Patch the first text of each pair into the second, place by place, and measure the logits that follow."""
    columns, layers, tokens = zip(*map(places.size, pairs), strict=True)
    check_size(sum(columns), layers[0], sum(tokens))
    outcomes, done = [], count(1)
    for group in grouped(pairs, lambda pair: pair.tokens, READ_TOKENS):
        with read_pairs(group, places.sites(group[0])) as group_read:
            for read in group_read:
                with pair_named(read.pair.number):
                    scored = scored_pair(read.pair, read.scores)
                    unpatched = metric(scored.first_scores, scored), metric(scored.second_scores, scored)  # may be refused
                    values: dict[Place, float] = {}
                    for place, logits in places.patched(read):
                        values[place] = metric(logits, scored)
                        if progress is not None:
                            progress(next(done), sum(columns) * layers[0])
                    outcomes.append(PairOutcome(read.pair, scored, unpatched, values))
    return outcomes


def scored_pair(pair: TextPair, logits: Sequence[Floats]) -> ScoredPair:
    """A pair with the two tokens that are told apart: those named, or what each text leads to by its logits."""
    model = pair.first.model
    answer, against = (resolve_token_id(model, token, row) for token, row in zip(pair.answers, logits, strict=True))
    if answer == against:
        both = "both lead" if None in pair.answers else "are both to lead"
        words = (token_text(model.tokenizer, token) for token in _most_different(*logits))
        better = " and ".join(spell(name, word) for name, word in zip(("answer", "against"), words, strict=True))
        raise InputError(
            f"the texts {both} to {token_text(model.tokenizer, answer)!r}. Name two tokens to tell them apart, such as "
            f"those that differ most: {better}."
        )
    return ScoredPair(pair.first, pair.second, answer, against, *logits)


def _most_different(first: Floats, second: Floats) -> tuple[int, int]:
    """Of the tokens that either text makes likely, the one that gains most by the first, and the one that loses most."""
    logs, other = log_softmax(first), log_softmax(second)
    likely = np.union1d(np.argsort(logs)[-LIKELY:], np.argsort(other)[-LIKELY:])
    gap = (logs - other)[likely]
    return int(likely[gap.argmax()]), int(likely[gap.argmin()])


class PairError(InputError):
    """What is wrong with one of many pairs; whoever has read them from a file says in which row it is."""

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(f"pair {number}{problem}")
        self.number, self.problem = number, problem


@contextmanager
def pair_named(number: int | None) -> Iterator[None]:
    """Around the work on one of many pairs: an error says which it was."""
    try:
        yield
    except InputError as error:
        if number is None:
            raise
        raise PairError(number, f": {error}") from error


# As views -------------------------------------------------------------------------------------------------------


def one_pair(places: PartPlaces, outcome: PairOutcome[Cell]) -> Patching:
    """What the metric `recovered` gave in one pair."""
    pair, scored = outcome.pair, outcome.scored
    layers, heads = tuple(places.layers(pair)), places.heads(pair)
    columns = range(heads or len(pair.positions))
    return Patching(
        pair.first.model.name,
        places.part,
        outcome.texts,
        (pair.token_texts(pair.first), pair.token_texts(pair.second)),
        scored.answers,
        scored.leads,
        layers,
        tuple(pair.positions),
        heads,
        places.sharing(pair),
        tuple(tuple(outcome.values.get((layer, column), 0.0) for column in columns) for layer in layers),  # 0: no such head
        (int(scored.first_scores.argmax()), int(scored.second_scores.argmax())),
        tuple(pair.first.model.changes),
    )


def averaged(places: PartPlaces, metric: str, outcomes: Sequence[PairOutcome[Cell]]) -> PairPatching:
    """All pairs' cells side by side: by head, or by position, from the end where the texts have different lengths."""
    pair, by_head = outcomes[0].pair, places.by_head
    lengths = [len(outcome.pair.ids(outcome.pair.second)) for outcome in outcomes]
    cells: list[dict[Cell, float]] = []
    for outcome, length in zip(outcomes, lengths, strict=True):
        names = range(places.heads(pair)) if by_head else outcome.pair.positions
        offset = length if not by_head and len(set(lengths)) > 1 else 0
        cells.append({(layer, names[column] - offset): value for (layer, column), value in outcome.values.items()})
    layers = tuple(places.layers(pair))
    columns = sorted({column for grid in cells for _, column in grid})
    values = np.array([[[grid.get((layer, column), np.nan) for column in columns] for layer in layers] for grid in cells])
    counts = np.isfinite(values).sum(0)
    means = np.where(counts > 0, np.nansum(values, 0) / np.maximum(counts, 1), np.nan)
    squares = np.nansum((values - means) ** 2, 0)
    errors = np.where(counts > 1, np.sqrt(squares / np.maximum(counts - 1, 1) / np.maximum(counts, 1)), np.nan)
    return PairPatching(
        pair.first.model.name,
        places.part,
        metric,
        tuple(PatchedPair(one.texts, one.scored.answers, one.unpatched, one.pair.unaligned) for one in outcomes),
        layers,
        () if by_head else tuple(columns),
        places.heads(pair),
        places.sharing(pair),
        _without_nan(means),
        _without_nan(errors),
        tuple(tuple(map(int, row)) for row in counts),
        tuple(map(_without_nan, values)),
        tuple(pair.first.model.changes),
    )


def _without_nan(values: npt.NDArray[np.float64]) -> GridValues:
    return tuple(tuple(None if np.isnan(value) else float(value) for value in row) for row in values)
