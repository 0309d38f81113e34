"""Settings that contradict each other, or that were asked for in vain: an error with the mend, not a warning.

Only what a call asks for can be in vain; a model's file may hold a temperature though it does not sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from glassformer.errors import SettingError

if TYPE_CHECKING:
    from glassformer.decoding.settings import GenerationConfig

NEEDED = {  # a setting that others depend on: what it is, and how to ask for it
    "do_sample": ("sampling", "do_sample=True"),
    "num_beams": ("beams", "num_beams=4"),
    "dry_multiplier": ("DRY", "dry_multiplier=0.8"),
    "xtc_probability": ("XTC", "xtc_probability=0.5"),
    "mirostat": ("mirostat", "mirostat=2"),
    "guidance_scale": ("guidance", "guidance_scale=1.5"),
    "assistant_model": ("a model that drafts", "assistant_model=…"),
    "prompt_lookup_num_tokens": ("prompt lookup", "prompt_lookup_num_tokens=10"),
    "return_dict_in_generate": ("a place for them", "return_dict_in_generate=True"),
}
GRAMMARS = ("json_schema", "regex", "choices", "grammar")  # ways to say which texts are allowed
CUTTING = ("top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "top_n_sigma", "xtc_probability")
RIVALS = (  # two of these cannot both be in force
    ("assistant_model", "prompt_lookup_num_tokens"),
    ("assistant_model", "num_beams"),
    ("assistant_model", "guidance_scale"),
    ("prompt_lookup_num_tokens", "num_beams"),
    ("prompt_lookup_num_tokens", "guidance_scale"),
    ("num_beams", "guidance_scale"),
    ("num_beams", "mirostat"),
    ("negative_prompt", "negative_prompt_ids"),
    *((one, other) for at, one in enumerate(GRAMMARS) for other in GRAMMARS[at + 1 :]),
)


def refuse_contradictions(settings: GenerationConfig, given: Mapping[str, Any]) -> None:
    """Raise for the first contradiction; `given` is what the call itself said."""
    for problem in (*in_vain(settings, given), *lengths(settings, given), *rivals(settings, given), *counts(settings)):
        raise SettingError(problem)


def in_vain(settings: GenerationConfig, given: Mapping[str, Any]) -> Iterator[str]:
    for name, value in given.items():
        needs = settings.about(name).needs
        if needs is not None and settings.says(name) and not settings.on(needs):
            what, mend = NEEDED[needs]
            yield f"{name}={value!r} has no effect without {what}. Pass {mend} too."


def lengths(settings: GenerationConfig, given: Mapping[str, Any]) -> Iterator[str]:
    if given.get("max_new_tokens") is not None and given.get("max_length") is not None:
        yield "max_new_tokens and max_length say the same thing in two ways. Pass one of them."
    for least, most in (("min_new_tokens", "max_new_tokens"), ("min_length", "max_length")):
        low, high = getattr(settings, least), getattr(settings, most)
        if low is not None and high is not None and low > high and (least in given or most in given):
            yield f"{least}={low} is more than {most}={high}. Change one of them."


def rivals(settings: GenerationConfig, given: Mapping[str, Any]) -> Iterator[str]:
    for one, other in RIVALS:
        if settings.on(one) and settings.on(other):
            own = next((name for name in (one, other) if name not in given), None)
            off = f"{own}={settings.about(own).neutral!r} switches the model's own off" if own else "Leave out one of them"
            yield f"{one} and {other} do not go together. {off}."
    for name in CUTTING:
        if settings.on("mirostat") and name in given and settings.says(name):
            yield f"mirostat takes the place of {name}. Pass one of them."


def counts(settings: GenerationConfig) -> Iterator[str]:
    texts, beams = settings.num_return_sequences, settings.num_beams
    if texts > 1 and beams == 1 and not settings.do_sample:
        yield f"num_return_sequences={texts} would give the same text each time. Pass do_sample=True or num_beams too."
    if 1 < beams < texts:
        yield f"num_return_sequences={texts} is more than num_beams={beams}. Pass more beams."
