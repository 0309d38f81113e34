"""Generation settings as options of a verb, and a line that sums up how a text was generated."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from glassformer.cli import common
from glassformer.cli.command import OptionGroup, option
from glassformer.ground.errors import SettingError, spell
from glassformer.page.format import abbreviate_list

if TYPE_CHECKING:
    from glassformer.decoding import GenerationConfig
    from glassformer.engine.protocol import Description
    from glassformer.runtime.run import Run
    from glassformer.see.protocols import ModelLike

FINISH_TEXTS = {
    "eos": "finished", "length": "cut at the limit", "stop": "ended at the stop string", "complete": "complete",
    "time": "out of time", "criterion": "ended by a criterion", "cancelled": "stopped by you",
}  # fmt: skip

NewTokensOption = Annotated[
    int | None, option("--max-new-tokens", "-n", help="Tokens to generate, at most; the model's own, or 256.")
]
SampleOption = Annotated[
    bool | None, option("--sample/--greedy", help="Sample, or take the best token; by default as the model says.")
]
TemperatureOption = Annotated[
    float | None, option(help="Below 1 sharpens, above 1 flattens, 0 is greedy; implies --sample.")
]
TopKOption = Annotated[int | None, option(help="Sample from the k best tokens; implies --sample.")]
TopPOption = Annotated[
    float | None, option(help="Sample from the best tokens that have this probability; implies --sample.")
]
SeedOption = Annotated[int | None, option(help="The same seed draws the same tokens.")]
AssistantOption = Annotated[
    str | None,
    option(metavar="NAME", help="A smaller model that drafts, or mtp: the model's own head for further tokens."),
]
OtherOption = Annotated[
    list[str] | None,
    option("--option", "-o", metavar="NAME=VALUE", help="Any other setting, such as num_beams=4."),
]


def drop_unset(**options: Any) -> dict[str, Any]:
    """The options that are set."""
    return {name: value for name, value in options.items() if value not in (None, [])}


@dataclass(frozen=True)
class GenerationGroup(OptionGroup):
    """Generation settings."""

    HEADING = "Generation"

    max_new_tokens: NewTokensOption = None
    sample: SampleOption = None
    temperature: TemperatureOption = None
    top_k: TopKOption = None
    top_p: TopPOption = None
    seed: SeedOption = None
    assistant: AssistantOption = None
    option: OtherOption = None

    def settings(self, *, as_json: bool, **more: Any) -> dict[str, Any]:
        """The settings of these options and `more`; refuses one that is set twice, or whose result would not be seen."""
        named = {**self._named_settings(), **drop_unset(**more)}
        others = common.parse_pairs(self.option, "--option", "num_beams=4")
        if twice := named.keys() & others.keys():
            raise SettingError(f"{min(twice)} is set twice, once with -o. Leave one out.")
        if not as_json and (unseen := {"logprobs", "prompt_logprobs"} & others.keys()):
            raise SettingError(f"{min(unseen)} is printed as JSON only. Pass --json too.")
        return {**named, **others}

    def _named_settings(self) -> dict[str, Any]:
        """The options with a name of their own. Temperature 0 means greedy."""
        sample, temperature, greedy = self.sample, self.temperature, "--greedy"
        if temperature == 0 and not sample:
            sample, temperature, greedy = False, None, "--temperature 0"
        shaping = {"temperature": temperature, "top_k": self.top_k, "top_p": self.top_p}
        named = [f"--{name.replace('_', '-')}" for name, value in shaping.items() if value is not None]
        if named and sample is False:
            raise SettingError(
                f"{greedy} takes the best token each time, so {named[0]} would change nothing. Leave one out."
            )
        do_sample = True if named else sample
        others = {"max_new_tokens": self.max_new_tokens, "seed": self.seed, "assistant_model": self.assistant}
        return drop_unset(**shaping, do_sample=do_sample, **others)


OWN_OPTIONS = {  # what is typed otherwise than its name says
    "max_new_tokens": "-n", "assistant_model": "--assistant",
    "stop_strings": "--stop", "json_schema": "--schema", "choices": "--choice",
    "model.patch_pairs": "--pairs FILE", "model.tokens": "glass tokens",
    **{name: f"--{name.replace('_', '-')}" for name in ("temperature", "top_k", "top_p", "seed", "regex")},
}  # fmt: skip


def command_line_spelling(name: str, *value: Any) -> str:
    """An argument as it is typed at the command line.

    >>> command_line_spelling("do_sample", True), command_line_spelling("num_beams", 4), command_line_spelling("seed")
    ('--sample', '-o num_beams=4', '--seed')
    """
    from glassformer.decoding.settings_table import SETTINGS

    if name == "do_sample" and value:
        return "--sample" if value[0] else "--greedy"
    texts = [shlex.quote(item) if isinstance(item, str) else json.dumps(item, default=str) for item in value]
    if name in OWN_OPTIONS or name not in SETTINGS:
        return " ".join([OWN_OPTIONS.get(name, f"--{name.replace('_', '-')}"), *texts])
    return "=".join([f"-o {name}", *texts])


def note_unused_seed(settings: GenerationConfig, chosen: Mapping[str, Any]) -> None:
    """Say of a seed that was set that nothing is drawn with it."""
    if chosen.get("seed") is not None and not settings.do_sample:
        common.note(
            f"glass: the seed {chosen['seed']} changes nothing: decoding is greedy. {spell('temperature', 0.8)} samples."
        )


def status_line(
    model: ModelLike,
    settings: GenerationConfig,
    about: Description,
    *,
    raw: bool,
    seed: int | None = None,
    steering: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Model, template, strategy, executor, what it is steered by and where it is changed, in a line."""
    chat = "raw text" if raw or model.tokenizer.chat_template is None else "chat template"
    strategy = settings.strategy
    if settings.do_sample:
        from glassformer.decoding.settings_table import SAMPLING_RULES

        active = [name for name in SAMPLING_RULES if settings.is_active(name)]
        rules = [f"{name.replace('_', '-')} {_brief(getattr(settings, name))}" for name in active]
        rules += [] if seed is None else [f"seed {seed}"]
        strategy += f" ({', '.join(rules)})" if rules else ""
    opened = model.opened
    weights = opened.kind_text if about.dtype == opened.kind else about.dtype
    if opened.packed and about.name == "plain":
        weights = f"{opened.kind_text} expanded to {about.dtype}"
    where = f"{about.name} on {about.device}" if about.name != about.device else f"{about.name} ({about.notes[0]})"
    options = "".join(f", {text}" for text in about.option_texts)
    steered = ""
    if steering:
        from glassformer.steering.steer import describe_entry

        steered = f" · steered by {', '.join(map(describe_entry, steering))}"
    changed = f" · changed: {abbreviate_list([*model.changes])}" if model.changes else ""
    return f"{model.name} · {chat} · {strategy} · {where}, {weights}{options}{steered}{changed}"


def finish_text(run: Run) -> str:
    """Why a text ended."""
    return "stopped by you" if run.finish is None else FINISH_TEXTS[run.finish.value]


def _brief(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
