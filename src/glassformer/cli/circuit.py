"""`glass circuit`: a head's QK and OV circuits in tokens, and the composition of heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from glassformer.cli import bars, common
from glassformer.cli.command import argument, option
from glassformer.cli.options import ChangeableModelGroup, OutputGroup, PromptGroup
from glassformer.ground.errors import InputError

if TYPE_CHECKING:
    from glassformer.views.view import View

EXAMPLE = (
    'Example: glass circuit --layer 23 --head 4 --raw "The capital of France is"   ·   '
    "glass circuit --layer 23 --composition --baseline"
)


def circuit(
    prompt: Annotated[
        str | None, argument(help="A text: its tokens, and what the head writes at each.", default_shown=False)
    ] = None,
    layer: Annotated[int | None, option("--layer", minimum=0, help="The head's layer.")] = None,
    head: Annotated[int | None, option("--head", minimum=0, help="The head.")] = None,
    token: Annotated[
        list[str] | None, option("--token", "-t", help="Instead of a text: a token, by text or #id; repeatable.")
    ] = None,
    distance: Annotated[
        int, option("--distance", minimum=0, help="How many tokens back keys stand, with RoPE; 0: no positions.")
    ] = 0,
    best: Annotated[int, option("--best", minimum=1, help="How many tokens to list.")] = 5,
    composition: Annotated[
        bool, option("--composition", help="How much heads read of what earlier heads write; of one layer, or of all.")
    ] = False,
    baseline: Annotated[
        bool, option("--baseline", help="With --composition: subtract the score of unrelated heads.")
    ] = False,
    target: common.TargetOption = None,
    *,
    model_options: ChangeableModelGroup,
    prompt_options: PromptGroup,
    output: OutputGroup,
) -> None:
    """Show what an attention head looks for and writes, in tokens; or which heads read what others write."""
    if composition and (prompt is not None or head is not None or token):
        raise InputError(
            "--composition is about all heads of a layer, by their weights. Leave out the text, --head and --token."
        )
    if baseline and not composition:
        raise InputError("--baseline belongs to composition scores. Pass --composition too.")
    if prompt is not None and token:
        raise InputError("a text has tokens of its own. Leave out either the text or --token.")
    if not composition and (layer is None or head is None):
        raise InputError("a circuit is that of one head. Pass --layer and --head.")
    model = model_options.load()
    view: View
    if composition:
        with bars.counter_bar(f"comparing heads of {model_options.model}") as progress:
            view = model.circuits.composition(layer, baseline=baseline, progress=progress)
    else:
        assert layer is not None
        assert head is not None
        if prompt is None:
            view = model.circuits.head(layer, head, token, distance=distance, best=best)
        else:
            reading = prompt_options.read(model, prompt, target, 0)
            view = reading.circuit(layer, head, distance=distance, best=best)
    output.show(view)
