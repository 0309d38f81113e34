"""Generation settings: what `generation_config.json` holds, what a call may override, and what is not allowed.

Each setting is one line: its name, its kind, its default, what it does, and within which bounds. Checks, messages, the
table in the documentation and the order of rules all read these lines.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self, get_type_hints

from glassformer.decoding.about import About, setting
from glassformer.decoding.contradictions import CUTTING, GRAMMARS, refuse_contradictions
from glassformer.errors import InputError, SettingError, UnknownArgument, nearest

NEW_TOKENS = 256  # when nobody says how many
CALL = "this call"  # where a setting can come from, beside a file
DEFAULT = "default"
HAND = "set by hand"
BREAKERS = ("\n", ":", '"', "*")  # what DRY does not match across, unless told otherwise
LOADED = ("executor", "dtype", "weights", "cache", "activations")  # said when a model is loaded
ELSEWHERE: Mapping[str, Any] = {  # what the field also knows, and the value that changes nothing
    **dict.fromkeys((
        "constraints", "dola_layers", "exponential_decay_length_penalty", "force_words_ids", "penalty_alpha",
        "prefix_allowed_tokens_fn", "top_h", "watermarking_config",
    )),
    "diversity_penalty": 0.0, "encoder_no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1.0, "num_beam_groups": 1,
    "output_attentions": False, "output_hidden_states": False, "remove_invalid_values": False, "renormalize_logits": False,
    "cache_implementation": None, "past_key_values": None, "synced_gpus": False,
}  # fmt: skip
ALIASES = {  # how others call it
    "stop": "stop_strings", "n": "num_return_sequences", "max_tokens": "max_new_tokens", "num_predict": "max_new_tokens",
    "n_predict": "max_new_tokens", "repeat_penalty": "repetition_penalty", "guided_json": "json_schema",
    "response_format": "json_schema", "guided_regex": "regex", "guided_choice": "choices", "guided_grammar": "grammar",
    "typical": "typical_p", "beam_width": "num_beams", "best_of": "num_beams", "top_logprobs": "logprobs",
    "ignore_eos": "eos_token_id", "negative_prompt_attention_mask": "negative_prompt_ids",
}  # fmt: skip
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")  # that every model has of its own
LIKELIHOODS = ("logprobs", "prompt_logprobs")  # that have no place in a text
GENERATE_ONLY = ("return_dict_in_generate", "output_scores", "output_logits")  # that only generate can honour
IDS = "a token id, or a list of them"
CALLED = Sequence[Callable[..., Any]]


@dataclass(slots=True, repr=False)
class GenerationConfig:
    """How tokens are chosen and when to stop. A model's own is at `model.generation_config`; change it freely."""

    def __new__(cls, **given: Any) -> Self:
        for name in given.keys() - abouts().keys() - {"extra", "origins"}:
            raise UnknownArgument(f"there is no setting {name!r}.{nearest(name, abouts())}")
        return object.__new__(cls)

    # How long
    max_new_tokens: int | None = setting(
        None, "at most so many tokens; 256 when neither this nor max_length is set", least=1
    )
    max_length: int | None = setting(None, "the same, prompt included", least=1)
    min_new_tokens: int | None = setting(None, "no end before so many tokens", least=0, neutral=0)
    min_length: int = setting(0, "the same, prompt included", least=0)
    max_time: float | None = setting(None, "no new token after so many seconds", above=0)
    stop_strings: str | Sequence[str] | None = setting(
        None, "end when the text holds one of these", words="a text or a list of texts"
    )
    eos_token_id: int | Sequence[int] | None = setting(None, "what ends the text: an id, or several", words=IDS)
    stopping_criteria: CALLED | None = setting(
        None,
        "functions of (input_ids, scores), as tensors, that say when to stop",
        words="a list of functions",
        passing=True,
    )
    stop_when: Callable[..., Any] | None = setting(
        None, "a function of the ids so far, as numpy, that says when to stop", words="a function", passing=True
    )
    cancel: Any = setting(None, "a threading.Event that ends the text when it is set", passing=True)

    # Which strategy
    do_sample: bool = setting(False, "draw from the probabilities; otherwise take the best")
    seed: int | None = setting(
        None, "the same seed gives the same draws", least=0, below=2**64, words="a whole number from 0 to 2**64 - 1"
    )
    num_beams: int = setting(1, "follow so many texts at once and take the best as a whole", least=1)
    num_return_sequences: int = setting(1, "how many texts for each prompt", least=1)
    length_penalty: float = setting(1.0, "beams: above 0 favours long texts, below 0 short ones", needs="num_beams")
    early_stopping: bool | str = setting(
        False,
        "beams: stop when num_beams texts are complete; 'never': when none can become better",
        needs="num_beams",
        words="true, false or 'never'",
    )
    guidance_scale: float | None = setting(None, "away from what the negative prompt would give: above 1", neutral=1.0)
    negative_prompt: str | None = setting(
        None, "guidance: the text to lead away from", needs="guidance_scale", empty=True, passing=True
    )
    negative_prompt_ids: Any = setting(
        None, "the same as ids; by default the prompt's last token", needs="guidance_scale", passing=True
    )
    assistant_model: Any = setting(None, "a smaller model that drafts; the text stays exactly the same", passing=True)
    num_assistant_tokens: int | None = setting(
        None, "how many tokens are drafted at first; then it adapts", least=1, needs="assistant_model"
    )
    prompt_lookup_num_tokens: int | None = setting(
        None, "draft so many tokens by looking for the last ones earlier on", least=1
    )
    max_matching_ngram_size: int | None = setting(
        None, "how many last tokens are looked for; 2 by default", least=1, needs="prompt_lookup_num_tokens"
    )

    # Which texts are allowed
    json_schema: Any = setting(None, "only JSON that this schema allows; true: any JSON", empty=True)
    regex: str | None = setting(None, "only texts that match this as a whole")
    choices: Sequence[str] | None = setting(None, "only one of these texts", empty=True)
    grammar: str | None = setting(None, "only texts of this Lark grammar")

    # Which tokens
    sequence_bias: Any = setting(
        None,
        "added to the score of a token that would complete a sequence: {(ids): value}",
        words="a dictionary from tuples of token ids to numbers, or a list of [ids, number]",
    )
    logit_bias: Mapping[Any, float] | Sequence[Sequence[Any]] | None = setting(
        None,
        "added to a token's score: {id or its text: value}, or a list of pairs",
        words="a dictionary from token ids, or texts of one token, to numbers, or a list of pairs",
    )
    bad_words_ids: Sequence[Sequence[int]] | None = setting(
        None, "sequences of ids that may not appear", words="a list of lists of token ids"
    )
    bad_words: Sequence[str] | None = setting(None, "words that may not appear")
    allowed_tokens: Sequence[int] | None = setting(None, "only these ids", words="a list of token ids", empty=True)
    suppress_tokens: Sequence[int] | None = setting(None, "none of these ids", words="a list of token ids")
    begin_suppress_tokens: Sequence[int] | None = setting(
        None, "none of these ids as the first", words="a list of token ids"
    )
    forced_bos_token_id: int | None = setting(None, "the first token after a target's start, whatever its score", least=0)
    forced_eos_token_id: int | Sequence[int] | None = setting(
        None, "the last token, when the text reaches its limit", words=IDS
    )
    forced_tokens: Mapping[Any, Any] | Sequence[Sequence[Any]] | None = setting(
        None,
        "this token at this step, whatever its score: {step: id or its text}, or a list of pairs",
        words="a dictionary from steps, 0 the first, to token ids or texts of one token, or a list of pairs",
    )

    # Against repetition
    repetition_penalty: float = setting(1.0, "above 1: what was said, prompt included, becomes less likely", above=0)
    presence_penalty: float = setting(0.0, "taken off the score of every token that was chosen before")
    frequency_penalty: float = setting(0.0, "the same, for each time that it was chosen")
    dry_multiplier: float = setting(
        0.0, "DRY: how much a token loses that would go on repeating a passage; 0.8 is usual", least=0
    )
    dry_base: float = setting(1.75, "DRY: how fast the loss grows with the passage", least=1, needs="dry_multiplier")
    dry_allowed_length: int = setting(2, "DRY: passages up to this length are free", least=1, needs="dry_multiplier")
    dry_range: int = setting(0, "DRY: look at so many last tokens; 0: all", least=0, needs="dry_multiplier")
    dry_sequence_breakers: Sequence[str] | None = setting(
        None, "DRY: texts that end a passage; by default line ends, colons, quotes and stars", needs="dry_multiplier"
    )
    no_repeat_ngram_size: int = setting(0, "no sequence of so many tokens comes twice", least=0)

    # How to draw
    temperature: float = setting(1.0, "below 1 sharpens, above 1 flattens", above=0, needs="do_sample")
    top_k: int | None = setting(50, "draw from the best so many; 0: all", least=0, neutral=0, needs="do_sample")
    top_p: float | None = setting(
        1.0, "draw from the best that together have this probability", above=0, most=1, needs="do_sample"
    )
    min_p: float | None = setting(
        None, "draw from those at least this likely, as a share of the best", least=0, most=1, neutral=0.0, needs="do_sample"
    )
    typical_p: float = setting(
        1.0, "draw from the most typical that together have this probability", above=0, most=1, needs="do_sample"
    )
    epsilon_cutoff: float = setting(0.0, "draw from those at least this likely", least=0, below=1, needs="do_sample")
    eta_cutoff: float = setting(
        0.0, "the same, with a limit that sinks where the model is unsure", least=0, below=1, needs="do_sample"
    )
    top_n_sigma: float | None = setting(
        None, "draw from scores within so many standard deviations of the best", above=0, needs="do_sample"
    )
    xtc_probability: float = setting(0.0, "XTC: how often the top choices are left out", least=0, most=1, needs="do_sample")
    xtc_threshold: float = setting(0.1, "XTC: what counts as a top choice", above=0, most=1, needs="xtc_probability")
    mirostat: int = setting(
        0,
        "2: hold the surprise of the text near mirostat_tau, in place of what cuts the list",
        least=0,
        most=2,
        needs="do_sample",
    )
    mirostat_tau: float = setting(5.0, "mirostat: the wanted surprise of a token, in bits", above=0, needs="mirostat")
    mirostat_eta: float = setting(0.1, "mirostat: how fast it corrects itself", above=0, needs="mirostat")

    # The rules themselves
    rules: Sequence[str | Callable[..., Any]] | None = setting(
        None,
        "the order of all rules in force, by name; among them functions of (ids, scores), as numpy",
        words="a list of rules' names and functions",
        passing=True,
    )
    logits_processor: CALLED | None = setting(
        None,
        "functions of (input_ids, scores), as tensors, before those that draw",
        words="a list of functions",
        passing=True,
    )

    # What comes back
    return_dict_in_generate: bool = setting(
        False, "generate gives an object with all there is, not the ids alone", passing=True
    )
    output_scores: bool = setting(
        False, "with it, each step's scores after the rules", needs="return_dict_in_generate", passing=True
    )
    output_logits: bool = setting(
        False, "with it, each step's scores before them", needs="return_dict_in_generate", passing=True
    )
    logprobs: int | None = setting(None, "log-probabilities of the chosen token and of the best so many", least=0)
    prompt_logprobs: int | None = setting(None, "the same for the prompt's tokens", least=0)

    # The model's own
    bos_token_id: int | None = setting(None, "what a text begins with")
    pad_token_id: int | None = setting(None, "what fills up rows that ended early")
    decoder_start_token_id: int | None = setting(None, "what an encoder-decoder's target begins with", least=0)

    extra: dict[str, Any] = field(default_factory=dict)  # keys of the file that mean nothing here
    origins: dict[str, tuple[str, Any]] = field(
        default_factory=dict, compare=False
    )  # where a value came from, and the value

    @classmethod
    def read(cls, raw: Mapping[str, Any], where: str = "generation_config.json") -> Self:
        """From `generation_config.json`. What has no effect there may be out of bounds."""
        known = {name: value for name, value in raw.items() if name in abouts() and value is not None}
        if known.get("temperature") == 0:  # how some files say greedy
            known |= {"temperature": 1.0, "do_sample": False}
        if known.get("top_k") == -1:  # and off
            known["top_k"] = 0
        if not known.get("do_sample"):
            idle = [name for name in known if abouts()[name].needs == "do_sample" and not _fits(name, known[name])]
            known = {name: value for name, value in known.items() if name not in idle}
        strange = {name: value for name, value in raw.items() if name not in abouts()}
        found = cls(**known, extra=strange)
        found.origins = {name: (where, value) for name, value in known.items()}
        found.check(f"{where}: ")
        return found

    @classmethod
    def of(cls, given: Any) -> Self:
        """Settings of any kind: these, or another library's, by what its `to_dict` says."""
        if isinstance(given, cls):
            return given
        if not callable(getattr(given, "to_dict", None)):
            raise SettingError(f"generation_config is {type(given).__name__}; it must be a GenerationConfig.")
        return cls.read({name: value for name, value in given.to_dict().items() if value is not None}, "generation_config")

    @classmethod
    def implied(cls, config: Any, where: str = "config.json") -> Self:
        """What a model's config says of generation, as older checkpoints have no file for it."""
        said = {**config.stray, **{name: getattr(config, name) for name in cls.names() if hasattr(config, name)}}
        known = {name: value for name, value in said.items() if name in abouts() or name in ELSEWHERE}
        return cls.read(known, where)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(abouts())

    @property
    def unheard(self) -> dict[str, Any]:
        """Settings of the file that would change the text, and are not supported yet."""
        asked = {name: value for name, value in self.extra.items() if name in ELSEWHERE and value is not None}
        return {name: value for name, value in asked.items() if value != ELSEWHERE[name]}

    def adopt(self, other: GenerationConfig, names: Sequence[str]) -> None:
        """Take over what another says of these settings, where this one says nothing."""
        for name in names:
            if getattr(self, name) is None and (value := getattr(other, name)) is not None:
                setattr(self, name, value)
                self.origins[name] = other.origins.get(name, (DEFAULT, value))

    def merged(self, changes: Mapping[str, Any]) -> Self:
        """A copy with a call's own settings on top, checked; `generation_config` among them takes this one's place, but
        for the ids that every model has of its own."""
        changes = dict(changes)
        if (given := changes.pop("generation_config", None)) is not None:
            found = self.of(given).merged(changes)
            found.adopt(self, SPECIAL)
            return found
        changes = {name: _plain(value) for name, value in changes.items() if not _idle(name, value)}
        for name in changes:
            if name in ELSEWHERE:
                raise SettingError(f"the setting {name!r} is not supported. Leave it out.")
            if name not in abouts():
                near = f" Here it is {ALIASES[name]!r}." if name in ALIASES else nearest(name, abouts())
                if name in LOADED:
                    near = f" A model is loaded with it: load(…, {name}=…)."
                near = near or f" Settings: {', '.join(self.names())}."
                raise UnknownArgument(f"there is no setting {name!r}.{near}")
        changes = {name: _off(name) if value is None else value for name, value in changes.items()}
        found = dataclasses.replace(self, **changes)
        found.origins = {**self.origins, **{name: (CALL, value) for name, value in changes.items()}}
        if changes.get("max_length") is not None and changes.get("max_new_tokens") is None:
            found.max_new_tokens = None
        found.check()
        refuse_contradictions(found, changes)
        return found

    # What is in force -------------------------------------------------------------------------------------------

    @staticmethod
    def about(name: str) -> About:
        """What is known of a setting."""
        return abouts()[name]

    def says(self, name: str) -> bool:
        """Whether a setting has a value that would change something; an empty list changes nothing, mostly."""
        value, about = getattr(self, name), abouts()[name]
        if value is None or value is False:
            return False
        if isinstance(value, (str, list, tuple, dict)) and not value:
            return about.empty
        return bool(value != about.neutral)

    def on(self, name: str) -> bool:
        """Whether a setting has an effect: it says something, and what it needs is in force too."""
        needs = abouts()[name].needs
        if name in CUTTING and self.mirostat and self.do_sample:
            return False
        return self.says(name) and (needs is None or self.on(needs))

    def origin(self, name: str) -> str:
        """Where a setting's value came from: this call, a file, the default, or somebody who set it by hand."""
        value = getattr(self, name)
        where, said = self.origins.get(name, (DEFAULT, getattr(type(self)(), name)))
        return where if said is value or said == value else HAND

    @property
    def in_force(self) -> dict[str, tuple[Any, str]]:
        """Each setting that has an effect: its value, and where it came from."""
        found = {name: (getattr(self, name), self.origin(name)) for name in abouts() if self.on(name)}
        if "max_new_tokens" not in found and "max_length" not in found:
            found = {"max_new_tokens": (NEW_TOKENS, DEFAULT), **found}
        return found

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={getattr(self, name)!r}" for name in abouts() if self.says(name))
        return f"GenerationConfig({said})"

    def __str__(self) -> str:
        """One line for each setting in force: name, value, origin."""
        rows = [(name, repr(value), where) for name, (value, where) in self.in_force.items()]
        name, value = (max(len(row[n]) for row in rows) for n in (0, 1))
        return "\n".join(f"{row[0]:<{name}}  {row[1]:<{value}}  {row[2]}" for row in rows)

    # What is not allowed ----------------------------------------------------------------------------------------

    def check(self, where: str = "") -> None:
        """Refuse values that mean nothing."""
        hints = _hints()
        for name, about in abouts().items():
            value = getattr(self, name)
            if value is None or hints[name] is Any:
                continue
            if not _fits(name, value):
                mend = " For the best token each time, do_sample=False." if name == "temperature" else ""
                raise SettingError(f"{where}{name} is {value!r}; it must be {about.expected(hints[name], value)}.{mend}")
        if self.mirostat == 1:
            raise SettingError(f"{where}mirostat is 1; only version 2 is here: mirostat=2.")

    # What follows from them -------------------------------------------------------------------------------------

    @property
    def eos(self) -> frozenset[int]:
        """All ids that end the text."""
        return frozenset(several(self.eos_token_id))

    @property
    def strategy(self) -> str:
        """How tokens are chosen, in a word or two."""
        how = "sampled" if self.do_sample else "greedy"
        if self.num_beams > 1:
            how = f"{self.num_beams} beams" + (", sampled" if self.do_sample else "")
        also = {"assistant_model": "assisted", "prompt_lookup_num_tokens": "prompt lookup", "guidance_scale": "guided"}
        also |= {name: name.replace("_", " ") for name in GRAMMARS}
        return ", ".join([how, *(word for name, word in also.items() if self.on(name))])

    def draw_seed(self, source: Callable[[], int] = lambda: secrets.randbits(32), where: str = "drawn") -> None:
        """Where texts are drawn and no seed was given, draw one and remember that."""
        if self.do_sample and self.seed is None:
            self.seed = source()
            self.origins = {**self.origins, "seed": (where, self.seed)}

    def room(self, prompt: int, context: int) -> int:
        """How many tokens may follow a prompt of this length."""
        if prompt >= context:
            raise InputError(f"a prompt of {prompt} tokens leaves no room in the model's context of {context}. Shorten it.")
        if self.max_new_tokens is not None:
            wanted = self.max_new_tokens
        elif self.max_length is not None:
            wanted = self.max_length - prompt
        else:
            wanted = NEW_TOKENS
        if wanted < 1:
            raise SettingError(
                f"max_length={self.max_length} leaves no room after a prompt of {prompt} tokens. Use max_new_tokens."
            )
        return min(wanted, context - prompt)

    def to_dict(self) -> dict[str, Any]:
        """As `generation_config.json` holds it: what a file held before, and what is not the default."""
        kept = {name: getattr(self, name) for name, about in abouts().items() if not about.passing and name != "seed"}
        default = GenerationConfig()
        said = {name: value for name, value in kept.items() if name in self.origins or value != getattr(default, name)}
        return {**self.extra, **{name: value for name, value in said.items() if value is not None}}


