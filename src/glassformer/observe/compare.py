"""Two runs, two texts or two models side by side: what differs, and from where on.

Two runs have other settings, another template, or something changed inside the model. Of two texts in one model the same
token is compared: what it becomes depends on all that stands before it, and on nothing after it. So after the same beginning
it is the same at every layer, whatever follows; after another beginning it differs from the layer on where attention first
brings the difference in. Two models are compared in `compare_models.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from glassformer.decoding import Step
from glassformer.engine.protocol import common_prefix
from glassformer.ground.arguments import checked
from glassformer.ground.candidates import kl_divergence, log_softmax, top
from glassformer.ground.errors import InputError, InputTypeError
from glassformer.ground.progress import Progress
from glassformer.observe.activations import Activations
from glassformer.observe.answers import candidates
from glassformer.observe.compare_models import compare_models, compare_readings
from glassformer.observe.protocols import Floats, RunLike
from glassformer.observe.tokens import token_text
from glassformer.observe.trace import trace_run
from glassformer.views.answers import Candidate
from glassformer.views.compare_models import ModelComparison
from glassformer.views.compare_runs import CandidatePair, RunComparison, SettingPair
from glassformer.views.compare_texts import LayerDifference, TextComparison
from glassformer.views.tokens import find_token

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


def compare_texts(first: Activations, second: Activations, token: int | str | None = None) -> TextComparison:
    """One token in two texts: the last that both have, unless one is named."""
    model, stream = first.model, first.stream
    positions = _common_token(first, second, token)
    texts = zip((first, second), positions, strict=True)
    states = [[value[0] for value in text.values_at([at], *stream.values()).values()] for text, at in texts]
    layers = tuple(_difference(*layer) for layer in zip(stream, *states, strict=True))
    best: tuple[tuple[Candidate, ...], ...] = ((), ())
    divergence = None
    if model.writes or model.head == "masked":
        scores = [model.unembed(layers[-1][None])[0] for layers in states]
        divergence = kl_divergence(*map(log_softmax, scores))
        best = tuple(candidates(model.tokenizer, top(row, TOP)) for row in scores)
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
    for at in positions:
        matches = [number for number, token_id in enumerate(second.ids) if token_id == first.ids[at]]
        if matches:
            return at, at if at in matches else matches[-1]
    if token is None:
        raise InputError("the two texts have no token in common, so there is nothing to compare in them.")
    raise InputError(f"the second text has no token {first.texts[at]!r}. Name one that both have.")


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
    best = [candidates(run.model.tokenizer, at.candidates) for run, at in pairs if at.candidates]
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
