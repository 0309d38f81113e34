"""`glass run`: the answer to one prompt, streamed; or to each row of a file."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from glassformer.cli import bars, common, settings
from glassformer.cli.batch import BatchGroup, run_batch
from glassformer.cli.command import argument, option
from glassformer.cli.options import ChangeableModelGroup, PromptGroup, SaveRunOption, SaveStudioOption
from glassformer.cli.run_data import run_data
from glassformer.cli.settings import GenerationGroup
from glassformer.cli.text_input import read_prompt
from glassformer.ground.errors import ExecutorError, InputError, ModelNotFound, SettingError
from glassformer.page.format import pluralize

if TYPE_CHECKING:
    from glassformer.engine.protocol import Description
    from glassformer.runtime.model import Model
    from glassformer.runtime.run import Run

REPLAY_ONLY = "--replay takes all settings from the file. Leave the other options out."
EXAMPLE = (
    'Example: glass run "What is the capital of France?"   ·   echo "Once upon a time" | glass run --raw -n 40   ·   '
    'cat README.md | glass run "Summarize in one sentence:"   ·   glass run qwen3-0.6b "Hello!"   ·   '
    "glass run --file in.jsonl --out out.jsonl"
)


def run(
    prompt: common.PromptArgument = None,
    words: Annotated[
        list[str] | None,
        argument(metavar="[WORDS]...", help="After the name of a model as the first argument: the prompt."),
    ] = None,
    *,
    generation: GenerationGroup,
    stop: Annotated[list[str] | None, option(help="A stop string; repeatable.")] = None,
    schema: Annotated[
        str | None, option(help="Answer in JSON that fits this JSON schema: a file, or the schema itself.")
    ] = None,
    regex: Annotated[str | None, option(help="Answer with a text that this matches as a whole.")] = None,
    choice: Annotated[list[str] | None, option(help="Answer with one of these texts; repeatable.")] = None,
    why: Annotated[bool, option("--why", help="Show what the rules did to each token's candidates.")] = False,
    verbose: Annotated[bool, option("--verbose", help="Show how long loading, reading and generating took.")] = False,
    model_options: ChangeableModelGroup,
    prompt_options: PromptGroup,
    as_json: common.JsonOption = False,
    save: SaveRunOption = None,
    studio: SaveStudioOption = None,
    replay: Annotated[
        Path | None, option("--replay", metavar="FILE", help="Generate a saved run again, and compare the tokens.")
    ] = None,
    batch: BatchGroup,
) -> None:
    """Answer a prompt, streaming the answer; or each row of a file. Without a prompt, at a terminal: chat."""
    if words:
        prompt, model_options = prompt_for_model(prompt, words, model_options)
    if replay is not None:
        constraints = {
            "stop": stop, "schema": schema, "regex": regex, "choice": choice,
            "change": model_options.change, "steer": model_options.steer, "clamp": model_options.clamp,
        }  # fmt: skip
        if prompt is not None:
            raise SettingError("--replay takes its prompt from the file. Leave the prompt out.")
        if settings.drop_unset(**asdict(generation), **constraints):
            raise SettingError(REPLAY_ONLY)
        if batch != BatchGroup():
            raise SettingError(REPLAY_ONLY)
        replay_saved(replay, model_options, as_json)
        return
    in_batch = batch != BatchGroup()
    single = {"--why": why, "--save": save is not None, "--studio": studio is not None, "--verbose": verbose}
    if in_batch:
        check_batch(batch, prompt, single)
    elif prompt is None and sys.stdin is not None and sys.stdin.isatty():
        others = {"--stop": stop, "--schema": schema, "--regex": regex, "--choice": choice, "--raw": prompt_options.raw}
        run_chat(generation, model_options, prompt_options, {**single, **others}, as_json)
        return
    elif prompt is not None and not words and is_catalogue_model(prompt):
        common.note(f"glass: {prompt!r} is taken for the prompt. To chat with the model: glass chat -m {prompt}.")
    text = "" if in_batch else read_prompt(prompt)
    constraints = {"json_schema": common.json_or_file(schema, "--schema"), "regex": regex, "choices": choice}
    chosen = generation.settings(as_json=as_json or in_batch, stop_strings=stop, **constraints)
    if batch.file is not None and batch.out is not None:
        keywords: dict[str, Any] = {
            name: value for name, value in prompt_options.keywords().items() if value not in (None, False, {})
        }
        run_batch(
            model_options.load, batch.file, batch.out, batch_size=batch.batch_size, ray=batch.ray,
            workers=batch.workers, gpus=model_options.gpus, as_json=as_json, **keywords, **chosen,
        )  # fmt: skip
        return
    started = time.perf_counter()
    model = model_options.load()
    prepared = model.start(text, **prompt_options.keywords(), **chosen)
    with bars.spinner(f"loading {model_options.model}"):
        about = model.executor.describe()
    loaded = time.perf_counter()
    settings.note_unused_seed(prepared.settings, chosen)
    look = candidates_to_keep(seen=why or save is not None, recorded=studio is not None)
    interrupted = False
    try:
        with bars.prompt_spinner(len(prepared.prompt_ids)) as progress:
            pieces = model.generate(prepared, look=look, progress=progress)
            first = next(pieces, "")
        for piece in chain([first], pieces):
            if not as_json:
                common.write_piece(piece)
    except KeyboardInterrupt:
        interrupted = True
    if as_json:
        common.print_json({**run_data(prepared, why), **({"finish": "cancelled"} if interrupted else {})})
    else:
        common.write_piece("\n")
    if why and not as_json:
        print_whys(prepared)
    if save is not None and prepared.steps:
        with bars.spinner(f"writing {save}"):
            common.note(f"saved as {prepared.save(save)}")
    if studio is not None and prepared.steps:
        try:
            with bars.stage_bar(f"writing {studio}") as stages:
                recording = prepared.record(views=True, progress=stages)
        except KeyboardInterrupt:
            interrupted, recording = True, prepared.recording
            common.note("stopped: the page has the answer's lens, and no attention, why, patch or tree.")
        common.note(f"saved as {recording.save(studio)}")
    if prepared.remedy is not None:
        common.note(f"glass: {prepared.remedy}")
    common.note(footer(prepared, about, prompt_options.raw, model_options.steering))
    if verbose:
        common.note(timings(prepared, loaded - started))
    if interrupted:
        raise click.exceptions.Exit(130)


def prompt_for_model(
    name: str | None, words: Sequence[str], options: ChangeableModelGroup
) -> tuple[str, ChangeableModelGroup]:
    """`glass run MODEL PROMPT`, as other tools have it: the words after a model's name, and that model."""
    if name is None or not is_model_name(name):
        raise click.UsageError(
            f"{words[0]!r} follows the prompt. Put quotes around a prompt of several words; before it can stand a model: "
            f"{name!r} is none."
        )
    if options.model not in (common.DEFAULT_MODEL, os.environ.get("GLASS_MODEL"), name):
        raise SettingError(f"the model is named twice, {name!r} and {options.model!r}. Leave one out.")
    return " ".join(words), replace(options, model=name)


