"""Two runs side by side: other settings, another template, or something changed inside the model.

What each wrote, where the texts diverge, and what each model thought at that place.
"""

from __future__ import annotations

import math

from glassformer.decoding import Step
from glassformer.engine.protocol import common_prefix
from glassformer.ground.errors import InputError
from glassformer.observe.answers import candidates
from glassformer.observe.protocols import RunLike
from glassformer.observe.tokens import token_text
from glassformer.observe.trace import trace_run
from glassformer.views.compare_runs import CandidatePair, RunComparison, SettingPair


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
