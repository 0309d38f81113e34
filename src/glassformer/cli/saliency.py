"""`glass saliency`: how much each token of a text matters to what the model makes of it."""

from __future__ import annotations

from typing import Annotated, Any

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

EXAMPLE = (
    'Example: glass saliency --raw "The capital of France is"   ·   '
    'glass saliency --raw "The capital of France is" --of " Paris" --against " Rome" --method integrated'
)


def saliency(
    prompt: common.PromptArgument = None,
    of: Annotated[
        str | None,
        option("--of", metavar="TEXT", help="The token or label it is about, by text or #id; by default the best."),
    ] = None,
    against: Annotated[
        str | None, option("--against", metavar="TEXT", help="Its lead over this one; by default the runner-up.")
    ] = None,
    token: Annotated[
        str | None, option("--token", "-t", help="After this token, or in this gap: its position or its text.")
    ] = None,
    metric: Annotated[
        str, option("--metric", help="lead, logit, log-probability, or loss: that of the whole text.")
    ] = "lead",
    method: Annotated[
        str, option("--method", help="leave-one-out; by gradients input-x-gradient, gradient-norm, or integrated.")
    ] = "leave-one-out",
    baseline: Annotated[
        str | None, option("--baseline", help="Of integrated gradients: mean, pad or zero.", default_shown=False)
    ] = None,
    steps: Annotated[
        int | None, option("--steps", minimum=1, help="Of integrated gradients; by default as many as are needed.")
    ] = None,
    target: Annotated[str | None, option("--target", help="An encoder-decoder's output so far.")] = None,
    new: Annotated[int, option("-n", "--max-new-tokens", minimum=0, help="Generate this many tokens first.")] = 0,
    model_options: ChangeableModelGroup = CHANGEABLE_MODEL_GROUP,
    prompt_options: PromptGroup = PROMPT_GROUP,
    output: OutputGroup = OUTPUT_GROUP,
) -> None:
    """Show how much each token of a text matters to the next one, to a label or to the loss."""
    text = read_prompt(prompt)
    model = model_options.load()
    reading = prompt_options.read(model, text, target, new)
    choices: dict[str, Any] = {"metric": metric, "method": method, "baseline": baseline, "steps": steps}
    with bars.counter_bar(f"{model_options.model} reads") as progress:
        view = reading.saliency(of, against, token, **choices, progress=progress)
    output.show(view)
