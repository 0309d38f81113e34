"""Generation settings: what `generation_config.json` holds, what a call may override, and where each value came from.

The settings themselves are in `settings_table.py`. Those that contradict each other, or that would have no effect, are an
error that says what to do, not a warning; but only what a call passes can lack an effect: a model's file may hold a
temperature though it does not sample.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Self

from glassformer.decoding.settings_table import GRAMMARS, NEW_TOKENS, SETTINGS, SettingInfo, SettingsTable, as_ids
from glassformer.ground.errors import ContextExceeded, SettingError, UnknownArgument, did_you_mean, spell
from glassformer.ground.files import write_text_in
from glassformer.ground.typecheck import as_python_number, brief

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
            kept = next((name for name in pair if name not in changes), None)
            off = f"{spell(kept, SETTINGS[kept].neutral)} switches the model's own off" if kept else "Leave out one of them"
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


THIS_CALL = "this call"  # where a value can come from, beside a file
DEFAULT = "default"
SET_BY_HAND = "set by hand"
LOAD_ARGUMENTS = (  # settings of a model, not of a text
    "executor", "dtype", "weights", "cache", "activations", "adapter", "adapter_mode",
)  # fmt: skip
UNSUPPORTED: Mapping[str, Any] = {  # other libraries' settings that are not here, and the value that changes nothing
    **dict.fromkeys((
        "constraints", "dola_layers", "force_words_ids", "top_h", "watermarking_config",
    )),
    "diversity_penalty": 0.0, "encoder_no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1.0, "num_beam_groups": 1,
    "remove_invalid_values": False, "renormalize_logits": False, "synced_gpus": False, "token_healing": False,
}  # fmt: skip
HARMLESS: Mapping[str, str] = {  # other libraries' settings that change no text, and why
    **dict.fromkeys(
        (
            "use_cache", "cache_implementation", "cache_config", "max_cache_len", "return_legacy_cache", "low_memory",
            "prefill_chunk_size", "compile_config", "disable_compile", "continuous_batching_config",
        ),
        "memory and speed alone",
    ),
    **dict.fromkeys(
        (
            "is_assistant", "num_assistant_tokens_schedule", "assistant_confidence_threshold", "assistant_early_exit",
            "assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight", "speculation_type", "use_mtp",
        ),
        "how a draft is made; the text stays the same",
    ),
    **dict.fromkeys(("_from_model_config", "transformers_version"), "about the file"),
}  # fmt: skip
ALIASES = {  # other libraries' names for what is here
    "stop": "stop_strings", "n": "num_return_sequences", "max_tokens": "max_new_tokens", "num_predict": "max_new_tokens",
    "n_predict": "max_new_tokens", "repeat_penalty": "repetition_penalty", "guided_json": "json_schema",
    "response_format": "json_schema", "guided_regex": "regex", "guided_choice": "choices", "guided_grammar": "grammar",
    "typical": "typical_p", "beam_width": "num_beams", "best_of": "num_beams", "top_logprobs": "logprobs",
    "ignore_eos": "eos_token_id", "negative_prompt_attention_mask": "negative_prompt_ids",
}  # fmt: skip
SPECIAL_TOKENS = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "decoder_start_token_id",
)  # that every model has of its own
GREEDY: dict[str, Any] = {"temperature": 1.0, "do_sample": False}  # what a temperature of 0 means
FORWARD_OUTPUTS = ("output_attentions", "output_hidden_states")  # in a model's config: of every call, not of generation
LOGPROB_SETTINGS = ("logprobs", "prompt_logprobs")  # that have no place in a text
GENERATE_ONLY = (  # that only generate can honour
    "return_dict_in_generate", "output_scores", "output_logits", "output_hidden_states", "output_attentions",
)  # fmt: skip
open_by_name: list[Callable[..., GenerationConfig]] = []  # one, from `opened`, which can find checkpoints


@dataclass(slots=True, repr=False)
class GenerationConfig(SettingsTable):
    """How tokens are chosen and when to stop. A model's own is at `model.generation_config`; change it freely."""

    def __new__(cls, **settings: Any) -> Self:
        for name in settings.keys() - SETTINGS.keys() - {"extra", "origins"}:
            raise UnknownArgument(f"there is no setting {name!r}.{did_you_mean(name, SETTINGS)}")
        return object.__new__(cls)

    extra: dict[str, Any] = field(default_factory=dict)  # keys of the file that mean nothing here
    origins: dict[str, tuple[str, Any]] = field(
        default_factory=dict, compare=False
    )  # where a value came from, and the value

    def __post_init__(self) -> None:
        """NumPy's numbers as Python's, None as the default where there is no other meaning; an array is refused at once."""
        for name in SETTINGS:
            value = getattr(self, name)
            if value is None:
                setattr(self, name, SETTINGS[name].default)  # which changes nothing
            elif getattr(value, "ndim", None) is not None:
                plain = _as_python(value)
                setattr(self, name, plain)
                if getattr(plain, "ndim", 0) and SETTINGS[name].hint is not Any:
                    raise SettingError(f"{spell(name)} is {brief(value)}; it must be {SETTINGS[name].expected(value)}.")

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], where: str = "generation_config.json") -> Self:
        """From `generation_config.json`. What has no effect there may be out of bounds."""
        values = {name: value for name, value in raw.items() if name in SETTINGS and value is not None}
        if _is_zero(values.get("temperature")):
            values |= GREEDY
        if values.get("top_k") == -1:  # and off
            values["top_k"] = 0
        if not values.get("do_sample"):
            idle = [name for name in values if SETTINGS[name].needs == "do_sample" and not SETTINGS[name].fits(values[name])]
            values = {name: value for name, value in values.items() if name not in idle}
        extra = {name: value for name, value in raw.items() if name not in SETTINGS}
        config = cls(**values, extra=extra)
        config.origins = {name: (where, value) for name, value in values.items()}
        config.check(f"{where}: ")
        return config

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike[str], **settings: Any) -> Self:
        """The settings of a model, by its path, its catalogue name or its hub id; keywords change some."""
        return cls.of(open_by_name[0](name)).merged(settings)

    @classmethod
    def of(cls, config: Any) -> Self:
        """Settings of any kind: these, or another library's, by what its `to_dict` says."""
        if isinstance(config, cls):
            return config
        if not callable(getattr(config, "to_dict", None)):
            raise SettingError(f"generation_config is {type(config).__name__}; it must be a GenerationConfig.")
        values = {name: value for name, value in config.to_dict().items() if value is not None}
        return cls.from_dict(values, "generation_config")

    @classmethod
    def from_model_config(cls, config: Any, where: str = "config.json") -> Self:
        """What a model's config says of generation, as older checkpoints have no file for it."""
        raw = {**config.extra_fields, **{name: getattr(config, name) for name in cls.names() if hasattr(config, name)}}
        values = {name: value for name, value in raw.items() if name in SETTINGS or name in UNSUPPORTED}
        values = {name: value for name, value in values.items() if name not in FORWARD_OUTPUTS}
        return cls.from_dict(values, where)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(SETTINGS)

    @property
    def unsupported(self) -> dict[str, Any]:
        """Settings of the file that would change the text, and are not supported yet."""
        values = {name: value for name, value in self.extra.items() if name in UNSUPPORTED and value is not None}
        return {name: value for name, value in values.items() if value != UNSUPPORTED[name]}

    def fill_from(self, other: GenerationConfig, names: Sequence[str]) -> None:
        """Take these settings from another where this one has none."""
        for name in names:
            if getattr(self, name) is None and (value := getattr(other, name)) is not None:
                setattr(self, name, value)
                self.origins[name] = other.origins.get(name, (DEFAULT, value))

    _from_model_config = False  # this and the next two are what `Seq2SeqTrainer` needs to know how far to pad texts

    def _get_default_generation_params(self) -> dict[str, Any]:
        return {"max_length": 20}

    def update(self, defaults_only: bool = False, **settings: Any) -> dict[str, Any]:
        """Change several settings, or fill in those that are not set; gives those that there are not."""
        for name in settings.keys() & SETTINGS.keys():
            if not defaults_only or getattr(self, name) is None:
                setattr(self, name, settings[name])
        return {name: value for name, value in settings.items() if name not in SETTINGS}

    def merged(self, changes: Mapping[str, Any]) -> Self:
        """A copy with a call's own settings on top, checked; `generation_config` among them takes this one's place, but
        for the ids that every model has of its own."""
        changes = dict(changes)
        if (replacement := changes.pop("generation_config", None)) is not None:
            config = self.of(replacement).merged(changes)
            config.fill_from(self, SPECIAL_TOKENS)
            return config
        changes = {name: _as_python(value) for name, value in changes.items() if not _is_ignored(name, value)}
        for name in changes:
            if name in UNSUPPORTED:
                raise SettingError(f"the setting {name!r} is not supported. Leave it out.")
            if name not in SETTINGS:
                near = f" Here it is {spell(ALIASES[name])!r}." if name in ALIASES else did_you_mean(name, SETTINGS)
                if name in LOAD_ARGUMENTS:
                    spelling = spell(name)
                    near = f" A model is loaded with it: {f'load(…, {name}=…)' if spelling == name else spelling}."
                near = near or f" Settings: {', '.join(self.names())}."
                raise UnknownArgument(f"there is no setting {name!r}.{near}")
        changes = {name: SETTINGS[name].default if value is None else value for name, value in changes.items()}
        if _is_zero(changes.get("temperature", self.temperature)):  # the settings of a draw have no effect then
            changes = {name: value for name, value in changes.items() if SETTINGS[name].needs != "do_sample"} | GREEDY
        config = dataclasses.replace(self, **changes)
        config.origins = {**self.origins, **{name: (THIS_CALL, value) for name, value in changes.items()}}
        if changes.get("max_length") is not None and changes.get("max_new_tokens") is None:
            config.max_new_tokens = None
        config.check()
        refuse_contradictions(config, changes)
        return config

    # What is in force -------------------------------------------------------------------------------------------

    @staticmethod
    def info(name: str) -> SettingInfo:
        """What the table says of a setting."""
        return SETTINGS[name]

    def origin(self, name: str) -> str:
        """Where a setting's value came from: this call, a file, the default, or somebody who set it by hand."""
        value = getattr(self, name)
        where, original = self.origins.get(name, (DEFAULT, SETTINGS[name].default))
        return where if original is value or original == value else SET_BY_HAND

    @property
    def in_force(self) -> dict[str, tuple[Any, str]]:
        """Each setting that has an effect: its value, and where it came from."""
        values = {name: (getattr(self, name), self.origin(name)) for name in SETTINGS if self.is_active(name)}
        if "max_new_tokens" not in values and self.default_new_tokens is not None:
            values = {"max_new_tokens": (NEW_TOKENS, DEFAULT), **values}
        return values

    @property
    def default_new_tokens(self) -> int | None:
        """How many tokens a text has at most where a call does not say so; None: `max_length` says it."""
        return NEW_TOKENS if self.max_new_tokens is None and self.max_length is None else self.max_new_tokens

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in SETTINGS if self.is_set(name))
        return f"GenerationConfig({values})"

    def __str__(self) -> str:
        """One line for each setting in force: name, value, origin."""
        rows = [(name, repr(value), where) for name, (value, where) in self.in_force.items()]
        name, value = (max(len(row[n]) for row in rows) for n in (0, 1))
        return "\n".join(f"{row[0]:<{name}}  {row[1]:<{value}}  {row[2]}" for row in rows)

    # What is not allowed ----------------------------------------------------------------------------------------

    def check(self, where: str = "") -> None:
        """Refuse values of the wrong type, or out of bounds."""
        for name, info in SETTINGS.items():
            value = getattr(self, name)
            if value is not None and info.hint is not Any and not info.fits(value):
                subject = f"{where}{name}" if where else spell(name)
                raise SettingError(f"{subject} is {brief(value)}; it must be {info.expected(value)}.")
        if self.mirostat == 1:
            raise SettingError(f"{where}mirostat is 1; only version 2 is here: {spell('mirostat', 2)}.")

    # What follows from them -------------------------------------------------------------------------------------

    @property
    def strategy(self) -> str:
        """How tokens are chosen, in a word or two."""
        how = "sampled" if self.do_sample else "greedy"
        if self.num_beams > 1:
            how = f"{self.num_beams} beams" + (", sampled" if self.do_sample else "")
        if self.is_active("penalty_alpha"):
            how = "contrastive"
        also = {"assistant_model": "assisted", "prompt_lookup_num_tokens": "prompt lookup", "guidance_scale": "guided"}
        also |= {name: name.replace("_", " ") for name in GRAMMARS}
        return ", ".join([how, *(word for name, word in also.items() if self.is_active(name))])

    def draw_seed(self, source: Callable[[], int] = lambda: secrets.randbits(32), where: str = "drawn") -> None:
        """Where texts are drawn without a seed, draw one and remember that."""
        if self.do_sample and self.seed is None:
            self.seed = source()
            self.origins = {**self.origins, "seed": (where, self.seed)}

    def room(self, prompt: int, context: int) -> int:
        """How many tokens may follow a prompt of this length."""
        if prompt >= context:
            raise ContextExceeded(
                f"a prompt of {prompt} tokens leaves no room in the model's context of {context}. Shorten it."
            )
        if self.max_new_tokens is not None:
            room = self.max_new_tokens
        elif self.max_length is not None:
            room = self.max_length - prompt
        else:
            room = NEW_TOKENS
        if room < 1:
            raise SettingError(
                f"{spell('max_length', self.max_length)} leaves no room after a prompt of {prompt} tokens. "
                f"Use {spell('max_new_tokens')}."
            )
        return min(room, context - prompt)

    def to_dict(self) -> dict[str, Any]:
        """As `generation_config.json` holds it: what the file held, and what is not the default."""
        values = {name: getattr(self, name) for name, info in SETTINGS.items() if not info.per_call and name != "seed"}
        changed = {name: value for name, value in values.items() if name in self.origins or value != SETTINGS[name].default}
        return {**self.extra, **{name: value for name, value in changed.items() if value is not None}}

    to_diff_dict = to_dict  # its familiar name, under which pipelines ask

    def to_json_string(self) -> str:
        """As the text of `generation_config.json`."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True, default=repr) + "\n"

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write `generation_config.json` into a folder, which is made if need be."""
        write_text_in(Path(folder), "generation_config.json", self.to_json_string())


