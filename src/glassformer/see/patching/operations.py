"""Activation patching: which places inside the model make one text lead to another answer than a second one.

The operations on a model: a pair of texts, many pairs, the paths of a pair, and a pair estimated by gradients. All are
made of `TextPair`, places, a metric and a method (`compute.py`), and differ in what they ask and show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias, Unpack, get_args

from glassformer.ground.errors import InputError
from glassformer.ground.operations import about, operation
from glassformer.ground.progress import Progress
from glassformer.ground.typecheck import OWN_CHECK, brief
from glassformer.see.patching.compute import (
    Metric,
    PairError,
    PartPlaces,
    averaged,
    named_metric,
    one_pair,
    pair_named,
    run_patches,
)
from glassformer.see.patching.estimate import compare_with_patching, estimate_patches
from glassformer.see.patching.pair import TextPair
from glassformer.see.patching.paths import Paths
from glassformer.see.patching.view import AttributionPatching, MetricName, PairPatching, PatchedPart, Patching, PathPatching
from glassformer.see.protocols import ModelLike
from glassformer.see.reading import read
from glassformer.text.prompt import Prompt, PromptKeywords, PromptOptions

ALL_HEADS = "blocks.*.attention.heads"
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
    """Patch one text's activations into another's forward pass, place by place: see which restore its answer.

    `part`: 'residual' (the stream after each block), 'attention' or 'mlp' (what each adds to it); or, head by head and at
    all positions, 'heads' (each one's output), its 'query', 'key' or 'value', or its 'pattern' (where it looks).
    `positions`: by index or by a token of either text; by default all where a patch could matter.
    """
    PromptOptions.of(prompt_options, patch)
    places = PartPlaces(part)
    texts = PairTexts(first, second, answer, against)
    pair = texts.read(model, positions, target, prompt_options, aligning="model.patch_pairs")
    return one_pair(places, *run_patches([pair], places, progress=progress))


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
    places, (name, function) = PartPlaces(part), named_metric(metric)
    asked = []
    for number, texts in enumerate(parse_pairs(pairs), 1):
        with pair_named(number):
            asked.append(texts.read(model, positions, target, prompt_options, number=number))
    if not asked:
        raise InputError("there are no pairs of texts to patch. Give at least one.")
    return averaged(places, name, run_patches(asked, places, function, progress))


@operation(route="patch-path", verb="patch", chosen_by=("sender", "receivers"))
def patch_path(
    model: ModelLike,
    first: FirstArgument,
    second: SecondArgument,
    sender: Annotated[
        str,
        about(
            "The site that sends along a path, such as blocks.5.attention.heads.1; a pattern for many.",
            "--from",
            served_length=200,
        ),
    ] = ALL_HEADS,
    receivers: Annotated[
        str | Sequence[str],
        about(
            "The site that receives along a path, such as blocks.9.attention.query.6 or final; repeatable.",
            "--to",
            typed=list[str],
            served=Sequence[str],
            served_default=["final"],
            served_length=200,
            served_items=(1, 64),
        ),
    ] = "final",
    positions: PositionsArgument = None,
    *,
    answer: AnswerArgument = None,
    against: OtherArgument = None,
    freeze_mlps: Annotated[bool, about("MLPs keep their values too.")] = False,
    progress: Progress | None = None,
    **prompt_options: Unpack[PromptKeywords],
) -> PathPatching:
    """Patch along paths: how much of the first text's answer goes from each sender to the receivers, past all other heads.

    `sender`: each head that it means is patched by itself. `receivers`: 'final', or what some heads or MLPs read.
    """
    PromptOptions.of(prompt_options, patch_path)
    pair = PairTexts(first, second, answer, against).read(model, positions, None, prompt_options)
    paths = Paths(pair, sender, [receivers] if isinstance(receivers, str) else receivers, freeze_mlps)
    return paths.view(*run_patches([pair], paths, progress=progress))


@operation(
    route="attribution-patch",
    section="Change and compare",
    example='glass attribution-patch --raw "The capital of France is" "The capital of Italy is" --part heads   ·   '
    'glass attribution-patch --raw "The capital of France is" "The capital of Italy is" --check',
)
def attribution_patch(
    model: ModelLike,
    first: FirstArgument,
    second: SecondArgument,
    part: PartArgument = "residual",
    positions: PlaceArgument = None,
    *,
    answer: AnswerArgument = None,
    against: OtherArgument = None,
    target: OutputArgument = None,
    check: Annotated[bool, about("Patch too, and show how far off the estimate is.")] = False,
    progress: Progress | None = None,
    **prompt_options: Unpack[PromptKeywords],
) -> AttributionPatching:
    """Estimate what patching would restore at every place, all at once, by one backward pass."""
    PromptOptions.of(prompt_options, attribution_patch)
    places = PartPlaces(part)
    pair = PairTexts(first, second, answer, against).read(model, positions, target, prompt_options)
    outcome = estimate_patches(pair, places)
    estimate = one_pair(places, outcome)
    if not check:
        return AttributionPatching(estimate, None)
    pair.answers = outcome.scored.answer, outcome.scored.against  # whatever the other pass leads to
    true = one_pair(places, *run_patches([pair], places, progress=progress))
    return AttributionPatching(estimate, compare_with_patching(estimate, true))


class PairTexts(NamedTuple):
    """A pair to patch: two texts, and the tokens to tell apart, if they are not what each text leads to."""

    first: Any
    second: Any
    answer: int | str | None = None
    against: int | str | None = None

    def read(
        self, model: ModelLike, positions: Positions, target: str | None, prompt_options: PromptKeywords,
        *, number: int | None = None, aligning: str = "",
    ) -> TextPair:  # fmt: skip
        """The pair as a model reads it; one of many is aligned."""
        first, second = (read(model, text, target, **prompt_options) for text in (self.first, self.second))
        answers, aligned = (self.answer, self.against), number is not None
        return TextPair(first, second, positions, aligned=aligned, aligning=aligning, answers=answers, number=number)


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
