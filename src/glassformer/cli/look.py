"""`glass look`: the journey of a prompt to its next token."""

from __future__ import annotations

from typing import Annotated

import typer

from glassformer.cli import common

EXAMPLE = 'Example: glass look "how are you?"   ·   glass look --raw "Today" --json'


def look(
    prompt: common.PromptArgument = None,
    model: common.ModelOption = common.DEFAULT_MODEL,
    raw: common.RawOption = False,
    system: common.SystemOption = None,
    template: common.TemplateOption = None,
    executor: common.ExecutorOption = "auto",
    weights: common.WeightsOption = None,
    cache: common.CacheOption = None,
    dtype: common.DtypeOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Show a long prompt and all its tokens whole.")] = False,
    as_json: common.JsonOption = False,
) -> None:
    """Show how a text becomes the next token: prompt, ids, every shape, scores, choice."""
    text = common.read_prompt(prompt)
    loaded = common.open_model(model, dtype=dtype, executor=executor, weights=weights, cache=cache)
    with common.waiting(f"loading {model} and reading the prompt"):
        found = loaded.look(text, raw=raw, system=system, template=common.variables(template))
    common.show(found, as_json=as_json, everything=everything)
