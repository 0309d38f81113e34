"""Which rules there are, and the order in which they come unless a user says otherwise.

A rule is called by the setting that puts it in force. First come guidance and what looks at the text so far, then what
is allowed or forced, then a user's own functions, and last, only when a token is drawn, what shapes the draw. This is
the customary order of the field's libraries; where they differ it is transformers'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from glassformer.decoding import grammar
from glassformer.decoding.contradictions import GRAMMARS
from glassformer.decoding.rules import Rule, guidance, own, penalties, shaping, tokens
from glassformer.decoding.settings import GenerationConfig, several
from glassformer.errors import SettingError, nearest


class Terms(NamedTuple):
    """What settings name by text, as ids; and how many candidates must stay."""

    biases: Mapping[int, float] = {}
    bad_words: Sequence[Sequence[int]] = ()
    breakers: frozenset[int] = frozenset()
    forced: Mapping[int, int] = {}  # by step
    least: int = 1


class Named(NamedTuple):
    """A rule in force, and what it is called."""

    name: str
    rule: Rule


Maker = Callable[[GenerationConfig, Terms], "Rule | list[Named]"]

ORDER: Mapping[str, Maker] = {
    "guidance_scale": lambda s, t: guidance.guided(sure(s.guidance_scale)),
    "sequence_bias": lambda s, t: tokens.sequence_bias(sequences(s.sequence_bias)),
    "logit_bias": lambda s, t: tokens.logit_bias(t.biases),
    "repetition_penalty": lambda s, t: penalties.repetition(s.repetition_penalty),
    "presence_penalty": lambda s, t: penalties.presence(s.presence_penalty),
    "frequency_penalty": lambda s, t: penalties.frequency(s.frequency_penalty),
    "dry_multiplier": lambda s, t: penalties.dry(
        s.dry_multiplier, s.dry_base, s.dry_allowed_length, s.dry_range, t.breakers
    ),
    "no_repeat_ngram_size": lambda s, t: penalties.no_repeat_ngram(s.no_repeat_ngram_size),
    "bad_words_ids": lambda s, t: tokens.bad_words(sure(s.bad_words_ids), s.eos),
    "bad_words": lambda s, t: tokens.bad_words(t.bad_words, s.eos),
    "min_length": lambda s, t: tokens.min_length(s.min_length, s.eos),
    "min_new_tokens": lambda s, t: tokens.min_new(sure(s.min_new_tokens), s.eos),
    **dict.fromkeys(GRAMMARS, lambda s, t: grammar.rule),
    "allowed_tokens": lambda s, t: tokens.allowed(sure(s.allowed_tokens)),
    "forced_bos_token_id": lambda s, t: tokens.forced_first(sure(s.forced_bos_token_id)),
    "forced_eos_token_id": lambda s, t: tokens.forced_last(several(s.forced_eos_token_id)),
    "suppress_tokens": lambda s, t: tokens.suppressed(sure(s.suppress_tokens)),
    "begin_suppress_tokens": lambda s, t: tokens.suppressed_first(
        sure(s.begin_suppress_tokens), s.forced_bos_token_id is not None
    ),
    "forced_tokens": lambda s, t: tokens.forced(t.forced),
    "logits_processor": lambda s, t: [Named(own.called(one), own.familiar(one)) for one in sure(s.logits_processor)],
    "temperature": lambda s, t: shaping.temperature(s.temperature),
    "top_k": lambda s, t: shaping.top_k(sure(s.top_k), t.least),
    "top_p": lambda s, t: shaping.top_p(sure(s.top_p), t.least),
    "min_p": lambda s, t: shaping.min_p(sure(s.min_p), t.least),
    "typical_p": lambda s, t: shaping.typical(s.typical_p, t.least),
    "epsilon_cutoff": lambda s, t: shaping.epsilon_cutoff(s.epsilon_cutoff, t.least),
    "eta_cutoff": lambda s, t: shaping.eta_cutoff(s.eta_cutoff, t.least),
    "top_n_sigma": lambda s, t: shaping.top_n_sigma(sure(s.top_n_sigma)),
    "xtc_probability": lambda s, t: shaping.xtc(s.xtc_probability, s.xtc_threshold),
    "mirostat": lambda s, t: shaping.mirostat(s.mirostat_tau, s.mirostat_eta),
}


def chain(settings: GenerationConfig, terms: Terms) -> tuple[Named, ...]:
    """The rules in force, in their order: the user's, or the one above."""
    made: dict[str, list[Named]] = {}
    for name, make in ORDER.items():
        if settings.on(name):
            found = make(settings, terms)
            made[name] = found if isinstance(found, list) else [Named(name, found)]
    if settings.rules is None:
        return tuple(one for each in made.values() for one in each)
    chosen: list[Named] = []
    placed = set()
    for entry in settings.rules:
        if callable(entry):
            chosen.append(Named(own.called(entry), own.own(entry)))
            continue
        if entry not in ORDER:
            raise SettingError(f"there is no rule {entry!r}.{nearest(entry, ORDER)} Rules: {', '.join(ORDER)}.")
        if entry in placed:
            raise SettingError(f"the order of rules has {entry!r} twice. Leave one out.")
        if entry not in made:
            raise SettingError(f"the order of rules has {entry!r}, which is not in force. Set it, or leave it out.")
        placed.add(entry)
        chosen.extend(made[entry])
    if missing := made.keys() - placed:
        raise SettingError(f"{min(missing)} is in force, but has no place in the order of rules. Put it in, or unset it.")
    return tuple(chosen)


def sequences(given: Any) -> dict[tuple[int, ...], float]:
    """Sequence biases, of a dictionary or of a list of pairs, as JSON must write them."""
    try:
        pairs = given.items() if isinstance(given, Mapping) else given
        found = {tuple(int(token) for token in ids): float(value) for ids, value in pairs}
    except (TypeError, ValueError):
        found = {}
    if not found or () in found:
        raise SettingError(
            f"sequence_bias is {given!r}; it must be a dictionary from tuples of token ids to numbers, "
            "or a list of [ids, number]."
        )
    return found


def sure(value: Any) -> Any:
    """A setting's value, which is there because the setting is on."""
    assert value is not None
    return value
