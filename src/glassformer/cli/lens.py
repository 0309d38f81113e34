"""`glass lens`: what each layer would have said, and who wrote the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from glassformer.cli import common
from glassformer.errors import InputError

if TYPE_CHECKING:
    from glassformer.observe.seen import Seen

EXAMPLE = (
    'Example: glass lens --raw "The capital of France is"   ·   glass lens --raw "The capital of France is" --wrote " Paris"'
)


def lens(
    prompt: common.PromptArgument = None,
    model: common.ModelOption = common.DEFAULT_MODEL,
    token: Annotated[
        list[str] | None, typer.Option("--token", "-t", help="After which token: its position or its text; several times.")
    ] = None,
    wrote: Annotated[
        str | None,
        typer.Option(
            "--wrote", metavar="TEXT", help="Who wrote this next token's score, by block and head; 'best': the best."
        ),
    ] = None,
    target: Annotated[str | None, typer.Option("--target", help="What an encoder-decoder is to write of the text.")] = None,
    new: Annotated[int, typer.Option("-n", "--max-new-tokens", min=0, help="First write so many tokens.")] = 0,
    raw: common.RawOption = False,
    system: common.SystemOption = None,
    template: common.TemplateOption = None,
    executor: common.ExecutorOption = "auto",
    weights: common.WeightsOption = None,
    cache: common.CacheOption = None,
    dtype: common.DtypeOption = None,
    everything: common.AllOption = False,
    as_json: common.JsonOption = False,
    save: common.SaveOption = None,
) -> None:
    """Show what each layer would have said next, and when the answer came up; or which blocks and heads wrote it."""
    text = common.read_prompt(prompt)
    if wrote is not None and len(token or ()) > 1:
        raise InputError("--wrote is about one place. Give --token once.")
    loaded = common.open_model(model, dtype=dtype, executor=executor, weights=weights, cache=cache)
    reading = common.reading(loaded, text, target, new, raw=raw, system=system, template=common.variables(template))
    with common.counting(f"{model} reads") as tell:
        found: Seen
        if wrote is not None:
            found = reading.attribution(token[0] if token else -1, None if wrote == "best" else wrote)
        else:
            found = reading.lens(token or (range(len(reading)) if everything else None), tell=tell)
    common.show(found, as_json=as_json, everything=everything, save=save)
