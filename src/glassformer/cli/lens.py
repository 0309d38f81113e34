"""`glass lens`: the logit lens of each layer, and the logit attribution of a token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

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
from glassformer.errors import InputError

if TYPE_CHECKING:
    from glassformer.views.view import View

EXAMPLE = (
    'Example: glass lens --raw "The capital of France is"   ·   glass lens --raw "The capital of France is" --wrote " Paris"'
)


def lens(
    prompt: common.PromptArgument = None,
    token: Annotated[
        list[str] | None, option("--token", "-t", help="After this token: its position or its text; repeatable.")
    ] = None,
    wrote: Annotated[
        str | None,
        option(
            "--wrote", metavar="TEXT", help="Attribute this next token's logit to blocks and heads; 'best': the top token."
        ),
    ] = None,
    against: Annotated[
        str | None, option("--against", metavar="TEXT", help="With --wrote: attribute its lead over this token.")
    ] = None,
    centred: Annotated[
        bool, option("--centred", help="With --wrote: subtract the mean over the vocabulary, as TransformerLens does.")
    ] = False,
    target: Annotated[str | None, option("--target", help="An encoder-decoder's output text.")] = None,
    new: Annotated[int, option("-n", "--max-new-tokens", minimum=0, help="Generate this many tokens first.")] = 0,
    model_options: ChangeableModelGroup = CHANGEABLE_MODEL_GROUP,
    prompt_options: PromptGroup = PROMPT_GROUP,
    output: OutputGroup = OUTPUT_GROUP,
) -> None:
    """Show what each layer would predict next, and where the answer emerges; or which blocks and heads wrote it."""
    text = read_prompt(prompt)
    if wrote is not None and len(token or ()) > 1:
        raise InputError("--wrote is about one position. Give --token once.")
    if against is not None and wrote is None:
        raise InputError("--against is compared with the token of --wrote. Pass --wrote too.")
    if centred and wrote is None:
        raise InputError("--centred is about the score of --wrote. Pass --wrote too.")
    model = model_options.load()
    reading = prompt_options.read(model, text, target, new)
    with bars.counter_bar(f"{model_options.model} reads") as progress:
        view: View
        if wrote is not None:
            chosen = None if wrote == "best" else wrote
            view = reading.attribution(token[0] if token else -1, chosen, against, centred=centred)
        else:
            view = reading.lens(token or (range(len(reading)) if output.everything else None), progress=progress)
    output.show(view)
