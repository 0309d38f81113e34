"""A sweep: how one setting, at several values, reshapes the same scores; and several strategies on one prompt."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from glassformer.decoding import Policy
from glassformer.decoding.settings_table import RULES, SAMPLING_RULES, SETTINGS
from glassformer.ground.candidates import entropy_stats, top
from glassformer.ground.errors import InputError, SettingError
from glassformer.ground.operations import operation
from glassformer.page.document import Column, Heading, Page, PagePart, Paragraph, Table, TableRow
from glassformer.page.format import format_percent, format_seconds, tail, visible
from glassformer.see.activations import Activations
from glassformer.see.protocols import ModelLike, RunLike
from glassformer.see.tokens import token_text
from glassformer.see.view import Floats, View
from glassformer.text.prompt import Prompt


@dataclass(frozen=True)
class ShapedScores:
    """The probabilities under one value of the setting."""

    value: str
    left: int  # candidates left
    entropy: float  # in bits
    probabilities: tuple[float, ...]  # of the candidates


@dataclass(frozen=True)
class Sweep(View):
    """The candidates of one step under several values of one setting."""

    SCHEMA = "glassformer.sweep/2"

    model: str
    setting: str
    step: int
    before: str  # the end of the text
    ids: tuple[int, ...]
    candidates: tuple[str, ...]  # best first, under the model
    own: tuple[float, ...]  # their probabilities under the model
    shapes: tuple[ShapedScores, ...]

    def page(self, everything: bool = False) -> Page:
        names = [f"{self.setting} {shape.value}" if len(self.shapes) < 3 else shape.value for shape in self.shapes]
        columns = (
            Column("candidate", "token", min_width=8),
            Column("model", "number"),
            *(Column(name, "number") for name in names),
        )
        rows = [
            TableRow(
                (visible(text), format_percent(share), *(_probability(shape.probabilities[index]) for shape in self.shapes))
            )
            for index, (text, share) in enumerate(zip(self.candidates, self.own, strict=True))
        ]
        rows.append(TableRow(("in play", "", *(f"{shape.left:,}" for shape in self.shapes)), "dim"))
        rows.append(TableRow(("entropy", "", *(f"{shape.entropy:.2f}" for shape in self.shapes)), "dim"))
        bars = tuple(
            TableRow((visible(text), *(shape.probabilities[index] for shape in self.shapes)))
            for index, text in enumerate(self.candidates)
        )
        title = f"{self.model}: token {self.step} after {tail(self.before, 24)}, by {self.setting}"
        parts: list[PagePart] = [
            Table(columns, tuple(rows)),
            Table((columns[0], *(Column(name, "bar") for name in names)), bars),
            Paragraph("in play: candidates left · entropy: in bits", "dim"),
        ]
        return Page.titled(title, *parts)

    def __repr__(self) -> str:
        return f"Sweep({self.setting}: {', '.join(shape.value for shape in self.shapes)})"


@dataclass(frozen=True)
class TriedStrategy:
    """One strategy, and the text it wrote."""

    name: str
    settings: Mapping[str, Any]
    text: str
    tokens: int
    surprisal: float | None  # mean, in bits per token, under the model
    seconds: float
    finish: str | None


@dataclass(frozen=True)
class Strategies(View):
    """Several strategies on one prompt."""

    SCHEMA = "glassformer.strategies/2"

    model: str
    prompt: str
    tried: tuple[TriedStrategy, ...]

    def page(self, everything: bool = False) -> Page:
        table = Table.of(
            self.tried,
            (Column("strategy"), lambda tried: tried.name),
            (Column("tokens", "number"), lambda tried: str(tried.tokens)),
            (Column("surprisal", "number"), lambda tried: "" if tried.surprisal is None else f"{tried.surprisal:.2f}"),
            (Column("time", "number", priority=6), lambda tried: format_seconds(tried.seconds)),
            (Column("ended", priority=5), lambda tried: tried.finish or ""),
        )
        title = f"{self.model}: {len(self.tried)} strategies on one prompt"
        parts: list[PagePart] = []
        parts += [
            table,
            Paragraph("surprisal: how unexpected a token was, −log2 of its probability; mean, in bits", "dim"),
        ]
        for strategy in self.tried:
            parts += [Heading(strategy.name), Paragraph(strategy.text)]
        return Page.titled(title, *parts)

    def __repr__(self) -> str:
        return f"Strategies({', '.join(strategy.name for strategy in self.tried)})"


def _probability(value: float) -> str:
    return format_percent(value) if value else "–"


TOP = 10
STRATEGIES: Mapping[str, Mapping[str, Any]] = {  # the customary ones, each by its own setting
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "temperature": 1.0, "top_k": 0},
    "temperature 0.7": {"do_sample": True, "temperature": 0.7, "top_k": 0},
    "top-k 40": {"do_sample": True, "top_k": 40},
    "top-p 0.9": {"do_sample": True, "top_k": 0, "top_p": 0.9},
    "min-p 0.1": {"do_sample": True, "top_k": 0, "min_p": 0.1},
    "4 beams": {"num_beams": 4, "do_sample": False},
}


@operation()
def sweep(run: RunLike, setting: str, values: Sequence[Any] | float | str | bool, step: int = 0) -> Sweep:
    """One step's probabilities under each value of a setting: what each makes of the same scores."""
    if setting in SETTINGS and setting not in RULES:
        rules = ", ".join(SAMPLING_RULES)
        raise SettingError(f"{setting} shapes no scores, so a sweep of it shows nothing. Sweep {rules}, ….")
    values = values if isinstance(values, (list, tuple)) else [values]
    if not values:
        raise InputError(f"a sweep needs values to try, such as {setting}=0.2,0.7,1.2.")
    if not 0 <= step <= len(run.steps):
        raise InputError(f"there is no token {step} in a text of {len(run.steps)}.")
    model, reading = run.model, Activations.of_run(run)
    length = reading.prompt_length + step  # of the text before the choice
    (states,) = reading.values_at([length - 1], f"blocks.{model.blueprint.blocks - 1}.residual").values()
    (scores,) = model.unembed(states)
    best = top(scores, TOP)
    ids = tuple(best.ids.tolist())
    shapes = tuple(_shape(run, setting, value, step, scores, ids) for value in values)
    texts = tuple(token_text(model.tokenizer, token) for token in ids)
    before = model.tokenizer.decode(reading.ids[:length][-16:])
    return Sweep(model.name, setting, step, before, ids, texts, tuple(best.probabilities.tolist()), shapes)


