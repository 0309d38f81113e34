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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from inspect import signature
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeAlias, get_type_hints

from glassformer.decoding.rules import NamedRule, Rule, constraints, custom, penalties, sampling
from glassformer.ground.errors import SettingError
from glassformer.ground.typecheck import is_finite, matches_type, type_words

INT_LIMIT = 2**31 - 1  # of every whole number, unless its line has another bound
NO_TOKEN = -1  # how some files say that nothing is suppressed
FLOAT_LIMIT = 1e9  # and of every other number: scores are 32-bit floats

Made: TypeAlias = Rule | list[NamedRule]
RuleMaker: TypeAlias = Callable[..., Made]  # its parameters are settings by name, `eos`, `min_keep`, or names of `TextIds`


class SettingInfo(NamedTuple):
    summary: str
    default: Any = None
    hint: Any = Any  # its type, as annotated
    neutral: Any = None  # the value that changes nothing, beside None
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    needs: str | None = None  # the setting without which this one has no effect
    or_needs: str | None = None  # another with which it has one too
    title: str = ""  # of a setting that others need: what it switches on
    example: object = None  # and a value that does so
    empty_counts: bool = False  # whether an empty text or list changes something too
    expects: str | None = None  # its type in words, where the annotation does not say it
    per_call: bool = False  # never in a file
    rule: RuleMaker | None = None  # what it does to the scores
    truncates: bool = False  # whether its rule only cuts candidates off, which mirostat does in its place
    token_ids: Callable[[Any], Iterable[int]] | None = None  # the ids that its value names, which must be in the vocabulary

    def make_rule(self, value_of: Callable[[str], Any]) -> Made:
        """Its rule; `value_of`: the value of what a maker's parameter is called."""
        assert self.rule is not None
        return self.rule(**{name: value_of(name) for name in parameters_of(self.rule)})

    def fits(self, value: Any) -> bool:
        return matches_type(value, self.hint) and all(self._within_bounds(number) for number in _numbers(value))

    def _within_bounds(self, number: float) -> bool:
        limit = math.inf if self.below is not None else FLOAT_LIMIT if isinstance(number, float) else INT_LIMIT
        return (
            -limit <= number <= limit
            and (self.least is None or number >= self.least)
            and (self.above is None or number > self.above)
            and (self.most is None or number <= self.most)
            and (self.below is None or number < self.below)
        )

    def expected(self, value: Any) -> str:
        """What it must be instead of a value, in words."""
        if self.expects is not None:
            return self.expects
        limits = (("above", self.above), ("at least", self.least), ("below", self.below), ("at most", self._most(value)))
        bounds = " and ".join(f"{word} {limit:.10g}" for word, limit in limits if limit is not None)
        if matches_type(0.5, self.hint):
            number = matches_type(value, float) and is_finite(value)
            return bounds if bounds and number else f"a number {bounds}".rstrip()
        if matches_type(1, self.hint) and not matches_type([1], self.hint):
            return f"a whole number of {bounds}"
        return type_words(self.hint).removesuffix(" or null")

    def _most(self, value: Any) -> float | None:
        """The upper bound, where there is one or a value goes beyond what any number may be."""
        if self.most is not None or self.below is not None or not matches_type(value, float):
            return self.most
        limit = FLOAT_LIMIT if isinstance(value, float) else INT_LIMIT
        return limit if is_finite(value) and value > limit else None


