"""`glass graph`: a linear attribution graph of a token's lead over the runner-up, or of its logit."""

from __future__ import annotations

from typing import Annotated, Any

from glassformer.cli import common
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

EXAMPLE = (
    'Example: glass graph --raw "The capital of France is"   ·   '
    'glass graph --raw "The capital of France is" --wrote " Paris" --against " Rome"'
)


def graph(
    prompt: common.PromptArgument = None,
    token: Annotated[str, option("--token", "-t", help="After this token: its position or its text.")] = "-1",
    wrote: Annotated[
        str, option("--wrote", metavar="TEXT", help="The next token whose lead is followed; 'best': the top token.")
    ] = "best",
    against: Annotated[
        str | None, option("--against", metavar="TEXT", help="Its lead over this token; by default the runner-up.")
    ] = None,
    metric: Annotated[str, option("--metric", help="lead, or the token's own logit.")] = "lead",
    centred: Annotated[
        bool, option("--centred", help="The logit less the mean over the vocabulary, as TransformerLens does.")
    ] = False,
    threshold: Annotated[
        float, option("--threshold", help="Edges below this share of it are pruned, and summed up.")
    ] = 0.02,
    target: Annotated[str | None, option("--target", help="An encoder-decoder's output text.")] = None,
    new: Annotated[int, option("-n", "--max-new-tokens", minimum=0, help="Generate this many tokens first.")] = 0,
    model_options: ChangeableModelGroup = CHANGEABLE_MODEL_GROUP,
    prompt_options: PromptGroup = PROMPT_GROUP,
    output: OutputGroup = OUTPUT_GROUP,
) -> None:
    """Follow a token's lead back through the heads that carried it, to the tokens and MLPs it came from."""
    text = read_prompt(prompt)
    reading = prompt_options.read(model_options.load(), text, target, new)
    chosen = None if wrote == "best" else wrote
    choices: dict[str, Any] = {"metric": metric, "centred": centred, "threshold": threshold}
    output.show(reading.graph(token, chosen, against, **choices))
