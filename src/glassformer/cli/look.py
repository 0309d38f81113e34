"""`glass look --blueprint` and `--sites`: what a model's files say. What `glass look` shows of a prompt is an operation."""

from __future__ import annotations

from typing import Annotated

from glassformer.cli.model_files import open_files
from glassformer.cli.options import ModelGroup
from glassformer.ground.operations import about, operation
from glassformer.see.model_description import SiteNames, site_names
from glassformer.see.plan import LENGTH, Plan, plan


@operation(verb="look", chosen_by=("sites",))
def list_sites(model_options: ModelGroup) -> SiteNames:
    """What can be read and changed, and its names in other libraries; nothing is run."""
    return site_names(open_files(model_options.model, weights=False).blueprint(), model_options.model)


@operation(verb="look", chosen_by=("blueprint",))
def show_plan(
    model_options: ModelGroup,
    prompt: str | None = None,
    length: Annotated[int | None, about("The number of tokens, instead of a prompt's.", minimum=1)] = None,
) -> Plan:
    """Shapes, modules and parameters from the config alone; nothing is run."""
    opened = open_files(model_options.model, weights=False)
    if prompt is not None:
        length = len(opened.tokenizer(prompt)["input_ids"])
    return plan(opened.blueprint(), length or LENGTH, name=model_options.model)