def empty_prompt(settings: GenerationConfig) -> int:
    """The token that stands for no prompt at all."""
    found = (*several(settings.bos_token_id), *several(settings.eos_token_id))
    if not found:
        raise SettingError("negative_prompt is empty, and the model has no token that begins a text. Leave it out.")
    return found[0]


def strings(given: str | Sequence[str] | None) -> list[str]:
    """None, one text or many, as many."""
    return [] if given is None else [given] if isinstance(given, str) else list(given)


def _fits(name: str, value: Any) -> bool:
    """Whether a setting can have a value."""
    if name == "early_stopping" and value not in (True, False, "never"):
        return False
    return abouts()[name].fits(value, _hints()[name])


def _off(name: str) -> Any:
    """What None says of a setting that is always a number or a truth: its default, which changes nothing."""
    default = next(one.default for one in dataclasses.fields(GenerationConfig) if one.name == name)
    return None if default is dataclasses.MISSING else default


def _plain(value: Any) -> Any:
    """A number of numpy's or torch's as Python's."""
    return value.item() if getattr(value, "ndim", None) == 0 and callable(getattr(value, "item", None)) else value


def _idle(name: str, value: Any) -> bool:
    """Whether something may be said though it changes nothing here; remembering keys and values changes no text."""
    return name == "use_cache" or (name in ELSEWHERE and value == ELSEWHERE[name])


def several(given: int | Sequence[int] | None) -> Sequence[int]:
    """None, one or many, as many."""
    return () if given is None else (given,) if isinstance(given, int) else given


@cache
def abouts() -> dict[str, About]:
    """Every setting, by name."""
    return {f.name: f.metadata["about"] for f in dataclasses.fields(GenerationConfig) if "about" in f.metadata}


@cache
def _hints() -> dict[str, Any]:
    return get_type_hints(GenerationConfig)