def _numbers(value: Any) -> Iterator[int | float]:
    """The number that a value is, or the whole numbers that it lists: ids and steps."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from (number for number in _numbers(item) if isinstance(number, int))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


@cache
def parameters_of(maker: RuleMaker) -> tuple[str, ...]:
    return tuple(signature(maker).parameters)


def setting(default: Any, summary: str, **more: Any) -> Any:
    """A line of the table; `more` is as in SettingInfo. The neutral value is the default unless another is given."""
    neutral = more.pop("neutral", None if isinstance(default, (list, dict, bool)) else default)
    return field(default=default, metadata={"info": SettingInfo(summary, default, neutral=neutral, **more)})


def cut(default: Any, summary: str, **more: Any) -> Any:
    """A line of a rule that only cuts unlikely candidates off before a draw."""
    return setting(default, summary, needs="do_sample", truncates=True, **more)


def output(summary: str) -> Any:
    """A line of what comes back beside the ids."""
    return setting(False, summary, needs="return_dict_in_generate", per_call=True)


def listed(tokens: Iterable[int]) -> Iterable[int]:
    """The ids of a list in which some files say that there is none."""
    return (token for token in tokens if token != NO_TOKEN)


A_TOKEN_ID = "a token id, or a list of them"
TOKEN_IDS = "a list of token ids"
Functions = Sequence[Callable[..., Any]]
NEW_TOKENS = 256  # unless a setting says how many
OWN_HEAD = "mtp"  # as an assistant: the model's own head for further tokens
MATCHED_NGRAM = 2  # likewise
MOST_TEXTS = 1024  # at once: each has a row of its own in the KV cache
MOST_DRAFTED = 1024  # tokens of a draft, which are scored in one pass


def by_grammar() -> Rule:
    """The rule of every setting that is a grammar; what the grammar allows, the text's history knows."""
    return constraints.by_grammar


