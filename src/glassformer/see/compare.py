"""Two runs, two texts or two models side by side: what differs, and from where on.

Two runs have other settings, another template, or something changed inside the model. Of two texts in one model the same
token is compared: what it becomes depends on all that stands before it, and on nothing after it. So after the same beginning
it is the same at every layer, whatever follows; after another beginning it differs from the layer on where attention first
brings the difference in. Two models are compared in `compare_models.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Unpack

import numpy as np

from glassformer.decoding import Step
from glassformer.engine.protocol import common_prefix
from glassformer.ground.arguments import checked
from glassformer.ground.candidates import kl_divergence, log_softmax, top
from glassformer.ground.errors import InputError, InputTypeError
from glassformer.ground.operations import about, operation
from glassformer.ground.progress import Progress
from glassformer.page.document import Column, Heading, Page, PagePart, Paragraph, Table
from glassformer.page.format import abbreviate_list, format_percent, pluralize, visible
from glassformer.see.activations import Activations
from glassformer.see.compare_models import ModelComparison, compare_models, compare_readings
from glassformer.see.protocols import ModelLike, RunLike
from glassformer.see.reading import read
from glassformer.see.tokens import Candidate, candidates, find_token, token_text
from glassformer.see.trace import trace_run
from glassformer.see.view import Floats, View
from glassformer.text.prompt import Prompt, PromptKeywords, PromptOptions

MAX_CANDIDATES = 10  # unless everything is shown
LEGEND = "model: probability under the model · prob.: after the rules"
NO_RULES = "prob.: under the model, which no rule changed"


@dataclass(frozen=True)
class SettingPair:
    """A setting that differs between the runs."""

    name: str
    values: tuple[str, str]


@dataclass(frozen=True)
class CandidatePair:
    """One candidate at one step of both runs: its probability under the model, and after the rules."""

    id: int
    text: str
    model: tuple[float | None, float | None]  # None: not recorded
    probability: tuple[float | None, float | None]


@dataclass(frozen=True)
class RunComparison(View):
    """Two runs: their settings, their texts, and the first step at which they differ."""

    SCHEMA = "glassformer.compare-runs/2"
    RECORDS = "candidates"

    names: tuple[str, str]
    prompts: tuple[str, str]
    shared_prompt: int  # length of the prompts' common prefix, in tokens
    texts: tuple[str, str]
    tokens: tuple[tuple[str, ...], tuple[str, ...]]
    settings: tuple[SettingPair, ...]  # those that differ
    changes: tuple[tuple[str, ...], tuple[str, ...]]  # sites that were changed inside the model
    step: int | None  # the first at which the texts differ; None: they are the same
    shown: int  # the step whose candidates these are: the first difference, or the first step
    candidates: tuple[CandidatePair, ...]
    best: tuple[tuple[Candidate, ...], tuple[Candidate, ...]]  # under the model alone, at that step
    entropy: tuple[float | None, float | None]

    def page(self, everything: bool = False) -> Page:
        first, second = self.names
        title = f"{first}  ‖  {second}"
        parts: list[PagePart] = []
        if self.prompts[0] != self.prompts[1]:
            parts.append(Paragraph(f"common prefix of the prompts: {pluralize(self.shared_prompt, 'token')}", "dim"))
            parts += [
                Paragraph(f"{name}: {text.strip()}", "dim") for name, text in zip(self.names, self.prompts, strict=True)
            ]
        for setting in self.settings:
            parts.append(Paragraph(f"{setting.name}: {setting.values[0]}  ‖  {setting.values[1]}", "dim"))
        for name, sites in zip(self.names, self.changes, strict=True):
            if sites:
                parts.append(Paragraph(f"{name}: changed at {abbreviate_list(sites, 4)}", "dim"))
        parts += [
            Heading(first),
            Paragraph(self.texts[0]),
            Heading(second),
            Paragraph(self.texts[1]),
        ]
        if self.same:
            verdict = "the two texts are the same, token by token; at the first step:"
        else:
            shown = f"; at token {self.shown}:" if self.shown != self.step else ":"
            verdict = f"the texts diverge at token {self.step}{shown}"
        entropies = "  ‖  ".join("–" if bits is None else f"{bits:.2f}" for bits in self.entropy)
        ruled = any(map(_is_ruled, self.candidates))
        candidates = self.candidates if everything else self.candidates[:MAX_CANDIDATES]
        parts += [Heading(verdict), _chosen_from(candidates, ruled)]
        legend = LEGEND if ruled else NO_RULES
        parts.append(Paragraph(f"1: {first} · 2: {second} · {legend}\n–: not recorded · entropy: {entropies} bits", "dim"))
        return Page.titled(title, *parts)

    @property
    def same(self) -> bool:
        return self.step is None

    def __repr__(self) -> str:
        return "RunComparison(the same text)" if self.same else f"RunComparison(diverge at step {self.step})"


def _is_ruled(candidate: CandidatePair) -> bool:
    """Whether rules changed its probability in one of the runs."""
    known = [pair for pair in zip(candidate.model, candidate.probability, strict=True) if None not in pair]
    return any(not math.isclose(before or 0.0, after or 0.0, rel_tol=1e-4) for before, after in known)


def _chosen_from(candidates: Sequence[CandidatePair], ruled: bool) -> Table:
    """`ruled`: whether probabilities under the model are others than after the rules, and have columns of their own."""

    def percentage(value: float | None) -> str:
        return "–" if value is None else format_percent(value) if value else "out"

    under_model = (
        (Column("model 1", "number"), lambda candidate: percentage(candidate.model[0])),
        (Column("model 2", "number"), lambda candidate: percentage(candidate.model[1])),
    )
    return Table.of(
        candidates,
        (Column("candidate", "token", min_width=8), lambda candidate: visible(candidate.text)),
        *(under_model if ruled else ()),
        (Column("prob. 1", "number"), lambda candidate: percentage(candidate.probability[0])),
        (Column("prob. 2", "number"), lambda candidate: percentage(candidate.probability[1])),
        (Column("", "bar", priority=4), lambda candidate: candidate.probability[0] or 0.0),
        (Column("", "bar", priority=4), lambda candidate: candidate.probability[1] or 0.0),
    )


@dataclass(frozen=True)
class LayerDifference:
    """How far a token's states in two texts differ after one layer."""

    layer: str  # 'embedding', then the blocks by index
    largest: float  # largest difference of any element
    cosine: float  # 1: the same direction