def is_model_name(word: str) -> bool:
    """Whether a word can only mean a model: a name of the catalogue, a hub id, or a path that exists."""
    from glassformer.checkpoint.locate import HUB_ID

    try:
        exists = Path(word).expanduser().exists()
    except (OSError, RuntimeError):  # too long for a path, or the home of a user who does not exist
        exists = False
    return exists or is_catalogue_model(word) or HUB_ID.fullmatch(word) is not None


def is_catalogue_model(word: str) -> bool:
    from glassformer.checkpoint.catalogue import CATALOGUE

    return word in CATALOGUE and CATALOGUE[word].kind == "model"


def run_chat(
    generation: GenerationGroup, model_options: ChangeableModelGroup, prompt_options: PromptGroup,
    unused: Mapping[str, Any], as_json: bool,
) -> None:  # fmt: skip
    """Somebody at a terminal who says nothing wants to talk."""
    from glassformer.cli.chat import start_chat

    if named := [option for option, value in unused.items() if value]:
        raise SettingError(f"{named[0]} is for a prompt, and there is none. Say something, or leave it out to chat.")
    start_chat(model_options, generation, system=prompt_options.system, template=prompt_options.template, as_json=as_json)


def candidates_to_keep(*, seen: bool, recorded: bool) -> int:
    """Of each step: as many as a recording has, as a table shows, or none."""
    if recorded:
        from glassformer.see.recording import CANDIDATES

        return CANDIDATES
    return 10 if seen else 0


