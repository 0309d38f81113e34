"""`glass run`: one prompt, one answer, streamed."""

from __future__ import annotations

import json
import sys
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassformer.cli import common
from glassformer.errors import SettingError

if TYPE_CHECKING:
    from glassformer.engine.protocol import Description
    from glassformer.runtime import Run

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
    template: common.TemplateOption = None,
    dtype: common.DtypeOption = None,
    as_json: common.JsonOption = False,
) -> None:
    """Answer one prompt, word by word."""
    text = common.read_prompt(prompt)
    settings = chosen(max_new_tokens, sample, temperature, top_k, top_p, seed)
    loaded = common.open_model(model, dtype)
    begun = loaded.begin(text, raw=raw, system=system, template=common.variables(template), **settings)
    with common.waiting(f"loading {model}"):
        about = loaded.executor.describe()
    interrupted = False
    try:
        pieces = loaded.follow(begun)
        with common.waiting(f"reading {len(begun.ids)} tokens"):
            first = next(pieces, "")
        for piece in chain([first], pieces):
            if not as_json:
                sys.stdout.write(piece)
                sys.stdout.flush()
    except KeyboardInterrupt:
        interrupted = True
    if as_json:
        print(json.dumps(summary(begun), ensure_ascii=False))
    else:
        sys.stdout.write("\n")
        sys.stdout.flush()
    common.note(told(begun, about, raw))
    if interrupted:
        raise typer.Exit(130)


def chosen(
    max_new_tokens: int | None,
    sample: bool | None,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    seed: int | None,
) -> dict[str, Any]:
    """The options that were given, as settings. Temperature 0 is how many people say greedy."""
    if temperature == 0 and not sample:
        sample, temperature = False, None
    shaping = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    given = [f"--{name.replace('_', '-')}" for name, value in shaping.items() if value is not None]
    if given and sample is False:
        raise SettingError(f"--greedy takes the best token each time, so {given[0]} would change nothing. Leave one out.")
    settings = {**shaping, "max_new_tokens": max_new_tokens, "seed": seed, "do_sample": True if given else sample}
    return {name: value for name, value in settings.items() if value is not None}


def told(run: Run, about: Description, raw: bool) -> str:
    """One line: model, template, strategy, executor, speed."""
    chat = "raw text" if raw or run.model.tokenizer.chat_template is None else "chat template"
    s = run.settings
    strategy = "greedy"
    if s.do_sample:
        strategy = f"sampled (temperature {s.temperature:g}, top-k {s.top_k}, top-p {s.top_p}, seed {run.seed})"
    opened = run.model.opened
    weights = f"{opened.kind} expanded to {about.dtype}" if opened.packed else about.dtype
    finish = run.steps[-1].finish if run.steps else None
    end = "stopped by you" if finish is None else {"eos": "finished", "length": "cut at the limit"}[finish.value]
    return (
        f"{run.model.name} · {chat} · {strategy} · {about.name} on {about.device}, {weights} · "
        f"{len(run.ids)} → {len(run.steps)} tokens, {end} · {run.tokens_per_second:.1f} tokens/s"
    )


def summary(run: Run) -> dict[str, Any]:
    finish = run.steps[-1].finish if run.steps else None
    return {
        "model": run.model.name,
        "prompt": run.prompt,
        "prompt_ids": list(run.ids),
        "text": run.text,
        "ids": [step.id for step in run.steps],
        "finish": finish.value if finish else None,
        "seed": run.seed,
        "tokens_per_second": round(run.tokens_per_second, 2),
    }