@dataclass(frozen=True)
class TextComparison(View):
    """One token in two texts, layer by layer."""

    SCHEMA = "glassformer.compare-texts/3"

    model: str
    texts: tuple[str, str]
    tokens: tuple[tuple[str, ...], tuple[str, ...]]
    shared: int  # length of the common prefix, in tokens
    token: str  # the one that is compared
    positions: tuple[int, int]  # of that token, in each text
    layers: tuple[LayerDifference, ...]
    diverges_at: str | None  # the first layer after which it differs; None: it does not
    best: tuple[tuple[Candidate, ...], tuple[Candidate, ...]]  # for the token after it, in each text
    divergence: float | None  # KL divergence of the second from the first, in bits; None for a model that scores no tokens

    def page(self, everything: bool = False) -> Page:
        first, second = self.positions
        token = visible(self.token)
        title = f"{self.model}: {token} at position {first} of the first text and {second} of the second"
        if self.same:
            verdict = "the same at every layer: what follows a token does not change it"
        elif self.rounded:
            verdict = (
                "the same but for rounding: what follows a token does not change it, but PyTorch adds in another order "
                "for a text of another length (the cpu executor does not)"
            )
        elif self.diverges_at == "embedding":
            verdict = "different from the start: another position, or another token"
        else:
            verdict = f"the same until block {self.diverges_at}, where attention brings in other tokens"
        most = max(layer.largest for layer in self.layers) or 1.0
        parts: list[PagePart] = [
            *(Paragraph(f"{number}: {' '.join(map(visible, tokens))}") for number, tokens in enumerate(self.tokens, 1)),
            Paragraph(f"common prefix: {pluralize(self.shared, 'token')}" if self.shared else "no common prefix", "dim"),
            Paragraph(f"{token} is {verdict}", "chosen" if self.same or self.rounded else "strong"),
            Table.of(
                self.layers,
                (Column("after", "number"), lambda layer: layer.layer),
                (Column("largest difference", "number"), lambda layer: f"{layer.largest:.3g}"),
                (Column("cosine", "number"), lambda layer: f"{layer.cosine:.4f}"),
                (Column("", "bar", priority=5), lambda layer: layer.largest / most),
            ),
        ]
        if self.divergence is not None:
            parts += [Heading(f"the next token: KL divergence {self.divergence:.4f} bits"), _best_tokens(self.best)]
        return Page.titled(title, *parts)

    @property
    def same(self) -> bool:
        """Whether the token is the same in both, at every layer."""
        return self.diverges_at is None

    @property
    def rounded(self) -> bool:
        """Whether the token differs by rounding alone: all that stands before it is the same, and so is it, but for that."""
        first, second = self.positions
        return not self.same and first == second < self.shared and all(layer.cosine > 0.999 for layer in self.layers)

    def __repr__(self) -> str:
        return f"TextComparison({self.token!r}: {'the same' if self.same else f'differs from layer {self.diverges_at} on'})"


