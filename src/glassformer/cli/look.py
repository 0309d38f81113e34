"""`glass look`: a prompt's journey to the next token; or a model's blueprint from its config, without weights."""

from __future__ import annotations

from typing import Annotated

from glassformer.cli import bars, common
from glassformer.cli.command import option
from glassformer.cli.model_files import open_files
from glassformer.cli.options import ChangeableModelGroup, OutputGroup, PromptGroup
from glassformer.cli.text_input import read_prompt

EXAMPLE = (
    'Example: glass look "how are you?"   ·   glass look --raw "Today" --json   ·   glass look --blueprint --length 100'
)

NEEDS = {"length": "blueprint"}
EXCLUDES = (("prompt", "length"), ("sites", "prompt"), ("sites", "blueprint"))


def look(
    prompt: common.PromptArgument = None,
    pair: Annotated[
        str | None, option("--pair", help="A second text, for a model that reads pairs, such as question and passage.")
    ] = None,
    blueprint: Annotated[
        bool, option("--blueprint", help="Shapes, modules and parameters from the config alone; nothing is run.")
    ] = False,
    sites: Annotated[
        bool, option("--sites", help="What can be read and changed, and its names in other libraries; nothing is run.")
    ] = False,
    length: Annotated[
        int | None, option("--length", help="With --blueprint: the number of tokens, instead of a prompt's.", minimum=1)
    ] = None,
    *,
    model_options: ChangeableModelGroup,
    prompt_options: PromptGroup,
    output: OutputGroup,
) -> None:
    """Show how a text becomes the next token: prompt, ids, every shape, logits, the choice, and the cost."""
    from glassformer.see.model_description import site_names

    if sites:
        output.show(site_names(open_files(model_options.model, weights=False).blueprint(), model_options.model))
        return
    if blueprint:
        show_plan(model_options.model, prompt, length, output)
        return
    text = read_prompt(prompt)
    model = model_options.load()
    with bars.spinner(f"loading {model_options.model} and reading the prompt"):
        journey = model.look(text, pair=pair, **prompt_options.keywords())
    output.show(journey)


def show_plan(model: str, prompt: str | None, length: int | None, output: OutputGroup) -> None:
    """Show a model's blueprint, for as many tokens as the prompt has."""
    from glassformer.see.plan import LENGTH, plan

    opened = open_files(model, weights=False)
    if prompt is not None:
        length = len(opened.tokenizer(read_prompt(prompt))["input_ids"])
    output.show(plan(opened.blueprint(), length or LENGTH, name=model))
