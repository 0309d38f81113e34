"""Generation settings: what `generation_config.json` holds, what a call may override, and what is not allowed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from glassformer.errors import InputError, SettingError, UnknownArgument, nearest

NEW_TOKENS = 256  # when nobody says how many
SAMPLING = ("temperature", "top_k", "top_p")
ELSEWHERE: Mapping[str, Any] = {  # what the field also knows, and the value that changes nothing
    **dict.fromkeys((
        "assistant_model", "bad_words_ids", "force_words_ids", "guidance_scale", "logits_processor", "min_new_tokens",
        "min_p", "penalty_alpha", "prompt_lookup_num_tokens", "stop_strings", "stopping_criteria", "suppress_tokens",
    )),
    "diversity_penalty": 0.0, "early_stopping": False, "length_penalty": 1.0, "min_length": 0, "no_repeat_ngram_size": 0,
    "num_beam_groups": 1, "num_beams": 1, "num_return_sequences": 1, "output_attentions": False,
    "output_hidden_states": False, "output_logits": False, "output_scores": False, "repetition_penalty": 1.0,
    "return_dict_in_generate": False, "typical_p": 1.0,
}  # fmt: skip
NEUTRAL = {**ELSEWHERE, "use_cache": True}  # what may be said though it changes nothing


@dataclass(slots=True)
class GenerationConfig:
    """How tokens are chosen and when to stop. A model's own is at `model.generation_config`; change it freely."""

    max_new_tokens: int | None = None  # at most so many; 256 when neither this nor max_length is set
    max_length: int | None = None  # prompt included
    do_sample: bool = False  # draw from the probabilities; otherwise take the best
    temperature: float = 1.0  # below 1 sharpens, above 1 flattens
    top_k: int | None = 50  # draw from the best so many
    top_p: float | None = 1.0  # draw from the best that together have this probability
    eos_token_id: int | list[int] | None = None  # what ends the text
    bos_token_id: int | None = None
    pad_token_id: int | None = None
    decoder_start_token_id: int | None = None  # what an encoder-decoder's target begins with
    forced_bos_token_id: int | None = None  # the first token, whatever its score
    forced_eos_token_id: int | list[int] | None = None  # the last token, when the text reaches its limit
    seed: int | None = None  # the same seed gives the same draws
    extra: dict[str, Any] = field(default_factory=dict, repr=False)  # keys of the file that mean nothing here

    @classmethod
    def read(cls, raw: Mapping[str, Any], where: str = "generation_config.json: ") -> Self:
        """From `generation_config.json`."""
        known = cls.names()
        found = cls(
            **{name: value for name, value in raw.items() if name in known and value is not None},
            extra={name: value for name, value in raw.items() if name not in known},
        )
        found.check(where)
        return found

    @classmethod
    def implied(cls, config: Any) -> Self:
        """What a model's config says of generation, as older checkpoints have no file for it."""
        said = {**config.stray, **{name: getattr(config, name) for name in cls.names() if hasattr(config, name)}}
        known = {name: value for name, value in said.items() if name in cls.names() or name in ELSEWHERE}
        return cls.read(known, "config.json: ")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(f.name for f in dataclasses.fields(cls) if f.name != "extra")

    @property
    def unheard(self) -> dict[str, Any]:
        """Settings of the file that would change the text, and are not supported yet."""
        asked = {name: value for name, value in self.extra.items() if name in ELSEWHERE and value is not None}
        return {name: value for name, value in asked.items() if value != ELSEWHERE[name]}

    def merged(self, changes: Mapping[str, Any]) -> Self:
        """A copy with a call's own settings on top, checked."""
        changes = {name: value for name, value in changes.items() if name not in NEUTRAL or value != NEUTRAL[name]}
        for name in changes:
            if name in ELSEWHERE:
                raise SettingError(f"the setting {name!r} is not supported yet. Settings: {', '.join(self.names())}.")
            if name not in self.names():
                known = ", ".join(self.names())
                raise UnknownArgument(f"there is no setting {name!r}.{nearest(name, self.names())} Settings: {known}.")
        found = dataclasses.replace(self, **changes)
        if not found.do_sample:
            for name in SAMPLING:
                if changes.get(name) is not None:
                    raise SettingError(f"{name}={changes[name]!r} has no effect without sampling. Pass do_sample=True too.")
        if changes.get("max_length") is not None and "max_new_tokens" not in changes:
            found.max_new_tokens = None
        found.check()
        return found

    def check(self, where: str = "") -> None:
        """Refuse values that mean nothing."""
        if not isinstance(self.do_sample, bool):
            raise SettingError(f"{where}do_sample is {self.do_sample!r}; it must be true or false.")
        self._whole(where, "max_new_tokens", 1)
        self._whole(where, "max_length", 1)
        self._whole(where, "top_k", 0)
        self._whole(where, "seed", 0)
        for name in ("decoder_start_token_id", "forced_bos_token_id"):
            self._whole(where, name, 0)
        for name in ("eos_token_id", "forced_eos_token_id"):
            ends = getattr(self, name)
            for token in ends if isinstance(ends, (list, tuple)) else [ends]:
                if token is not None and (isinstance(token, bool) or not isinstance(token, int)):
                    raise SettingError(f"{where}{name} is {ends!r}; it must be a token id, or a list of them.")
        if not _number(self.temperature) or self.temperature <= 0:
            raise SettingError(
                f"{where}temperature is {self.temperature!r}; it must be above 0. "
                "For the best token each time, do_sample=False."
            )
        if self.top_p is not None and (not _number(self.top_p) or not 0 < self.top_p <= 1):
            raise SettingError(f"{where}top_p is {self.top_p!r}; it must be above 0 and at most 1.")

    def _whole(self, where: str, name: str, least: int) -> None:
        value = getattr(self, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise SettingError(f"{where}{name} is {value!r}; it must be a whole number of at least {least}.")

    @property
    def eos(self) -> frozenset[int]:
        """All ids that end the text."""
        ends = self.eos_token_id
        return frozenset() if ends is None else frozenset([ends] if isinstance(ends, int) else ends)

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
        """As `generation_config.json` holds it."""
        named = {name: getattr(self, name) for name in self.names() if name != "seed"}
        return {**self.extra, **{name: value for name, value in named.items() if value is not None}}


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