def _best_tokens(best: Sequence[Sequence[Candidate]]) -> Table:
    return Table.of(
        list(zip(*best, strict=True)),
        (Column("first text", "token", min_width=8), lambda pair: visible(pair[0].text)),
        (Column("probability", "number"), lambda pair: format_percent(pair[0].probability)),
        (Column("second text", "token", min_width=8), lambda pair: visible(pair[1].text)),
        (Column("probability", "number"), lambda pair: format_percent(pair[1].probability)),
    )


TOP = 6


@checked
def compare(
    first: Any,
    second: Any,
    *,
    token: int | str | None = None,
    text: str | None = None,
    names: tuple[str, str] | None = None,
    progress: Progress | None = None,
) -> TextComparison | ModelComparison | RunComparison:
    """Compare two of a kind.

    Two runs of `watch`: what each wrote, where they diverge, and what each model thought there. Two texts of `read`, in one
    model: where they diverge, and what the same token (`token`, or the last that both have) is in each; the same text in two
    models: how far these differ. Two models over a `text`, which may be long.
    """
    if hasattr(first, "steps") and hasattr(second, "steps"):
        _refuse_unused("two runs", token=token, text=text, progress=progress)
        return compare_runs(first, second, names or ("first", "second"))
    if isinstance(first, Activations) and isinstance(second, Activations):
        if first.model is second.model:
            _refuse_unused("two texts in one model", text=text, names=names, progress=progress)
            return compare_texts(first, second, token)
        _refuse_unused("one text in two models", text=text, token=token)
        return compare_readings(first, second, names, progress)
    if hasattr(first, "executor") and hasattr(second, "executor"):
        _refuse_unused("two models", token=token)
        if text is None:
            raise InputError("two models are compared over a text. Pass text=….")
        return compare_models(first, second, text, names, progress)
    raise InputTypeError(
        f"{type(first).__name__} and {type(second).__name__} cannot be compared. Give two runs of watch(…), two texts of "
        "read(…), or two models and a text."
    )


def _refuse_unused(compared: str, **arguments: Any) -> None:
    """Refuse an argument that would change nothing here."""
    if unused := [name for name, value in arguments.items() if value is not None]:
        raise InputError(f"{unused[0]} has no use in comparing {compared}. Leave it out.")


# Two texts -------------------------------------------------------------------------------------------------------


@operation(name="compare", route="compare")
def compare_prompts(
    model: ModelLike,
    first: Annotated[Prompt, about("A text.", served=str)],
    second: Annotated[Prompt, about("The text that it is held against.", served=str)],
    *,
    token: Annotated[
        int | str | None,
        about("The token to compare, by text or position; by default the last that both have.", served_minimum=0),
    ] = None,
    **prompt_options: Unpack[PromptKeywords],
) -> TextComparison:
    """Show where two texts part in one model, and what the same token is in each."""
    PromptOptions.of(prompt_options, compare_prompts)
    return compare_texts(read(model, first, **prompt_options), read(model, second, **prompt_options), token)


def compare_texts(first: Activations, second: Activations, token: int | str | None = None) -> TextComparison:
    """One token in two texts: the last that both have, unless one is named."""
    model, stream = first.model, first.stream
    positions = _common_token(first, second, token)
    texts = zip((first, second), positions, strict=True)
    states = [[value[0] for value in text.values_at([position], *stream.values()).values()] for text, position in texts]
    layers = tuple(_difference(*layer) for layer in zip(stream, *states, strict=True))
    best: tuple[tuple[Candidate, ...], ...] = ((), ())
    divergence = None
    if model.writes or model.head == "masked":
        logits = [model.unembed(layers[-1][None])[0] for layers in states]
        divergence = kl_divergence(*map(log_softmax, logits))
        best = tuple(candidates(model.tokenizer, top(row, TOP)) for row in logits)
    return TextComparison(
        model.name,
        (model.tokenizer.decode(first.ids), model.tokenizer.decode(second.ids)),
        (first.texts, second.texts),
        common_prefix(first.ids, second.ids),
        first.texts[positions[0]],
        positions,
        layers,
        next((layer.layer for layer in layers if layer.largest > 0), None),
        (best[0], best[1]),
        divergence,
    )


