"""Two runs side by side: other settings, another template, or something changed inside the model.

What each wrote, where the texts part, and what each thought at that place.
"""

from __future__ import annotations

import math

from glassformer.decoding import Step
from glassformer.engine.protocol import alike
from glassformer.errors import InputError
from glassformer.observe.answers import candidates
from glassformer.observe.protocols import RunLike
from glassformer.observe.trace import written
from glassformer.text.pieces import shown_bytes
from glassformer.views.compare_runs import CandidatePair, RunComparison, SettingPair


def compare_runs(first: RunLike, second: RunLike, names: tuple[str, str] = ("first", "second")) -> RunComparison:
    """Two runs that kept what their rules did: those of `watch`."""
    both = (first, second)
    ids = [[step.id for step in run.steps] for run in both]
    if not ids[0] or not ids[1] or first.steps[0].waterfall is None or second.steps[0].waterfall is None:
        raise InputError("these runs kept no account of their candidates. Get both with watch(…).")
    same = alike(*ids)
    step = None if ids[0] == ids[1] else same
    shown = same if same < min(map(len, ids)) else 0
    steps = first.steps[shown], second.steps[shown]
    spelt = tuple(tuple(place.text for place in written(run).places) for run in both)
    own = [candidates(run.model.tokenizer, one.candidates) for run, one in zip(both, steps, strict=True) if one.candidates]
    return RunComparison(
        names,
        (first.prompt, second.prompt),
        alike(first.ids, second.ids),
        (first.text, second.text),
        (spelt[0], spelt[1]),
        _settings(first, second),
        (tuple(first.model.changes), tuple(second.model.changes)),
        step,
        shown,
        _beside(first, *steps),
        (own[0], own[1]),
        (steps[0].entropy, steps[1].entropy),
    )


def _settings(first: RunLike, second: RunLike) -> tuple[SettingPair, ...]:
    one, other = ({name: str(value) for name, (value, _) in run.settings.in_force.items()} for run in (first, second))
    names = dict.fromkeys((*one, *other))
    found = (SettingPair(name, (one.get(name, "–"), other.get(name, "–"))) for name in names)
    return tuple(setting for setting in found if setting.values[0] != setting.values[1])


def _beside(run: RunLike, one: Step, other: Step) -> tuple[CandidatePair, ...]:
    """Every candidate that either run kept, those first that either thinks most of."""
    model = [_shares(step) for step in (one, other)]
    falls = [step.waterfall for step in (one, other)]
    chance = [{fate.id: fate.probability for fate in fall} if fall is not None else {} for fall in falls]
    every = {*model[0], *model[1], *chance[0], *chance[1]}
    ids = sorted(every, key=lambda token: (-max(side.get(token, 0.0) for side in (*model, *chance)), token))
    spell = run.model.tokenizer.token_bytes
    return tuple(
        CandidatePair(
            token,
            shown_bytes(spell(token)),
            (model[0].get(token), model[1].get(token)),
            (chance[0].get(token), chance[1].get(token)),
        )
        for token in ids
    )


def _shares(step: Step) -> dict[int, float]:
    """What the model gave each candidate that was kept: its best, and those whose way through the rules is known."""
    if step.candidates is None:
        return {}
    whole = float(step.candidates.scores[0] - step.candidates.logprobs[0])  # the logarithm of what all add up to
    fates = {} if step.waterfall is None else {fate.id: math.exp(fate.scores[0] - whole) for fate in step.waterfall}
    return {token: share for token, _, share in step.candidates} | fates
