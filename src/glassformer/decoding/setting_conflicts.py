"""Settings that contradict each other, or that would have no effect: an error that says what to do, not a warning.

Only what a call passes can lack an effect; a model's file may hold a temperature though it does not sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from glassformer.decoding.settings_table import GRAMMARS, SETTINGS, SettingsTable
from glassformer.ground.errors import SettingError, spell

EXCLUSIVE = (  # pairs that cannot both be in force
    ("assistant_model", "prompt_lookup_num_tokens"),
    ("assistant_model", "num_beams"),
    ("assistant_model", "guidance_scale"),
    ("prompt_lookup_num_tokens", "num_beams"),
    ("prompt_lookup_num_tokens", "guidance_scale"),
    ("num_beams", "guidance_scale"),
    *(
        ("penalty_alpha", other)
        for other in ("do_sample", "num_beams", "assistant_model", "prompt_lookup_num_tokens", "guidance_scale")
    ),
    ("num_beams", "mirostat"),
    ("negative_prompt", "negative_prompt_ids"),
    *combinations(GRAMMARS, 2),
)


def refuse_contradictions(settings: SettingsTable, changes: Mapping[str, Any]) -> None:
    """Raise for the first contradiction; `changes` are the settings that the call itself passed."""
    for problem in (
        *without_effect(settings, changes),
        *contrary_lengths(settings, changes),
        *exclusive(settings, changes),
        *contrary_counts(settings),
    ):
        raise SettingError(problem)


def without_effect(settings: SettingsTable, changes: Mapping[str, Any]) -> Iterator[str]:
    for name, value in changes.items():
        needs = SETTINGS[name].needs
        if needs is not None and settings.is_set(name) and not settings.has_needs(name):
            title, example = SETTINGS[needs].title, SETTINGS[needs].example
            yield f"{spell(name, value)} has no effect without {title}. Pass {spell(needs, example)} too."


def contrary_lengths(settings: SettingsTable, changes: Mapping[str, Any]) -> Iterator[str]:
    if changes.get("max_new_tokens") is not None and changes.get("max_length") is not None:
        yield f"{spell('max_new_tokens')} and {spell('max_length')} say the same thing in two ways. Pass one of them."
    for least, most in (("min_new_tokens", "max_new_tokens"), ("min_length", "max_length")):
        low, high = getattr(settings, least), getattr(settings, most)
        if low is not None and high is not None and low > high and (least in changes or most in changes):
            yield f"{spell(least, low)} is more than {spell(most, high)}. Change one of them."


def exclusive(settings: SettingsTable, changes: Mapping[str, Any]) -> Iterator[str]:
    for pair in EXCLUSIVE:
        if all(settings.is_active(name) for name in pair):
            own = next((name for name in pair if name not in changes), None)
            off = f"{spell(own, SETTINGS[own].neutral)} switches the model's own off" if own else "Leave out one of them"
            yield f"{spell(pair[0])} and {spell(pair[1])} do not go together. {off}."
    for name, info in SETTINGS.items():
        if info.truncates and settings.is_active("mirostat") and name in changes and settings.is_set(name):
            yield f"{spell('mirostat')} takes the place of {spell(name)}. Pass one of them."


def contrary_counts(settings: SettingsTable) -> Iterator[str]:
    texts, beams = settings.num_return_sequences, settings.num_beams
    if texts > 1 and beams == 1 and not settings.do_sample:
        several, sampled = spell("num_return_sequences", texts), spell("do_sample", True)
        yield f"{several} would give the same text each time. Pass {sampled} or {spell('num_beams')} too."
    if 1 < beams < texts:
        more = f"{spell('num_return_sequences', texts)} is more than {spell('num_beams', beams)}"
        yield f"{more}. Pass more beams."