def empty_prompt_token(settings: GenerationConfig) -> int:
    """The token that stands for no prompt at all."""
    tokens = (*as_ids(settings.bos_token_id), *as_ids(settings.eos_token_id))
    if not tokens:
        raise SettingError("negative_prompt is empty, and the model has no token that begins a text. Leave it out.")
    return tokens[0]


def json_value(value: Any) -> Any:
    """A setting's value as JSON can hold it; its repr, where it cannot."""
    try:
        json.dumps(value)
    except TypeError:
        return repr(value)
    return value


def as_texts(texts: str | Sequence[str] | None) -> list[str]:
    """None, one text or many, as many."""
    return [] if texts is None else [texts] if isinstance(texts, str) else list(texts)


def _as_python(value: Any) -> Any:
    """A number of numpy's or torch's as Python's, in lists too."""
    value = as_python_number(value)
    return value.item() if getattr(value, "ndim", None) == 0 and callable(getattr(value, "item", None)) else value


def _is_ignored(name: str, value: Any) -> bool:
    """Whether a setting may be passed though it does nothing here."""
    return name in HARMLESS or (name in UNSUPPORTED and value == UNSUPPORTED[name])


def _is_zero(value: Any) -> bool:
    """Whether a setting is the number 0; what is no number is refused elsewhere."""
    return not getattr(value, "ndim", 0) and bool(value == 0)