def _shape(run: RunLike, setting: str, value: Any, step: int, scores: Floats, ids: Sequence[int]) -> ShapedScores:
    drawn = {"do_sample": True} if setting in SAMPLING_RULES else {}
    settings = run.settings.merged({**drawn, setting: value})
    recipe = run.model.recipe(settings)
    reading = Activations.of_run(run)
    policy = Policy(recipe, reading.ids[: reading.prompt_length], context=run.model.config.context, seed=run.seed or 0)
    for earlier in run.steps[:step]:
        policy.accept(earlier.id)
    field = policy.shape(scores)
    probabilities = dict(
        zip((field.id_at(place) for place in range(field.scores.size)), field.probabilities().tolist(), strict=True)
    )
    measured = entropy_stats(field.scores)
    return ShapedScores(
        str(value), measured.in_play, measured.entropy, tuple(probabilities.get(token, 0.0) for token in ids)
    )


@operation(name="strategies")
def model_strategies(
    model: ModelLike, prompt: Prompt, ways: Mapping[str, Mapping[str, Any]] | None = None, **keywords: Any
) -> Strategies:
    """One prompt under several strategies side by side: the usual ones, or `ways`: settings by name."""
    return strategies(partial(model.watch, prompt), STRATEGIES if ways is None else ways, {"seed": 0, **keywords})


def strategies(
    watch: Callable[..., RunLike], chosen: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any]
) -> Strategies:
    """One prompt, once under each strategy; `settings` hold for all."""
    tried, run = [], None
    for name, strategy in chosen.items():
        run = watch(**{**settings, **strategy})
        surprisals = [-step.logprob / math.log(2) for step in run.steps if step.logprob is not None]
        mean = sum(surprisals) / len(surprisals) if surprisals else None
        finish = run.finish.value if run.finish else None
        tried.append(TriedStrategy(name, dict(strategy), run.text, len(run.steps), mean, run.seconds, finish))
    if run is None:
        raise InputError("there is no strategy to try. Name one.")
    return Strategies(run.model.name, run.prompt, tuple(tried))
