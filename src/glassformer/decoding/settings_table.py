"""The table of generation settings: one line each, with its type, default, meaning and bounds, and the rule that it makes.

This is the one place where settings and rules are declared. Checks, messages, the tables of the documentation and the
chain of rules are read from it.

A setting with `rule=` changes the scores while it is in force. **Rules run in the order in which their settings are
declared**: first guidance and what looks at the text so far, then what is allowed or forced, then a user's own functions,
and last, only when a token is drawn, what shapes the draw. This is the customary order of the field's libraries; where
they differ it is transformers'. The setting `rules` overrides it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from glassformer.decoding.rules import NamedRule, Rule, TextIds, constraints, custom, penalties, sampling
from glassformer.decoding.setting_info import SettingInfo, setting
from glassformer.ground.errors import SettingError

A_TOKEN_ID = "a token id, or a list of them"
TOKEN_IDS = "a list of token ids"
Functions = Sequence[Callable[..., Any]]
MOST_TEXTS = 1024  # at once: each has a row of its own in the KV cache
MOST_DRAFTED = 1024  # tokens of a draft, which are scored in one pass


def by_grammar(settings: SettingsTable, ids: TextIds) -> Rule:
    """The rule of every setting that is a grammar; what the grammar allows, the text's history knows."""
    return constraints.by_grammar