@dataclass(slots=True, repr=False)
class SettingsTable:
    """The settings. What is done with them is in GenerationConfig."""

    # How long
    max_new_tokens: int | None = setting(
        None, f"at most this many tokens; {NEW_TOKENS} when neither this nor max_length is set", least=1
    )
    max_length: int | None = setting(None, "at most this many tokens, prompt included", least=1)
    max_time: float | None = setting(None, "no new token after this many seconds", above=0)
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
        1, "follow this many texts at once and take the best as a whole", least=1, most=MOST_TEXTS, title="beams", example=4
    )
    num_return_sequences: int = setting(1, "how many texts for each prompt", least=1, most=MOST_TEXTS)
    length_penalty: float = setting(
        1.0, "beams: above 0 favours long texts, below 0 short ones", least=-10, most=10, needs="num_beams"
    )
    early_stopping: bool | Literal["never"] = setting(
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
        "a smaller model that drafts, or 'mtp': the model's own head for further tokens; the text stays exactly the same",
        title="a model that drafts",
        example="…",
        per_call=True,
    )
    num_assistant_tokens: int | None = setting(
        None, "how many tokens are drafted at first; then it adapts", least=1, most=MOST_DRAFTED, needs="assistant_model"
    )
    prompt_lookup_num_tokens: int | None = setting(
        None,
        "draft this many tokens by looking for the last ones earlier on",
        least=1,
        most=MOST_DRAFTED,
        title="prompt lookup",
        example=10,
    )
    max_matching_ngram_size: int | None = setting(
        None,
        f"how many last tokens are looked for; {MATCHED_NGRAM} by default",
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
        rule=penalties.guided,
    )
    negative_prompt: str | None = setting(
        None, "guidance: the text to lead away from", needs="guidance_scale", empty_counts=True, per_call=True
    )
    negative_prompt_ids: Any = setting(
        None, "the text to lead away from as ids; by default the prompt's last token", needs="guidance_scale", per_call=True
    )

    # Favoured tokens
    sequence_bias: Any = setting(
        None,
        "added to the score of a token that would complete a sequence: {(ids): value}",
        expects="a dictionary from tuples of token ids to numbers, or a list of [ids, number]",
        rule=lambda sequence_bias: constraints.sequence_bias(sequence_biases(sequence_bias)),
        token_ids=lambda biases: chain.from_iterable(sequence_biases(biases)),
    )
    logit_bias: Mapping[Any, float] | Sequence[Sequence[Any]] | None = setting(
        None,
        "added to a token's score: {id or its text: value}, or a list of pairs",
        expects="a dictionary from token ids, or texts of one token, to numbers, or a list of pairs",
        rule=constraints.logit_bias,
        token_ids=iter,
    )

    # Against repetition
    repetition_penalty: float = setting(
        1.0, "above 1: what was said, prompt included, becomes less likely", above=0, rule=penalties.repetition
    )
    presence_penalty: float = setting(
        0.0, "taken off the score of every token that was chosen before", rule=penalties.presence
    )
    frequency_penalty: float = setting(
        0.0, "taken off the score of a token for each time that it was chosen", rule=penalties.frequency
    )
    dry_multiplier: float = setting(
        0.0,
        "DRY: how much a token loses that would go on repeating a passage; 0.8 is usual",
        least=0,
        title="DRY",
        example=0.8,
        rule=penalties.dry,
    )
    dry_base: float = setting(1.75, "DRY: how fast the loss grows with the passage", least=1, needs="dry_multiplier")
    dry_allowed_length: int = setting(2, "DRY: passages up to this length are free", least=1, needs="dry_multiplier")
    dry_range: int = setting(0, "DRY: look at this many last tokens; 0: all", least=0, needs="dry_multiplier")
    dry_sequence_breakers: Sequence[str] | None = setting(
        None, "DRY: texts that end a passage; by default line ends, colons, quotes and stars", needs="dry_multiplier"
    )
    no_repeat_ngram_size: int = setting(
        0, "no sequence of this many tokens comes twice", least=0, rule=penalties.no_repeat_ngram
    )

    # What may not come
    bad_words_ids: Sequence[Sequence[int]] | None = setting(
        None,
        "sequences of ids that may not appear",
        expects="a list of lists of token ids",
        rule=lambda bad_words_ids, eos: constraints.bad_words(bad_words_ids, eos),
        token_ids=chain.from_iterable,
    )
    bad_words: Sequence[str] | None = setting(None, "words that may not appear", rule=constraints.bad_words)
    min_length: int = setting(0, "no end before this many tokens, prompt included", least=0, rule=constraints.min_length)
    min_new_tokens: int | None = setting(
        None, "no end before this many new tokens", least=0, neutral=0, rule=constraints.min_new_tokens
    )

    # Which texts are allowed
    json_schema: Any = setting(None, "only JSON that this schema allows; true: any JSON", empty_counts=True, rule=by_grammar)
    regex: str | None = setting(None, "only texts that match this as a whole", rule=by_grammar)
    choices: Sequence[str] | None = setting(None, "only one of these texts", empty_counts=True, rule=by_grammar)
    grammar: str | None = setting(None, "only texts of this Lark grammar", rule=by_grammar)

    # Which tokens are allowed
    prefix_allowed_tokens_fn: Callable[..., Any] | None = setting(
        None,
        "a function of the prompt's index in the batch and the ids so far, as a tensor, that lists the ids that may follow",
        expects="a function",
        per_call=True,
        rule=custom.from_allowed_tokens,
    )
    allowed_tokens: Sequence[int] | None = setting(
        None, "only these ids", expects=TOKEN_IDS, empty_counts=True, rule=constraints.allowed, token_ids=iter
    )
    forced_bos_token_id: int | None = setting(
        None,
        "the first token after a target's start, whatever its score",
        least=0,
        rule=constraints.forced_first,
        token_ids=lambda token: (token,),
    )
    forced_eos_token_id: int | Sequence[int] | None = setting(
        None,
        "the last token, when the text reaches its limit",
        expects=A_TOKEN_ID,
        rule=lambda forced_eos_token_id: constraints.forced_last(as_ids(forced_eos_token_id)),
        token_ids=lambda tokens: as_ids(tokens),
    )
    exponential_decay_length_penalty: Sequence[float] | None = setting(
        None,
        "(start, factor): after this many new tokens the score of the end grows by this factor with each token",
        expects="a pair of a number of tokens and a factor above 0",
        rule=lambda exponential_decay_length_penalty, eos: penalties.growing_end(
            *decay(exponential_decay_length_penalty), eos
        ),
    )
    suppress_tokens: Sequence[int] | None = setting(
        None, "none of these ids", expects=TOKEN_IDS, rule=constraints.suppressed, token_ids=listed
    )
    begin_suppress_tokens: Sequence[int] | None = setting(
        None,
        "none of these ids as the first",
        expects=TOKEN_IDS,
        rule=lambda begin_suppress_tokens, forced_bos_token_id: constraints.suppressed_first(
            begin_suppress_tokens, forced_bos_token_id is not None
        ),
        token_ids=listed,
    )
    forced_tokens: Mapping[Any, Any] | Sequence[Sequence[Any]] | None = setting(
        None,
        "this token at this step, whatever its score: {step: id or its text}, or a list of pairs",
        expects="a dictionary from steps, 0 the first, to token ids or texts of one token, or a list of pairs",
        rule=constraints.forced,
        token_ids=lambda steps: steps.values(),
    )

    # Your own rules, and the order of all
    logits_processor: Functions | None = setting(
        None,
        "functions of (input_ids, scores), as tensors, before those that draw",
        expects="a list of functions",
        per_call=True,
        rule=lambda logits_processor: [
            NamedRule(custom.name_of(function), custom.from_logits_processor(function)) for function in logits_processor
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
        1.0, "below 1 sharpens, above 1 flattens", above=0, needs="do_sample", rule=sampling.temperature
    )
    top_k: int | None = cut(
        50,
        "draw from this many of the best; 0: all",
        least=0,
        neutral=0,
        or_needs="penalty_alpha",
        rule=lambda top_k, min_keep, do_sample: sampling.top_k(top_k, min_keep) if do_sample else [],
    )
    top_p: float | None = cut(
        1.0, "draw from the best that together have this probability", above=0, most=1, rule=sampling.top_p
    )
    min_p: float | None = cut(
        None,
        "draw from those at least this likely, as a share of the best",
        least=0,
        most=1,
        neutral=0.0,
        rule=sampling.min_p,
    )
    typical_p: float = cut(
        1.0, "draw from the most typical that together have this probability", above=0, most=1, rule=sampling.typical_p
    )
    epsilon_cutoff: float = cut(0.0, "draw from those at least this likely", least=0, below=1, rule=sampling.epsilon_cutoff)
    eta_cutoff: float = cut(
        0.0,
        "draw from those at least this likely, with a limit that sinks where the model is unsure",
        least=0,
        below=1,
        rule=sampling.eta_cutoff,
    )
    top_n_sigma: float | None = cut(
        None, "draw from scores within this many standard deviations of the best", above=0, rule=sampling.top_n_sigma
    )
    xtc_probability: float = cut(
        0.0, "XTC: how often the top choices are left out", least=0, most=1, title="XTC", example=0.5, rule=sampling.xtc
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
        rule=sampling.mirostat,
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
    output_scores: bool = output("with it, each step's scores after the rules")
    output_logits: bool = output("with it, each step's scores before them")
    output_hidden_states: bool = output("with it, every layer's states in each step")
    output_attentions: bool = output("with it, every layer's attention weights in each step")
    logprobs: int | None = setting(None, "log-probabilities of the chosen token and of this many of the best", least=0)
    prompt_logprobs: int | None = setting(None, "log-probabilities of the prompt's tokens", least=0)

    # The model's own
    bos_token_id: int | None = setting(None, "what a text begins with")
    pad_token_id: int | None = setting(None, "what fills up rows that ended early")
    decoder_start_token_id: int | None = setting(None, "what an encoder-decoder's target begins with", least=0)
    global_tokens: Sequence[int] | None = setting(
        None,
        "LED: the places of the source's tokens that all others see and that see all; unset, the first, but in a class of "
        "transformers' name none; []: none",
        least=0,
        empty_counts=True,
        expects="a list of whole numbers, counted from 0",
    )

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


HINTS = get_type_hints(SettingsTable)
SETTINGS: Mapping[str, SettingInfo] = {
    field.name: field.metadata["info"]._replace(hint=HINTS[field.name]) for field in fields(SettingsTable)
}
RULES = tuple(name for name, info in SETTINGS.items() if info.rule is not None)  # in the order in which they run
SAMPLING_RULES = tuple(name for name in RULES if SETTINGS[name].needs == "do_sample")
GRAMMARS = tuple(name for name in RULES if SETTINGS[name].rule is by_grammar)


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
