"""A sweep: how one setting, at several values, reshapes the same scores; and several strategies on one prompt."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from glassformer.decoding import Policy
from glassformer.decoding.settings_table import RULES, SAMPLING_RULES, SETTINGS
from glassformer.ground.candidates import entropy_stats, top
from glassformer.ground.errors import InputError, SettingError
from glassformer.observe.activations import Activations
from glassformer.observe.protocols import Floats, RunLike
from glassformer.observe.tokens import token_text
from glassformer.views.sweep import ShapedScores, Strategies, Sweep, TriedStrategy

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


def sweep(run: RunLike, setting: str, values: Any, step: int = 0) -> Sweep:
    """One step of a run once more, with one of its settings changed: the same scores, other probabilities."""
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


def strategies(
    watch: Callable[..., RunLike], chosen: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any]
) -> Strategies:
    """One prompt, once under each strategy; `settings` hold for all."""
    tried, run = [], None
    for name, own in chosen.items():
        run = watch(**{**settings, **own})
        surprisals = [-step.logprob / math.log(2) for step in run.steps if step.logprob is not None]
        mean = sum(surprisals) / len(surprisals) if surprisals else None
        finish = run.finish.value if run.finish else None
        tried.append(TriedStrategy(name, dict(own), run.text, len(run.steps), mean, run.seconds, finish))
    if run is None:
        raise InputError("there is no strategy to try. Name one.")
    return Strategies(run.model.name, run.prompt, tuple(tried))