@dataclass(slots=True, repr=False)
class SettingsTable:
    """The settings. What is done with them is in GenerationConfig."""

    # How long
    max_new_tokens: int | None = setting(
        None, "at most so many tokens; 256 when neither this nor max_length is set", least=1
    )
    max_length: int | None = setting(None, "the same, prompt included", least=1)
    max_time: float | None = setting(None, "no new token after so many seconds", above=0)
    stop_strings: str | Sequence[str] | None = setting(
        None, "end when the text holds one of these", expects="a text or a list of texts"
    )
    eos_token_id: int | Sequence[int] | None = setting(None, "what ends the text: an id, or several", expects=A_TOKEN_ID)
    stopping_criteria: Functions | None = setting(
        None,
        "functions of (input_ids, scores), as tensors, that say when to stop",
        expects="a list of functions",
        per_call=True,
    )
    stop_when: Callable[..., Any] | None = setting(
        None, "a function of the ids so far, as numpy, that says when to stop", expects="a function", per_call=True
    )
    cancel: Any = setting(None, "a threading.Event that ends the text when it is set", per_call=True)

    # Which strategy
    do_sample: bool = setting(False, "draw from the probabilities; otherwise take the best", title="sampling", example=True)
    seed: int | None = setting(
        None, "the same seed gives the same draws", least=0, below=2**64, expects="a whole number from 0 to 2**64 - 1"
    )
    num_beams: int = setting(
        1, "follow so many texts at once and take the best as a whole", least=1, most=MOST_TEXTS, title="beams", example=4
    )
    num_return_sequences: int = setting(1, "how many texts for each prompt", least=1, most=MOST_TEXTS)
    length_penalty: float = setting(
        1.0, "beams: above 0 favours long texts, below 0 short ones", least=-10, most=10, needs="num_beams"
    )
    early_stopping: bool | str = setting(
        False,
        "beams: stop when num_beams texts are complete; 'never': when none can become better",
        needs="num_beams",
        expects="true, false or 'never'",
    )
    penalty_alpha: float | None = setting(
        None,
        "contrastive search: how much likeness to the text so far counts, against probability, among the top_k best",
        above=0,
        most=1,
    )
    assistant_model: Any = setting(
        None,
        "a smaller model that drafts; the text stays exactly the same",
        title="a model that drafts",
        example="…",
        per_call=True,
    )
    num_assistant_tokens: int | None = setting(
        None, "how many tokens are drafted at first; then it adapts", least=1, most=MOST_DRAFTED, needs="assistant_model"
    )
    prompt_lookup_num_tokens: int | None = setting(
        None,
        "draft so many tokens by looking for the last ones earlier on",
        least=1,
        most=MOST_DRAFTED,
        title="prompt lookup",
        example=10,
    )
    max_matching_ngram_size: int | None = setting(
        None,
        "how many last tokens are looked for; 2 by default",
        least=1,
        most=MOST_DRAFTED,
        needs="prompt_lookup_num_tokens",
    )

    # From here on rules, in the order in which they run. Guidance
    guidance_scale: float | None = setting(
        None,
        "away from what the negative prompt would give: above 1",
        neutral=1.0,
        title="guidance",
        example=1.5,
        rule=lambda s, ids: penalties.guided(s.guidance_scale),
    )
    negative_prompt: str | None = setting(
        None, "guidance: the text to lead away from", needs="guidance_scale", empty_counts=True, per_call=True
    )
    negative_prompt_ids: Any = setting(
        None, "the same as ids; by default the prompt's last token", needs="guidance_scale", per_call=True
    )

    # Favoured tokens
    sequence_bias: Any = setting(
        None,
        "added to the score of a token that would complete a sequence: {(ids): value}",
        expects="a dictionary from tuples of token ids to numbers, or a list of [ids, number]",
        rule=lambda s, ids: constraints.sequence_bias(sequence_biases(s.sequence_bias)),
        token_ids=lambda s, ids: (token for sequence in sequence_biases(s.sequence_bias) for token in sequence),
    )
    logit_bias: Mapping[Any, float] | Sequence[Sequence[Any]] | None = setting(
        None,
        "added to a token's score: {id or its text: value}, or a list of pairs",
        expects="a dictionary from token ids, or texts of one token, to numbers, or a list of pairs",
        rule=lambda s, ids: constraints.logit_bias(ids.logit_bias),
        token_ids=lambda s, ids: ids.logit_bias,
    )

    # Against repetition
    repetition_penalty: float = setting(
        1.0,
        "above 1: what was said, prompt included, becomes less likely",
        above=0,
        rule=lambda s, ids: penalties.repetition(s.repetition_penalty),
    )
    presence_penalty: float = setting(
        0.0,
        "taken off the score of every token that was chosen before",
        rule=lambda s, ids: penalties.presence(s.presence_penalty),
    )
    frequency_penalty: float = setting(
        0.0,
        "the same, for each time that it was chosen",
        rule=lambda s, ids: penalties.frequency(s.frequency_penalty),
    )
    dry_multiplier: float = setting(
        0.0,
        "DRY: how much a token loses that would go on repeating a passage; 0.8 is usual",
        least=0,
        title="DRY",
        example=0.8,
        rule=lambda s, ids: penalties.dry(s.dry_multiplier, s.dry_base, s.dry_allowed_length, s.dry_range, ids.dry_breakers),
    )
    dry_base: float = setting(1.75, "DRY: how fast the loss grows with the passage", least=1, needs="dry_multiplier")
    dry_allowed_length: int = setting(2, "DRY: passages up to this length are free", least=1, needs="dry_multiplier")
    dry_range: int = setting(0, "DRY: look at so many last tokens; 0: all", least=0, needs="dry_multiplier")
    dry_sequence_breakers: Sequence[str] | None = setting(
        None, "DRY: texts that end a passage; by default line ends, colons, quotes and stars", needs="dry_multiplier"
    )
    no_repeat_ngram_size: int = setting(
        0,
        "no sequence of so many tokens comes twice",
        least=0,
        rule=lambda s, ids: penalties.no_repeat_ngram(s.no_repeat_ngram_size),
    )

    # What may not come
    bad_words_ids: Sequence[Sequence[int]] | None = setting(
        None,
        "sequences of ids that may not appear",
        expects="a list of lists of token ids",
        rule=lambda s, ids: constraints.bad_words(s.bad_words_ids, s.eos),
        token_ids=lambda s, ids: (token for sequence in s.bad_words_ids for token in sequence),
    )
    bad_words: Sequence[str] | None = setting(
        None, "words that may not appear", rule=lambda s, ids: constraints.bad_words(ids.bad_words, s.eos)
    )
    min_length: int = setting(
        0,
        "no end before so many tokens, prompt included",
        least=0,
        rule=lambda s, ids: constraints.min_length(s.min_length, s.eos),
    )
    min_new_tokens: int | None = setting(
        None,
        "no end before so many new tokens",
        least=0,
        neutral=0,
        rule=lambda s, ids: constraints.min_new_tokens(s.min_new_tokens, s.eos),
    )

    # Which texts are allowed
    json_schema: Any = setting(None, "only JSON that this schema allows; true: any JSON", empty_counts=True, rule=by_grammar)
    regex: str | None = setting(None, "only texts that match this as a whole", rule=by_grammar)
    choices: Sequence[str] | None = setting(None, "only one of these texts", empty_counts=True, rule=by_grammar)
    grammar: str | None = setting(None, "only texts of this Lark grammar", rule=by_grammar)

    # Which tokens are allowed
    prefix_allowed_tokens_fn: Callable[..., Any] | None = setting(
        None,
        "a function of the prompt's number in the batch and the ids so far, as a tensor, that lists the ids that may follow",
        expects="a function",
        per_call=True,
        rule=lambda s, ids: custom.from_allowed_tokens(s.prefix_allowed_tokens_fn),
    )
    allowed_tokens: Sequence[int] | None = setting(
        None,
        "only these ids",
        expects=TOKEN_IDS,
        empty_counts=True,
        rule=lambda s, ids: constraints.allowed(s.allowed_tokens),
        token_ids=lambda s, ids: s.allowed_tokens,
    )
    forced_bos_token_id: int | None = setting(
        None,
        "the first token after a target's start, whatever its score",
        least=0,
        rule=lambda s, ids: constraints.forced_first(s.forced_bos_token_id),
        token_ids=lambda s, ids: as_ids(s.forced_bos_token_id),
    )
    forced_eos_token_id: int | Sequence[int] | None = setting(
        None,
        "the last token, when the text reaches its limit",
        expects=A_TOKEN_ID,
        rule=lambda s, ids: constraints.forced_last(as_ids(s.forced_eos_token_id)),
        token_ids=lambda s, ids: as_ids(s.forced_eos_token_id),
    )
    exponential_decay_length_penalty: Sequence[float] | None = setting(
        None,
        "(start, factor): after so many new tokens the score of the end grows by this factor with each token",
        expects="a pair of a number of tokens and a factor above 0",
        rule=lambda s, ids: penalties.growing_end(*decay(s.exponential_decay_length_penalty), s.eos),
    )
    suppress_tokens: Sequence[int] | None = setting(
        None,
        "none of these ids",
        expects=TOKEN_IDS,
        rule=lambda s, ids: constraints.suppressed(s.suppress_tokens),
        token_ids=lambda s, ids: (token for token in s.suppress_tokens if token != NO_TOKEN),
    )
    begin_suppress_tokens: Sequence[int] | None = setting(
        None,
        "none of these ids as the first",
        expects=TOKEN_IDS,
        rule=lambda s, ids: constraints.suppressed_first(s.begin_suppress_tokens, s.forced_bos_token_id is not None),
        token_ids=lambda s, ids: (token for token in s.begin_suppress_tokens if token != NO_TOKEN),
    )
    forced_tokens: Mapping[Any, Any] | Sequence[Sequence[Any]] | None = setting(
        None,
        "this token at this step, whatever its score: {step: id or its text}, or a list of pairs",
        expects="a dictionary from steps, 0 the first, to token ids or texts of one token, or a list of pairs",
        rule=lambda s, ids: constraints.forced(ids.forced_tokens),
        token_ids=lambda s, ids: ids.forced_tokens.values(),
    )

    # Your own rules, and the order of all
    logits_processor: Functions | None = setting(
        None,
        "functions of (input_ids, scores), as tensors, before those that draw",
        expects="a list of functions",
        per_call=True,
        rule=lambda s, ids: [
            NamedRule(custom.name_of(function), custom.from_logits_processor(function)) for function in s.logits_processor
        ],
    )
    rules: Sequence[str | Callable[..., Any]] | None = setting(
        None,
        "the order of all rules in force, by name; among them functions of (ids, scores), as numpy",
        expects="a list of rules' names and functions",
        per_call=True,
    )

    # How to draw
    temperature: float = setting(
        1.0,
        "below 1 sharpens, above 1 flattens",
        above=0,
        needs="do_sample",
        rule=lambda s, ids: sampling.temperature(s.temperature),
    )
    top_k: int | None = setting(
        50,
        "draw from the best so many; 0: all",
        least=0,
        neutral=0,
        needs="do_sample",
        or_needs="penalty_alpha",
        rule=lambda s, ids: sampling.top_k(s.top_k, s.min_keep) if s.do_sample else [],
        truncates=True,
    )
    top_p: float | None = setting(
        1.0,
        "draw from the best that together have this probability",
        above=0,
        most=1,
        needs="do_sample",
        rule=lambda s, ids: sampling.top_p(s.top_p, s.min_keep),
        truncates=True,
    )
    min_p: float | None = setting(
        None,
        "draw from those at least this likely, as a share of the best",
        least=0,
        most=1,
        neutral=0.0,
        needs="do_sample",
        rule=lambda s, ids: sampling.min_p(s.min_p, s.min_keep),
        truncates=True,
    )
    typical_p: float = setting(
        1.0,
        "draw from the most typical that together have this probability",
        above=0,
        most=1,
        needs="do_sample",
        rule=lambda s, ids: sampling.typical_p(s.typical_p, s.min_keep),
        truncates=True,
    )
    epsilon_cutoff: float = setting(
        0.0,
        "draw from those at least this likely",
        least=0,
        below=1,
        needs="do_sample",
        rule=lambda s, ids: sampling.epsilon_cutoff(s.epsilon_cutoff, s.min_keep),
        truncates=True,
    )
    eta_cutoff: float = setting(
        0.0,
        "the same, with a limit that sinks where the model is unsure",
        least=0,
        below=1,
        needs="do_sample",
        rule=lambda s, ids: sampling.eta_cutoff(s.eta_cutoff, s.min_keep),
        truncates=True,
    )
    top_n_sigma: float | None = setting(
        None,
        "draw from scores within so many standard deviations of the best",
        above=0,
        needs="do_sample",
        rule=lambda s, ids: sampling.top_n_sigma(s.top_n_sigma),
        truncates=True,
    )
    xtc_probability: float = setting(
        0.0,
        "XTC: how often the top choices are left out",
        least=0,
        most=1,
        needs="do_sample",
        title="XTC",
        example=0.5,
        rule=lambda s, ids: sampling.xtc(s.xtc_probability, s.xtc_threshold),
        truncates=True,
    )
    xtc_threshold: float = setting(0.1, "XTC: what counts as a top choice", above=0, most=1, needs="xtc_probability")
    mirostat: int = setting(
        0,
        "2: hold the surprisal of the text near mirostat_tau, in place of what cuts the list",
        least=0,
        most=2,
        needs="do_sample",
        title="mirostat",
        example=2,
        rule=lambda s, ids: sampling.mirostat(s.mirostat_tau, s.mirostat_eta),
    )
    mirostat_tau: float = setting(5.0, "mirostat: the target surprisal of a token, in bits", above=0, needs="mirostat")
    mirostat_eta: float = setting(0.1, "mirostat: how fast it corrects itself", above=0, needs="mirostat")

    # What comes back (no rules from here on)
    return_dict_in_generate: bool = setting(
        False,
        "generate gives an object with all there is, not the ids alone",
        title="a place for them",
        example=True,
        per_call=True,
    )
    output_scores: bool = setting(
        False, "with it, each step's scores after the rules", needs="return_dict_in_generate", per_call=True
    )
    output_logits: bool = setting(
        False, "with it, each step's scores before them", needs="return_dict_in_generate", per_call=True
    )
    output_hidden_states: bool = setting(
        False, "with it, every layer's states in each step", needs="return_dict_in_generate", per_call=True
    )
    output_attentions: bool = setting(
        False, "with it, every layer's attention weights in each step", needs="return_dict_in_generate", per_call=True
    )
    logprobs: int | None = setting(None, "log-probabilities of the chosen token and of the best so many", least=0)
    prompt_logprobs: int | None = setting(None, "the same for the prompt's tokens", least=0)

    # The model's own
    bos_token_id: int | None = setting(None, "what a text begins with")
    pad_token_id: int | None = setting(None, "what fills up rows that ended early")
    decoder_start_token_id: int | None = setting(None, "what an encoder-decoder's target begins with", least=0)

    def is_set(self, name: str) -> bool:
        """Whether a setting has a value that would change something; an empty list changes nothing, mostly."""
        value, info = getattr(self, name), SETTINGS[name]
        if value is None or value is False:
            return False
        if isinstance(value, (str, list, tuple, dict)) and not value:
            return info.empty_counts
        return bool(value != info.neutral)

    def is_active(self, name: str) -> bool:
        """Whether a setting has an effect: it is set, what it needs is active, and mirostat does not replace it."""
        info = SETTINGS[name]
        if info.truncates and self.mirostat and self.do_sample:
            return False
        return self.is_set(name) and self.has_needs(name)

    def has_needs(self, name: str) -> bool:
        """Whether what a setting needs to have an effect is active."""
        needs = [needed for needed in (SETTINGS[name].needs, SETTINGS[name].or_needs) if needed is not None]
        return not needs or any(self.is_active(needed) for needed in needs)

    @property
    def eos(self) -> frozenset[int]:
        """All ids that end the text."""
        return frozenset(as_ids(self.eos_token_id))

    @property
    def min_keep(self) -> int:
        """How many candidates a rule that truncates must leave: beams need one more than can end a text."""
        return len(self.eos) + 1 if self.num_beams > 1 else 1