def check_batch(batch: BatchGroup, prompt: str | None, single: Mapping[str, bool]) -> None:
    """Refuse a batch job that lacks a file, or has what only a single prompt can have: `single`, which of it was named."""
    if batch.file is None or batch.out is None:
        raise SettingError("a batch job needs both: --file with its rows, and --out for the answers.")
    if prompt is not None:
        raise SettingError("--file has the prompts. Leave the prompt out.")
    if named := [option for option, is_named in single.items() if is_named]:
        raise SettingError(f"{named[0]} is for a single prompt. Leave it out.")


def replay_saved(path: Path, model_options: ChangeableModelGroup, as_json: bool) -> None:
    """Replay a saved run; exit code 1 when a token differs."""
    from glassformer.see.receipt import read_receipt

    receipt = read_receipt(path)
    model = load_as_saved(receipt, model_options)
    with bars.spinner(f"replaying {len(receipt['steps'])} tokens"):
        replayed = model.replay(receipt)
    common.show(replayed, as_json=as_json)
    if not replayed.identical:
        raise click.exceptions.Exit(1)


def load_as_saved(receipt: Mapping[str, Any], model_options: ChangeableModelGroup) -> Model:
    """The model of a saved run, in the executor that ran it unless another is asked for; noted where it cannot run here.

    `--model` says where the model lies, where its name in the file does not: a server's receipts have the name that it is
    served by. Whether it is the same model is checked by its weights.
    """
    from glassformer.see.receipt import adapter_arguments, executor_arguments

    named = model_options.model not in (common.DEFAULT_MODEL, os.environ.get("GLASS_MODEL"))
    name = model_options.model if named else receipt["model"]
    saved = executor_arguments(receipt)
    if model_options.executor != "auto" or model_options.dtype is not None:
        saved = {name: value for name, value in saved.items() if name in ("cache", "activations", "batch_invariant")}
        saved = saved if model_options.executor in ("cpu", "gpu") else {}
    overrides = {name: value for name, value in saved.items() if getattr(model_options, name) in (None, "auto", True)}
    adapters = {} if model_options.adapter else adapter_arguments(receipt)
    try:
        model = model_options.load(name, **overrides, **adapters)
        model.executor.describe()
    except ModelNotFound as error:
        raise ModelNotFound(f"{error} If the run is a server's, say where its model lies: --model PATH.") from error
    except (ExecutorError, InputError) as error:
        if not overrides:
            raise
        common.note(f"glass: the run's own executor, {receipt['executor'].get('name')}, cannot be used here: {error}")
        model = model_options.load(name, **adapters)
    return model


def print_whys(run: Run) -> None:
    """Print each token's candidates and what the rules did to them."""
    from rich.console import Console

    console = Console()
    console.print(f"\nthe settings in force\n{run.settings}\n", highlight=False, markup=False)
    for number in range(len(run.steps)):
        console.print(run.why(number))


def footer(run: Run, about: Description, raw: bool, steering: Sequence[Mapping[str, Any]] = ()) -> str:
    """One line: model, template, strategy, executor, steering, speed."""
    setup = settings.status_line(run.model, run.settings, about, raw=raw, seed=run.seed, steering=steering)
    speed = f" · {run.tokens_per_second:.1f} tokens/s" if run.tokens_per_second else ""
    return f"{setup} · {len(run.prompt_ids)} → {pluralize(len(run.steps), 'token')}, {settings.finish_text(run)}{speed}"


def timings(run: Run, loading: float) -> str:
    """How long each part took, as people compare it with other tools."""
    generating = run.seconds - run.seconds_to_first
    later = len(run.steps) - 1  # tokens after the first, which comes with the prompt's pass

    def rate(tokens: int, seconds: float) -> str:
        return f"{tokens / seconds:,.2f} tokens/s" if tokens > 0 and seconds > 0 else "–"

    rows = (
        ("total duration", f"{loading + run.seconds:.3f} s"),
        ("load duration", f"{loading:.3f} s"),
        ("prompt eval count", pluralize(len(run.prompt_ids), "token")),
        ("prompt eval duration", f"{run.seconds_to_first:.3f} s"),
        ("prompt eval rate", rate(len(run.prompt_ids), run.seconds_to_first)),
        ("eval count", pluralize(len(run.steps), "token")),
        ("eval duration", f"{generating:.3f} s"),
        ("eval rate", rate(later, generating)),
    )
    return "\n".join(f"{name + ':':<22}{value}" for name, value in rows)
