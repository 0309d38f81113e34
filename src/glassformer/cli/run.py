"""`glass run`: one prompt, one answer, streamed."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassformer.cli import common
from glassformer.errors import SettingError

if TYPE_CHECKING:
    from glassformer.decoding import Step
    from glassformer.engine.protocol import Description
    from glassformer.running import Run

SHOWN = ("temperature", "top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "xtc_probability", "mirostat")
ENDS = {
    "eos": "finished", "length": "cut at the limit", "stop": "ended at the stop string", "complete": "complete",
    "time": "out of time", "criterion": "ended by a criterion", "cancelled": "cancelled",
}  # fmt: skip
EXAMPLE = 'Example: glass run "What is the capital of France?"   ·   echo "Once upon a time" | glass run --raw -n 40'


def run(
    prompt: common.PromptArgument = None,
    model: common.ModelOption = common.DEFAULT_MODEL,
    raw: common.RawOption = False,
    system: common.SystemOption = None,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", "-n", help="At most so many tokens; 256 unless the model says.")
    ] = None,
    sample: Annotated[
        bool | None, typer.Option("--sample/--greedy", help="Draw, or take the best; by default as the model says.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Below 1 sharpens, above 1 flattens, 0 is greedy; implies --sample.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from the best so many; implies --sample.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the best with this probability; implies --sample.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same draws.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be given several times.")] = None,
    schema: Annotated[str | None, typer.Option(help="Answer in JSON that this schema allows: a file, or the JSON.")] = None,
    regex: Annotated[str | None, typer.Option(help="Answer with a text that matches this as a whole.")] = None,
    choice: Annotated[list[str] | None, typer.Option(help="Answer with one of these; given several times.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", metavar="NAME=VALUE", help="Any other setting, such as num_beams=4."),
    ] = None,
    why: Annotated[bool, typer.Option("--why", help="Show for each token what the rules did to its candidates.")] = False,
    template: common.TemplateOption = None,
    executor: common.ExecutorOption = "auto",
    weights: common.WeightsOption = None,
    cache: common.CacheOption = None,
    dtype: common.DtypeOption = None,
    as_json: common.JsonOption = False,
) -> None:
    """Answer one prompt, word by word."""
    text = common.read_prompt(prompt)
    grammar = given(json_schema=common.json_or_file(schema, "--schema"), regex=regex, choices=choice)
    settings = {**chosen(max_new_tokens, sample, temperature, top_k, top_p, seed), **given(stop_strings=stop), **grammar}
    others = common.pairs(option, "--option", "num_beams=4")
    if twice := settings.keys() & others.keys():
        raise SettingError(f"{min(twice)} is said twice, once with -o. Leave one out.")
    if not as_json and (vain := {"logprobs", "prompt_logprobs"} & others.keys()):
        raise SettingError(f"{min(vain)} is told as JSON only. Pass --json too.")
    settings |= others
    loaded = common.open_model(model, dtype=dtype, executor=executor, weights=weights, cache=cache)
    begun = loaded.begin(text, raw=raw, system=system, template=common.variables(template), **settings)
    with common.waiting(f"loading {model}"):
        about = loaded.executor.describe()
    interrupted = False
    try:
        pieces = loaded.follow(begun, look=10 if why else 0)
        with common.waiting(f"reading {len(begun.ids)} tokens"):
            first = next(pieces, "")
        for piece in chain([first], pieces):
            if not as_json:
                sys.stdout.write(piece)
                sys.stdout.flush()
    except KeyboardInterrupt:
        interrupted = True
    if as_json:
        print(json.dumps({**summary(begun, why), **({"finish": "cancelled"} if interrupted else {})}, ensure_ascii=False))
    else:
        sys.stdout.write("\n")
        sys.stdout.flush()
    if why and not as_json:
        reasons(begun)
    if begun.remedy is not None:
        common.note(f"glass: {begun.remedy}")
    common.note(told(begun, about, raw))
    if interrupted:
        raise typer.Exit(130)


def given(**options: Any) -> dict[str, Any]:
    """Those that were given."""
    return {name: value for name, value in options.items() if value not in (None, [])}


def reasons(run: Run) -> None:
    """Each token's candidates and rules, one picture after the other."""
    from rich.console import Console

    console = Console()
    console.print(f"\nthe settings in force\n{run.settings}\n", highlight=False, markup=False)
    for number in range(len(run.steps)):
        console.print(run.why(number))


