"""`glass run`: one prompt, one answer, streamed."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassformer.cli import common, settings
from glassformer.cli.options import CHANGING, WORDING, Changing, KeepOption, Wording, bundled
from glassformer.cli.settings import WRITING, Writing
from glassformer.errors import SettingError

if TYPE_CHECKING:
    from glassformer.decoding import Step
    from glassformer.engine.protocol import Description
    from glassformer.runtime.run import Run

EXAMPLE = 'Example: glass run "What is the capital of France?"   ·   echo "Once upon a time" | glass run --raw -n 40'


@bundled
def run(
    prompt: common.PromptArgument = None,
    write: Writing = WRITING,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be given several times.")] = None,
    schema: Annotated[str | None, typer.Option(help="Answer in JSON that this schema allows: a file, or the JSON.")] = None,
    regex: Annotated[str | None, typer.Option(help="Answer with a text that matches this as a whole.")] = None,
    choice: Annotated[list[str] | None, typer.Option(help="Answer with one of these; given several times.")] = None,
    why: Annotated[bool, typer.Option("--why", help="Show for each token what the rules did to its candidates.")] = False,
    load: Changing = CHANGING,
    word: Wording = WORDING,
    as_json: common.JsonOption = False,
    save: KeepOption = None,
    replay: Annotated[
        Path | None, typer.Option("--replay", metavar="FILE", help="Write a saved run's text again, and compare it.")
    ] = None,
) -> None:
    """Answer one prompt, word by word."""
    if replay is not None:
        others = settings.given(stop=stop, schema=schema, regex=regex, choice=choice, change=load.change)
        again(replay, prompt, load, as_json, vain=bool(others or settings.given(**asdict(write))))
        return
    text = common.read_prompt(prompt)
    allowed = {"json_schema": common.json_or_file(schema, "--schema"), "regex": regex, "choices": choice}
    wanted = write.settings(as_json=as_json, stop_strings=stop, **allowed)
    loaded = load.open()
    begun = loaded.prepare(text, **word.how(), **wanted)
    with common.waiting(f"loading {load.model}"):
        about = loaded.executor.describe()
    interrupted = False
    try:
        pieces = loaded.generate(begun, look=10 if why or save else 0)
        with common.waiting(f"reading {len(begun.ids)} tokens"):
            first = next(pieces, "")
        for piece in chain([first], pieces):
            if not as_json:
                common.say(piece)
    except KeyboardInterrupt:
        interrupted = True
    if as_json:
        print(json.dumps({**summary(begun, why), **({"finish": "cancelled"} if interrupted else {})}, ensure_ascii=False))
    else:
        common.say("\n")
    if why and not as_json:
        reasons(begun)
    if save is not None and begun.steps:
        with common.waiting(f"writing {save}"):
            common.note(f"kept in {begun.save(save)}")
    if begun.remedy is not None:
        common.note(f"glass: {begun.remedy}")
    common.note(told(begun, about, word.raw))
    if interrupted:
        raise typer.Exit(130)


def again(path: Path, prompt: str | None, load: Changing, as_json: bool, vain: bool) -> None:
    """Replay a saved run; exit code 1 when a token is not the same."""
    from glassformer.observe.receipt import options_of, read_receipt

    if prompt is not None:
        raise SettingError("--replay takes its prompt from the file. Leave the other one out.")
    found = read_receipt(path)
    known = (common.DEFAULT_MODEL, os.environ.get("GLASS_MODEL"), found["model"])
    if vain or load.model not in known:
        raise SettingError("--replay takes model and settings from the file, and nothing else. Leave the other ones out.")
    options = {} if load.executor == "plain" else options_of(found)
    asked = {name: options.get(name) for name in ("cache", "activations") if getattr(load, name) is None}
    loaded = load.open(found["model"], **asked)
    with common.waiting(f"replaying {len(found['steps'])} tokens"):
        replayed = loaded.replay(found)
    common.show(replayed, as_json=as_json)
    if not replayed.identical:
        raise typer.Exit(1)


def reasons(run: Run) -> None:
    """Each token's candidates and rules, one picture after the other."""
    from rich.console import Console

    console = Console()
    console.print(f"\nthe settings in force\n{run.settings}\n", highlight=False, markup=False)
    for number in range(len(run.steps)):
        console.print(run.why(number))


def told(run: Run, about: Description, raw: bool) -> str:
    """One line: model, template, strategy, executor, speed."""
    how = settings.manner(run.model, run.settings, about, raw=raw, seed=run.seed)
    speed = f" · {run.tokens_per_second:.1f} tokens/s" if run.tokens_per_second else ""
    return (
        f"{how} · {len(run.ids)} → {len(run.steps)} token{'' if len(run.steps) == 1 else 's'}, {settings.ending(run)}{speed}"
    )


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
        "settings": {
            name: {"value": _data(value), "origin": where} for name, (value, where) in run.settings.in_force.items()
        },
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