def _common_token(first: Activations, second: Activations, token: int | str | None) -> tuple[int, int]:
    """Where a token stands in each text: at the same position if it does, else its last; a number is a position in both."""
    if isinstance(token, int):
        return find_token(token, first.texts), find_token(token, second.texts)
    positions = reversed(range(len(first.ids))) if token is None else (find_token(token, first.texts),)
    for position in positions:
        matches = [index for index, token_id in enumerate(second.ids) if token_id == first.ids[position]]
        if matches:
            return position, position if position in matches else matches[-1]
    if token is None:
        raise InputError("the two texts have no token in common, so there is nothing to compare in them.")
    raise InputError(f"the second text has no token {first.texts[position]!r}. Name one that both have.")


def _difference(layer: str, first: Floats, second: Floats) -> LayerDifference:
    product = float(np.linalg.norm(first) * np.linalg.norm(second))
    cosine = float(first @ second) / product if product else 1.0
    return LayerDifference(layer, float(np.abs(first - second).max()), min(1.0, cosine))


# Two runs --------------------------------------------------------------------------------------------------------


def compare_runs(first: RunLike, second: RunLike, names: tuple[str, str] = ("first", "second")) -> RunComparison:
    """Two runs with candidates and waterfalls: those of `watch`."""
    runs = (first, second)
    ids = [[step.id for step in run.steps] for run in runs]
    if not ids[0] or not ids[1] or first.steps[0].waterfall is None or second.steps[0].waterfall is None:
        raise InputError("these runs kept no account of their candidates. Get both with watch(…).")
    same = common_prefix(*ids)
    step = None if ids[0] == ids[1] else same
    shown = same if same < min(map(len, ids)) else 0
    steps = first.steps[shown], second.steps[shown]
    texts = [tuple(place.text for place in trace_run(run).places) for run in runs]
    pairs = zip(runs, steps, strict=True)
    best = [candidates(run.model.tokenizer, chosen.candidates) for run, chosen in pairs if chosen.candidates]
    return RunComparison(
        names,
        (first.prompt, second.prompt),
        common_prefix(first.prompt_ids, second.prompt_ids),
        (first.text, second.text),
        (texts[0], texts[1]),
        _setting_pairs(first, second),
        (tuple(first.model.changes), tuple(second.model.changes)),
        step,
        shown,
        _candidate_pairs(first, *steps),
        (best[0], best[1]),
        (steps[0].entropy, steps[1].entropy),
    )


def _setting_pairs(first: RunLike, second: RunLike) -> tuple[SettingPair, ...]:
    """The settings that differ."""
    values = [{name: str(value) for name, (value, _) in run.settings.in_force.items()} for run in (first, second)]
    names = dict.fromkeys((*values[0], *values[1]))
    pairs = (SettingPair(name, (values[0].get(name, "–"), values[1].get(name, "–"))) for name in names)
    return tuple(pair for pair in pairs if pair.values[0] != pair.values[1])


def _candidate_pairs(run: RunLike, first: Step, second: Step) -> tuple[CandidatePair, ...]:
    """The candidates of both runs, the most probable in either first."""
    model = [_model_probabilities(step) for step in (first, second)]
    final = [{fate.id: fate.probability for fate in step.waterfall or ()} for step in (first, second)]
    tokens = {*model[0], *model[1], *final[0], *final[1]}
    ordered = sorted(tokens, key=lambda token: (-max(side.get(token, 0.0) for side in (*model, *final)), token))
    return tuple(
        CandidatePair(
            token,
            token_text(run.model.tokenizer, token),
            (model[0].get(token), model[1].get(token)),
            (final[0].get(token), final[1].get(token)),
        )
        for token in ordered
    )


def _model_probabilities(step: Step) -> dict[int, float]:
    """Of the candidates before any rule: the best, and those in the waterfall."""
    if step.candidates is None:
        return {}
    log_sum = float(step.candidates.scores[0] - step.candidates.logprobs[0])  # of all exp(score)
    best = {token: probability for token, _, probability in step.candidates}
    return best | {fate.id: math.exp(fate.scores[0] - log_sum) for fate in step.waterfall or ()}
