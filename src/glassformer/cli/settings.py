"""How a text is to be written, as options of a verb; and how it was written, in a line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassformer.cli import common
from glassformer.cli.options import Bundle
from glassformer.errors import SettingError
from glassformer.page.format import few

if TYPE_CHECKING:
    from glassformer.decoding import GenerationConfig
    from glassformer.engine.protocol import Description
    from glassformer.observe.protocols import ModelLike
    from glassformer.runtime.run import Run

SHOWN = ("temperature", "top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "xtc_probability", "mirostat")
ENDS = {
    "eos": "finished", "length": "cut at the limit", "stop": "ended at the stop string", "complete": "complete",
    "time": "out of time", "criterion": "ended by a criterion", "cancelled": "stopped by you",
}  # fmt: skip

NewTokensOption = Annotated[
    int | None, typer.Option("--max-new-tokens", "-n", help="At most so many tokens; 256 unless the model says.")
]
SampleOption = Annotated[
    bool | None, typer.Option("--sample/--greedy", help="Draw, or take the best; by default as the model says.")
]
TemperatureOption = Annotated[
    float | None, typer.Option(help="Below 1 sharpens, above 1 flattens, 0 is greedy; implies --sample.")
]
TopKOption = Annotated[int | None, typer.Option(help="Draw from the best so many; implies --sample.")]
TopPOption = Annotated[float | None, typer.Option(help="Draw from the best with this probability; implies --sample.")]
SeedOption = Annotated[int | None, typer.Option(help="The same seed gives the same draws.")]
OtherOption = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="NAME=VALUE", help="Any other setting, such as num_beams=4."),
]


def given(**options: Any) -> dict[str, Any]:
    """Those that were given."""
    return {name: value for name, value in options.items() if value not in (None, [])}


@dataclass(frozen=True)
class Writing(Bundle):
    """How a text is to be written."""

    PANEL = "How the text is written"

    max_new_tokens: NewTokensOption = None
    sample: SampleOption = None
    temperature: TemperatureOption = None
    top_k: TopKOption = None
    top_p: TopPOption = None
    seed: SeedOption = None
    option: OtherOption = None

    def settings(self, *, as_json: bool, **more: Any) -> dict[str, Any]:
        """What was given, and `more`, as settings; none is said twice, and none has its result nowhere to be seen."""
        found, others = {**self._chosen(), **given(**more)}, common.pairs(self.option, "--option", "num_beams=4")
        if twice := found.keys() & others.keys():
            raise SettingError(f"{min(twice)} is said twice, once with -o. Leave one out.")
        if not as_json and (vain := {"logprobs", "prompt_logprobs"} & others.keys()):
            raise SettingError(f"{min(vain)} is told as JSON only. Pass --json too.")
        return {**found, **others}

    def _chosen(self) -> dict[str, Any]:
        """The options that have a name of their own. Temperature 0 is how many people say greedy."""
        sample, temperature, greedy = self.sample, self.temperature, "--greedy"
        if temperature == 0 and not sample:
            sample, temperature, greedy = False, None, "--temperature 0"
        shaping = {"temperature": temperature, "top_k": self.top_k, "top_p": self.top_p}
        named = [f"--{name.replace('_', '-')}" for name, value in shaping.items() if value is not None]
        if named and sample is False:
            raise SettingError(
                f"{greedy} takes the best token each time, so {named[0]} would change nothing. Leave one out."
            )
        drawn = True if named else sample
        return given(**shaping, max_new_tokens=self.max_new_tokens, seed=self.seed, do_sample=drawn)


WRITING = Writing()


def manner(model: ModelLike, settings: GenerationConfig, about: Description, *, raw: bool, seed: int | None = None) -> str:
    """Model, template, strategy and executor, in a line."""
    chat = "raw text" if raw or model.tokenizer.chat_template is None else "chat template"
    strategy = settings.strategy
    if settings.do_sample:
        rules = [f"{name.replace('_', '-')} {_brief(getattr(settings, name))}" for name in SHOWN if settings.on(name)]
        rules += [] if seed is None else [f"seed {seed}"]
        strategy += f" ({', '.join(rules)})" if rules else ""
    opened = model.opened
    weights = f"{opened.kind} expanded to {about.dtype}" if opened.packed and about.name == "plain" else about.dtype
    where = f"{about.name} on {about.device}" if about.name != about.device else f"{about.name} ({about.notes[0]})"
    options = "".join(f", {name} in {kind}" for name, kind in about.options.items())
    changed = f" · changed: {few([*model.changes])}" if model.changes else ""
    return f"{model.name} · {chat} · {strategy} · {where}, {weights}{options}{changed}"


def ending(run: Run) -> str:
    """Why a text ended, in words."""
    return "stopped by you" if run.finish is None else ENDS[run.finish.value]


def _brief(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
