"""`glass experts`: to which experts of a mixture each token goes."""

from __future__ import annotations

from typing import Annotated

from glassformer.cli import bars, common
from glassformer.cli.command import option
from glassformer.cli.options import (
    CHANGEABLE_MODEL_GROUP,
    OUTPUT_GROUP,
    PROMPT_GROUP,
    ChangeableModelGroup,
    OutputGroup,
    PromptGroup,
)
from glassformer.cli.text_input import read_prompt

EXAMPLE = 'Example: glass experts -m allenai/OLMoE-1B-7B-0924 --raw "The capital of France is"'


def experts(
    prompt: common.PromptArgument = None,
    new: Annotated[int, option("-n", "--max-new-tokens", minimum=0, help="Generate this many tokens first.")] = 0,
    model_options: ChangeableModelGroup = CHANGEABLE_MODEL_GROUP,
    prompt_options: PromptGroup = PROMPT_GROUP,
    output: OutputGroup = OUTPUT_GROUP,
) -> None:
    """Show to which experts of a mixture each token goes, and how evenly the tokens are spread over them."""
    text = read_prompt(prompt)
    model = model_options.load()
    reading = prompt_options.read(model, text, None, new)
    with bars.counter_bar(f"{model_options.model} reads") as progress:
        view = reading.experts(progress=progress)
    output.show(view)