def chosen(
    max_new_tokens: int | None,
    sample: bool | None,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    seed: int | None,
) -> dict[str, Any]:
    """The options that were given, as settings. Temperature 0 is how many people say greedy."""
    greedy = "--greedy"
    if temperature == 0 and not sample:
        sample, temperature, greedy = False, None, "--temperature 0"
    shaping = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    given = [f"--{name.replace('_', '-')}" for name, value in shaping.items() if value is not None]
    if given and sample is False:
        raise SettingError(f"{greedy} takes the best token each time, so {given[0]} would change nothing. Leave one out.")
    settings = {**shaping, "max_new_tokens": max_new_tokens, "seed": seed, "do_sample": True if given else sample}
    return {name: value for name, value in settings.items() if value is not None}


def told(run: Run, about: Description, raw: bool) -> str:
    """One line: model, template, strategy, executor, speed."""
    chat = "raw text" if raw or run.model.tokenizer.chat_template is None else "chat template"
    s = run.settings
    strategy = s.strategy
    if s.do_sample:
        rules = [f"{name.replace('_', '-')} {_brief(getattr(s, name))}" for name in SHOWN if s.on(name)]
        strategy += f" ({', '.join([*rules, f'seed {run.seed}'])})"
    opened = run.model.opened
    weights = f"{opened.kind} expanded to {about.dtype}" if opened.packed and about.name == "plain" else about.dtype
    where = f"{about.name} on {about.device}" if about.name != about.device else f"{about.name} ({about.notes[0]})"
    end = "stopped by you" if run.finish is None else ENDS[run.finish.value]
    speed = f" · {run.tokens_per_second:.1f} tokens/s" if run.tokens_per_second else ""
    return (
        f"{run.model.name} · {chat} · {strategy} · {where}, {weights} · "
        f"{len(run.ids)} → {len(run.steps)} token{'' if len(run.steps) == 1 else 's'}, {end}{speed}"
    )


def _brief(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def summary(run: Run, why: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = {
        "model": run.model.name,
        "prompt": run.prompt,
        "prompt_ids": list(run.ids),
        "text": run.text,
        "ids": [step.id for step in run.steps],
        "finish": run.finish.value if run.finish else None,
        "stop": run.stop,
        "seed": run.seed,
        "settings": {name: {"value": _data(value), "from": where} for name, (value, where) in run.settings.in_force.items()},
        "remedy": run.remedy,
        "seconds_to_first": round(run.seconds_to_first, 4),
        "tokens_per_second": round(run.tokens_per_second, 2),
        "executor": asdict(run.model.executor.describe()),
    }
    if run.settings.logprobs is not None:
        found["logprobs"] = [likelihoods(step) for step in run.steps]
    if run.settings.prompt_logprobs is not None:
        found["prompt_logprobs"] = [likelihoods(step) for step in run.prompt_steps]
    if why:
        found["why"] = [run.why(number).to_dict() for number in range(len(run.steps))]
    return found


def likelihoods(step: Step) -> dict[str, Any]:
    """A token's log-probability, and those of the model's best."""
    best = step.candidates
    pairs = [] if best is None else zip(best.ids.tolist(), best.logprobs.tolist(), strict=True)
    return {"id": step.id, "logprob": step.logprob, "best": [{"id": one, "logprob": value} for one, value in pairs]}


def _data(value: Any) -> Any:
    """A setting's value as JSON can hold it."""
    try:
        json.dumps(value)
    except TypeError:
        return repr(value)
    return value
