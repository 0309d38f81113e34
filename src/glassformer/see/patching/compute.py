"""Activation patching: which places inside the model make one text lead elsewhere than another.

Two texts lead to two answers. The second one is read again and again, each time with a value inside taken from the first.
Where that restores the first text's answer, the difference was carried through that place. Every kind of patching is made
of the same four things: pairs of texts (`pair.py`), places (a part of every layer here, the ways between some places in
`paths.py`), a metric of the scores under a patch, and a method: each patch is run, or all are estimated at once by gradients
(`estimate.py`). What came of a pair is a `PairOutcome` in each case.

One pair says where its own difference is carried; the mean over many that differ in the same way says what the model does
in general, and the spread how far one may trust it.

Shapes: scores (vocabulary); values (layers, columns), of many pairs (pairs, layers, columns) with NaN where a pair has no
such place: a column for each position, or for each head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import Annotated, Any, Generic, NamedTuple, TypeAlias, Unpack, get_args

import numpy as np
import numpy.typing as npt

from glassformer.ground.candidates import kl_divergence, log_softmax
from glassformer.ground.changes import Change
from glassformer.ground.errors import InputError, InputTypeError, SettingError, did_you_mean
from glassformer.ground.operations import about, operation
from glassformer.ground.progress import Progress
from glassformer.ground.sites import Watch
from glassformer.ground.typecheck import OWN_CHECK, brief
from glassformer.see.activations import Activations
from glassformer.see.attribution import resolve_token_id
from glassformer.see.passes import grouped
from glassformer.see.patching.pair import PatchedRun, Place, ReadPair, TextPair, check_size, read_pairs
from glassformer.see.patching.view import AnswerToken, MetricName, Numbers, PairPatching, PatchedPair, PatchedPart, Patching
from glassformer.see.protocols import ModelLike
from glassformer.see.reading import Reading, read
from glassformer.see.tokens import token_text
from glassformer.see.view import Floats
from glassformer.text.prompt import Prompt, PromptKeywords, PromptOptions

SITES: dict[str, str] = {
    "residual": "blocks.{}.residual",
    "attention": "blocks.{}.attention.update",
    "mlp": "blocks.{}.mlp.update",
    "heads": "blocks.{}.attention.heads",
    "query": "blocks.{}.attention.query",
    "key": "blocks.{}.attention.key",
    "value": "blocks.{}.attention.value",
    "pattern": "blocks.{}.attention.pattern",
}
BY_HEAD = frozenset({"heads", "query", "key", "value", "pattern"})
LIKELY = 10  # tokens of each text among which a better pair is looked for
READ_TOKENS = 256  # of the pairs that are read together, about
Cell: TypeAlias = tuple[str, int]  # a layer and a column
Answers: TypeAlias = tuple[int | str | None, int | str | None]  # the tokens to tell apart; None: what a text leads to

TEXT_OF_TWO: dict[str, Any] = {"positional": True, "default_shown": False, "typed": str, "served": str}
ONLY = "Only at this position, or token of the second text; repeatable."
FirstArgument = Annotated[Prompt, about("The text whose activations are patched in.", **TEXT_OF_TWO)]
SecondArgument = Annotated[Prompt, about("The text they are patched into, of equal length.", **TEXT_OF_TWO)]
PART_NAMES, METRIC_NAMES = (", ".join(get_args(names)) for names in (PatchedPart, MetricName))
PartArgument = Annotated[PatchedPart, OWN_CHECK, about(f"What is patched: {PART_NAMES}.")]
Positions: TypeAlias = Sequence[int | str] | int | None
PlaceArgument = Annotated[
    Positions, about(ONLY, "--token", "-t", typed=list[str], served=Sequence[int | str] | None, served_minimum=0)
]
PositionsArgument = Annotated[Positions, about(ONLY, "--token", "-t", typed=list[str], served=Sequence[int | str] | None)]
AnswerArgument = Annotated[
    int | str | None,
    about("The token to restore, by text or #id; by default the first text's best.", served_minimum=0),
]
OtherArgument = Annotated[
    int | str | None, about("The token it is compared with; by default the second text's best.", served_minimum=0)
]
OutputArgument = Annotated[str | None, about("An encoder-decoder's output so far.", "--target", served=False)]


@operation(
    route="patch",
    section="Change and compare",
    example='glass patch --raw "The capital of France is" "The capital of Italy is"   ·   '
    'glass patch --raw "The capital of France is" "The capital of Italy is" --part heads   ·   '
    "glass patch --raw --pairs pairs.jsonl   ·   "
    'glass patch --raw "The capital of France is" "The capital of Italy is" --from blocks.23.attention.heads.4 --to final',
)
def patch(
    model: ModelLike,
    first: FirstArgument,
    second: SecondArgument,
    part: PartArgument = "residual",
    positions: PlaceArgument = None,
    *,
    answer: AnswerArgument = None,
    against: OtherArgument = None,
    target: OutputArgument = None,
    progress: Progress | None = None,
    **prompt_options: Unpack[PromptKeywords],
) -> Patching:
    """Patch one text's activations into another's forward pass, place by place: see which restore its answer."""
    PromptOptions.of(prompt_options, patch)
    texts = read_both(model, first, second, target, prompt_options)
    return patching(*texts, part, positions, answer=answer, against=against, progress=progress)


@operation(route="patch-pairs", verb="patch", chosen_by=("pairs",))
def patch_pairs(
    model: ModelLike,
    pairs: Annotated[
        Sequence[Sequence[Any] | Mapping[str, Any]],
        about(
            "Many pairs: first and second text of each, and perhaps answer and against; of a .jsonl or .csv file.",
            "--pairs",
            metavar="FILE",
            from_file=True,
            served="pairs",
        ),
    ],
    part: PartArgument = "heads",
    positions: PositionsArgument = None,
    *,
    metric: Annotated[
        MetricName | Metric,
        OWN_CHECK,
        about(
            "What is averaged: recovered, logit_difference, probability (of the answer) or kl.", typed=str, served=MetricName
        ),
    ] = "recovered",
    target: OutputArgument = None,
    progress: Progress | None = None,
    **prompt_options: Unpack[PromptKeywords],
) -> PairPatching:
    """Patch over many pairs of texts: see what each place restores on average, with its spread.

    `pairs`: (first, second) or (first, second, answer, against) each, or mappings with these names. Tokens are aligned where
    a pair's texts have different numbers of them. `metric` may also be a function of the patched
    scores and a `ScoredPair`, which returns a number.
    """
    PromptOptions.of(prompt_options, patch_pairs)
    readings = []
    for number, pair in enumerate(parse_pairs(pairs), 1):
        with pair_named(number):
            first, second = read_both(model, pair.first, pair.second, target, prompt_options)
        readings.append((first, second, pair.answer, pair.against))
    return patching_pairs(readings, part, positions, metric=metric, progress=progress)


def read_both(
    model: ModelLike, first: Prompt, second: Prompt, target: str | None, prompt_options: PromptKeywords
) -> tuple[Reading, Reading]:
    """Two texts that a model has read."""
    return read(model, first, target, **prompt_options), read(model, second, target, **prompt_options)


def patching(
    first: Activations,
    second: Activations,
    part: PatchedPart = "residual",
    positions: Sequence[int | str] | int | None = None,
    *,
    answer: int | str | None = None,
    against: int | str | None = None,
    progress: Progress | None = None,
) -> Patching:
    """Put the first text's values into the second one's pass, place by place, and see what restores its answer.

    `part`: 'residual' (the stream after each block), 'attention' or 'mlp' (what each adds to it); or, head by head and at
    all positions, 'heads' (each one's output), its 'query', 'key' or 'value', or its 'pattern' (where it looks).
    `positions`: by number or by a token of either text; by default all where a patch could matter. `answer` and `against`:
    the two tokens to tell apart, instead of what each text leads to.
    """
    places = PartPlaces(part)
    pair = TextPair(first, second, positions, aligning="model.patch_pairs")
    check_size(*places.size(pair))
    with read_pairs([pair], places.sites(pair).values()) as (read,):
        patched = counted(places.patched(read), progress, places.count(pair))
        return places.view(patched_outcome(read, patched, recovered, (answer, against)))


def patching_pairs(
    pairs: Sequence[tuple[Activations, Activations, int | str | None, int | str | None]],
    part: PatchedPart = "heads",
    positions: Sequence[int | str] | int | None = None,
    *,
    metric: MetricName | Metric = "recovered",
    progress: Progress | None = None,
) -> PairPatching:
    """Patch the first text of each pair into the second, place by place, and average what a metric makes of it."""
    places = PartPlaces(part)
    name, function = _metric(metric)
    if not pairs:
        raise InputError("there are no pairs of texts to patch. Give at least one.")
    text_pairs = []
    for index, (first, second, *_) in enumerate(pairs):
        with pair_named(index + 1):
            text_pairs.append(TextPair(first, second, positions, aligned=True))
    columns, layers, tokens = zip(*map(places.size, text_pairs), strict=True)
    check_size(sum(columns), layers[0], sum(tokens))
    done, total = 0, sum(map(places.count, text_pairs))
    outcomes = []
    for together in grouped(range(len(pairs)), lambda index: text_pairs[index].tokens, READ_TOKENS):
        with read_pairs([text_pairs[index] for index in together], places.sites(text_pairs[0]).values()) as group:
            for index, read in zip(together, group, strict=True):
                with pair_named(index + 1):
                    patched = counted(places.patched(read), progress, total, done)
                    outcomes.append(patched_outcome(read, patched, function, pairs[index][2:]))
                done += places.count(read.pair)
    return _averaged(places, name, outcomes)


# Places ---------------------------------------------------------------------------------------------------------


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

    def sites(self, pair: TextPair) -> dict[str, str]:
        """The sites, by layer."""
        blueprint = pair.first.model.blueprint
        blocks = blueprint.encoder_blocks if pair.in_encoder else blueprint.blocks
        sites = {str(block): pair.prefix + SITES[self.part].format(block) for block in range(blocks)}
        return {"embedding": f"{pair.prefix}embedding", **sites} if self.part == "residual" else sites

    def heads(self, pair: TextPair) -> int:
        """How many columns are heads: fewer than there are heads where those share a key and value."""
        return int(pair.first.shape(self.sites(pair)["0"])[0]) if self.by_head else 0

    def sharing(self, pair: TextPair) -> int:
        return PartPlaces("query").heads(pair) // self.heads(pair) if self.part in ("key", "value") else 1

    def size(self, pair: TextPair) -> tuple[int, int, int]:
        """How many columns and layers there are to patch, and how many tokens that reads."""
        layers, length = len(self.sites(pair)), len(pair.ids(pair.second))
        starts = [min(pair.positions)] * self.heads(pair) if self.by_head else pair.positions
        return len(starts), layers, layers * sum(length - start if pair.causal else length for start in starts)

    def count(self, pair: TextPair) -> int:
        columns, layers, _ = self.size(pair)
        return columns * layers

    def patched(self, read: ReadPair) -> Iterator[tuple[Cell, Floats]]:
        """The second text's scores under each place's patch."""
        pair, sites = read.pair, self.sites(read.pair)
        if self.part == "pattern" and len(pair.ids(pair.first)) != len(pair.ids(pair.second)):
            raise InputError("patterns of texts with different numbers of tokens have different shapes. Patch query or key.")
        origins = [pair.origins[position] for position in pair.positions]
        patches: list[tuple[Cell, int, Change]]
        if self.by_head:
            patches = [
                ((layer, head), min(pair.positions), Change(0.0, value[None, origins], pair.positions, [head]))
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
        return ((place, scores) for place, scores, _ in read.patched(runs))

    def view(self, outcome: PairOutcome[Cell]) -> Patching:
        """What came of one pair, by the metric `recovered`."""
        pair, scores = outcome.pair, outcome.scored
        layers, heads = tuple(self.sites(pair)), self.heads(pair)
        return Patching(
            pair.first.model.name,
            self.part,
            outcome.texts,
            (pair.token_texts(pair.first), pair.token_texts(pair.second)),
            outcome.answers,
            leads(scores),
            layers,
            tuple(pair.positions),
            heads,
            self.sharing(pair),
            tuple(tuple(outcome.values[layer, at] for at in range(heads or len(pair.positions))) for layer in layers),
            (int(scores.first_scores.argmax()), int(scores.second_scores.argmax())),
            tuple(pair.first.model.changes),
        )


# Metrics --------------------------------------------------------------------------------------------------------


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


def leads(pair: ScoredPair) -> tuple[float, float]:
    """The answer's lead over the other token after each text; refused where they are the same."""
    clean, corrupted = (logit_difference(scores, pair) for scores in (pair.first_scores, pair.second_scores))
    if clean == corrupted:
        answer, other = (token_text(pair.first.model.tokenizer, token) for token in (pair.answer, pair.against))
        raise InputError(f"{answer!r} has the same lead over {other!r} after both texts, so no patch can change it.")
    return clean, corrupted


def recovered(scores: Floats, pair: ScoredPair) -> float:
    """The logit difference, as a share of the way from the second text's to the first's."""
    clean, corrupted = leads(pair)
    return (logit_difference(scores, pair) - corrupted) / (clean - corrupted)


def probability(scores: Floats, pair: ScoredPair) -> float:
    return float(np.exp(log_softmax(scores)[pair.answer]))


def kl(scores: Floats, pair: ScoredPair) -> float:
    """The divergence of what follows under a patch from what follows the first text, in bits."""
    return kl_divergence(log_softmax(pair.first_scores), log_softmax(scores))


METRICS: dict[str, Metric] = {metric.__name__: metric for metric in (recovered, logit_difference, probability, kl)}


def _metric(metric: MetricName | Metric) -> tuple[str, Metric]:
    """A metric's name, and the metric with each of its numbers checked."""
    if not callable(metric) and metric not in METRICS:
        raise SettingError(
            f"there is no metric {metric!r}.{did_you_mean(str(metric), METRICS)} Metrics: "
            f"{', '.join(get_args(MetricName))}; or a function of scores and a pair."
        )
    function = metric if callable(metric) else METRICS[metric]
    name = getattr(function, "__name__", "metric")

    def number(scores: Floats, pair: ScoredPair) -> float:
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

    return name, number


# What came of a pair --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairOutcome(Generic[Place]):
    """A pair, the tokens that are told apart, and what a metric gave at each place."""

    pair: TextPair
    scored: ScoredPair
    answers: tuple[AnswerToken, AnswerToken]
    unpatched: tuple[float, float]  # the metric after each text
    values: Mapping[Place, float]

    @property
    def texts(self) -> tuple[str, str]:
        return self.pair.text(self.pair.first), self.pair.text(self.pair.second)


def patched_outcome(
    read: ReadPair, patched: Iterable[tuple[Place, Floats]], metric: Metric, answers: Answers
) -> PairOutcome[Place]:
    """What a metric makes of the scores under each patch; the pair's own scores come first, as they may be refused."""
    scored, tokens = scored_pair(read.pair, read.scores, answers)
    unpatched = metric(scored.first_scores, scored), metric(scored.second_scores, scored)
    return PairOutcome(read.pair, scored, tokens, unpatched, {place: metric(scores, scored) for place, scores in patched})


def scored_pair(
    pair: TextPair, scores: Sequence[Floats], answers: Answers
) -> tuple[ScoredPair, tuple[AnswerToken, AnswerToken]]:
    """A pair with the two tokens that are told apart: those named, or what each text leads to by its scores."""
    model = pair.first.model
    target, rival = (resolve_token_id(model, token, row) for token, row in zip(answers, scores, strict=True))
    first, second = (AnswerToken(token, token_text(model.tokenizer, token)) for token in (target, rival))
    if target == rival:
        both = "both lead" if None in answers else "are both to lead"
        better = " and ".join(repr(token_text(model.tokenizer, token)) for token in _most_different(*scores))
        raise InputError(f"the texts {both} to {first.text!r}. Name two tokens to tell them apart: {better} differ most.")
    return ScoredPair(pair.first, pair.second, target, rival, *scores), (first, second)


def counted(
    patched: Iterable[tuple[Place, Floats]], progress: Progress | None, total: int, done: int = 0
) -> Iterator[tuple[Place, Floats]]:
    """Tell how many of all patches are done, as they come."""
    for number, result in enumerate(patched, done + 1):
        yield result
        if progress is not None:
            progress(number, total)


def _most_different(first: Floats, second: Floats) -> tuple[int, int]:
    """Of the tokens that either text makes likely, the one that gains most by the first, and the one that loses most."""
    logs, other = log_softmax(first), log_softmax(second)
    likely = np.union1d(np.argsort(logs)[-LIKELY:], np.argsort(other)[-LIKELY:])
    gap = (logs - other)[likely]
    return int(likely[gap.argmax()]), int(likely[gap.argmin()])


# Many pairs -----------------------------------------------------------------------------------------------------


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


@contextmanager
def pair_named(number: int) -> Iterator[None]:
    """Around the work on one pair: an error says which it was."""
    try:
        yield
    except InputError as error:
        raise PairError(number, f": {error}") from error


def _averaged(places: PartPlaces, metric: str, outcomes: Sequence[PairOutcome[Cell]]) -> PairPatching:
    """All pairs' cells side by side: by head, or by position, from the end where the texts have different lengths."""
    pair, by_head = outcomes[0].pair, places.by_head
    lengths = [len(outcome.pair.ids(outcome.pair.second)) for outcome in outcomes]
    cells: list[dict[Cell, float]] = []
    for outcome, length in zip(outcomes, lengths, strict=True):
        names = range(places.heads(pair)) if by_head else outcome.pair.positions
        offset = length if not by_head and len(set(lengths)) > 1 else 0
        cells.append({(layer, names[at] - offset): value for (layer, at), value in outcome.values.items()})
    layers = tuple(places.sites(pair))
    columns = sorted({column for grid in cells for _, column in grid})
    values = np.array([[[grid.get((layer, column), np.nan) for column in columns] for layer in layers] for grid in cells])
    counts = np.isfinite(values).sum(0)
    totals = np.nansum(values, 0)
    means = np.where(counts > 0, totals / np.maximum(counts, 1), np.nan)
    squares = np.nansum((values - means) ** 2, 0)
    errors = np.where(counts > 1, np.sqrt(squares / np.maximum(counts - 1, 1) / np.maximum(counts, 1)), np.nan)
    return PairPatching(
        pair.first.model.name,
        places.part,
        metric,
        tuple(
            PatchedPair(outcome.texts, outcome.answers, outcome.unpatched, outcome.pair.unaligned) for outcome in outcomes
        ),
        layers,
        () if by_head else tuple(columns),
        places.heads(pair),
        places.sharing(pair),
        _numbers(means),
        _numbers(errors),
        tuple(tuple(map(int, row)) for row in counts),
        tuple(_numbers(pair_values) for pair_values in values),
        tuple(pair.first.model.changes),
    )


def _numbers(values: npt.NDArray[np.float64]) -> Numbers:
    return tuple(tuple(None if np.isnan(value) else float(value) for value in row) for row in values)