SETTINGS: Mapping[str, SettingInfo] = {field.name: field.metadata["info"] for field in fields(SettingsTable)}
RULES = tuple(name for name, info in SETTINGS.items() if info.rule is not None)  # in the order in which they run
SAMPLING_RULES = tuple(name for name in RULES if SETTINGS[name].needs == "do_sample")
GRAMMARS = tuple(name for name in RULES if SETTINGS[name].rule is by_grammar)
NO_TOKEN = -1  # how some files say that nothing is suppressed


def as_ids(ids: int | Sequence[int] | None) -> Sequence[int]:
    """None, one id or many, as many."""
    return () if ids is None else (ids,) if isinstance(ids, int) else ids


def decay(value: Any) -> tuple[int, float]:
    """`exponential_decay_length_penalty`, as where it starts and its factor."""
    if len(value) != 2 or value[0] != int(value[0]) or value[0] < 0 or not value[1] > 0:
        raise SettingError(
            f"exponential_decay_length_penalty is {value!r}; it must be a pair of a number of tokens and a factor above 0."
        )
    return int(value[0]), float(value[1])


def sequence_biases(value: Any) -> dict[tuple[int, ...], float]:
    """`sequence_bias`, of a dictionary or of a list of pairs, as JSON must write it."""
    try:
        pairs = value.items() if isinstance(value, Mapping) else value
        biases = {tuple(int(token) for token in ids): float(bias) for ids, bias in pairs}
    except (TypeError, ValueError, OverflowError):
        biases = {}
    if not biases or () in biases or not all(bias < math.inf for bias in biases.values()):
        raise SettingError(
            f"sequence_bias is {value!r}; it must be a dictionary from tuples of token ids to numbers, "
            "or a list of [ids, number]."
        )
    return biases
