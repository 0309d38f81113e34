"""A sweep: how one setting, at several values, reshapes the same scores; and several strategies on one prompt."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from glassformer.candidates import top
from glassformer.decoding import Policy
from glassformer.decoding.order import ORDER
from glassformer.decoding.settings import abouts
from glassformer.decoding.waterfall import spread
from glassformer.errors import InputError, SettingError
from glassformer.observe.activations import Activations
from glassformer.observe.protocols import Floats, RunLike
from glassformer.text.pieces import shown_bytes
from glassformer.views.sweep import ShapedScores, Strategies, Sweep, TriedStrategy

TOP = 10
DRAWN = ("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "top_n_sigma")
STRATEGIES: Mapping[str, Mapping[str, Any]] = {  # the customary ones, each by its own setting
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "temperature": 1.0, "top_k": 0},
    "temperature 0.7": {"do_sample": True, "temperature": 0.7, "top_k": 0},
    "top-k 40": {"do_sample": True, "top_k": 40},
    "top-p 0.9": {"do_sample": True, "top_k": 0, "top_p": 0.9},
    "min-p 0.1": {"do_sample": True, "top_k": 0, "min_p": 0.1},
    "4 beams": {"num_beams": 4, "do_sample": False},
}


def sweep(run: RunLike, setting: str, values: Sequence[Any], step: int = 0) -> Sweep:
    """One step of a run once more, with one of its settings changed: the same scores, other chances."""
    if setting in abouts() and setting not in ORDER:
        raise SettingError(f"{setting} shapes no scores, so a sweep of it shows nothing. Sweep {', '.join(DRAWN)}, ….")
    values = values if isinstance(values, (list, tuple)) else [values]
    if not values:
        raise InputError(f"a sweep needs values to try, such as {setting}=0.2,0.7,1.2.")
    scores = _scores(run, step)
    best = top(scores, TOP)
    shapes = tuple(_shape(run, setting, value, step, scores, best.ids.tolist()) for value in values)
    tokenizer = run.model.tokenizer
    texts = tuple(shown_bytes(tokenizer.token_bytes(token)) for token in best.ids.tolist())
    reading = Activations.of_run(run)
    before = tokenizer.decode(reading.ids[: reading.given + step][-16:])
    shares = tuple(best.probabilities.tolist())
    return Sweep(run.model.name, setting, step, before, tuple(best.ids.tolist()), texts, shares, shapes)


def _scores(run: RunLike, step: int) -> Floats:
    """The model's own scores before a step's choice."""
    reading = Activations.of_run(run)
    if not 0 <= step <= len(run.steps):
        raise InputError(f"there is no token {step} in a text of {len(run.steps)}.")
    last = reading.given + step - 1
    for chunk in reading.chunks(f"blocks.{run.model.blueprint.blocks - 1}.residual"):
        if chunk.start <= last < chunk.start + chunk.count:
            (state,) = chunk.sites.values()
            found: Floats = run.model.unembed(state[None, last - chunk.start])[0]
            return found
    raise AssertionError("the text holds every step")


def _shape(run: RunLike, setting: str, value: Any, step: int, scores: Floats, ids: Sequence[int]) -> ShapedScores:
    drawn = {"do_sample": True} if setting in DRAWN else {}
    settings = run.settings.merged({**drawn, setting: value})
    recipe = run.model.recipe(settings)
    reading = Activations.of_run(run)
    policy = Policy(recipe, reading.ids[: reading.given], context=run.model.config.context, seed=run.seed or 0)
    for one in run.steps[:step]:
        policy.accept(one.id)
    field = policy.shape(scores)
    chances = dict(zip((field.id(place) for place in range(field.scores.size)), field.probabilities().tolist(), strict=True))
    measured = spread(field.scores)
    return ShapedScores(str(value), measured.left, measured.entropy, tuple(chances.get(token, 0.0) for token in ids))


def strategies(
    watch: Callable[..., RunLike], wanted: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any]
) -> Strategies:
    """One prompt, once under each strategy; `settings` hold for all."""
    tried, run = [], None
    for name, own in wanted.items():
        run = watch(**{**settings, **own})
        surprisals = [-step.logprob / math.log(2) for step in run.steps if step.logprob is not None]
        mean = sum(surprisals) / len(surprisals) if surprisals else None
        finish = run.finish.value if run.finish else None
        tried.append(TriedStrategy(name, dict(own), run.text, len(run.steps), mean, run.seconds, finish))
    if run is None:
        raise InputError("there is no strategy to try. Name one.")
    return Strategies(run.model.name, run.prompt, tuple(tried))
