"""`glass attention`: which tokens each token attended to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from glassformer.cli import bars, common
from glassformer.cli.command import option
from glassformer.cli.options import ChangeableModelGroup, OutputGroup, PromptGroup
from glassformer.cli.text_input import read_prompt

if TYPE_CHECKING:
    from glassformer.see.view import View

EXAMPLE = (
    'Example: glass attention --raw "The cat sat because it was tired." --layer 3 --head 1   ·   '
    'glass attention --raw "The cat sat because it was tired." --token it --rollout'
)

ONE_MAP = ("layer", "head", "token", "mean", "rollout", "as_json", "save", "everything")  # what --record has no use for
EXCLUDES = (("mean", "layer"), ("mean", "rollout"), *((name, "record") for name in ONE_MAP))


def attention(
    prompt: common.PromptArgument = None,
    layer: Annotated[int | None, option("--layer", "-l", help="Which layer; -1 is the last.")] = None,
    head: Annotated[int | None, option("--head", help="Which of its heads; by default their mean.")] = None,
    token: Annotated[
        str | None, option("--token", "-t", help="What this token attended to; its position or its text.")
    ] = None,
    mean: Annotated[bool, option("--mean", help="The mean of all layers and heads.")] = False,
    rollout: Annotated[bool, option("--rollout", help="Attention rollout through all layers.")] = False,
    kind: Annotated[str, option("--kind", help="self; for an encoder-decoder also cross or encoder.")] = "self",
    target: common.TargetOption = None,
    new: common.GeneratedFirstOption = 0,
    record: Annotated[
        Path | None,
        option("--record", metavar="FOLDER", help="Write all maps to disk, one .npy file per layer."),
    ] = None,
    *,
    model_options: ChangeableModelGroup,
    prompt_options: PromptGroup,
    output: OutputGroup,
) -> None:
    """Show which tokens each token attended to: one map, one token's row, or all heads at once."""
    from glassformer.see.attention import SITES, layers_and_heads

    text = read_prompt(prompt)
    model = model_options.load()
    reading = prompt_options.read(model, text, target, new)
    if record is not None:
        layers_and_heads(reading, kind)  # type: ignore[arg-type]
        patterns = SITES[kind].format("*")
        cost = reading.cost(patterns)
        common.note(f"{cost.summary(len(reading))} in {record}")
        with bars.counter_bar(f"{model_options.model} reads") as progress:
            files = reading.record(patterns, folder=record, progress=progress)
        common.print_line("\n".join(map(str, files)))
        return
    with bars.counter_bar(f"{model_options.model} reads") as progress:
        view: View
        if layer is None and not (mean or rollout) and token is None and head is None:
            view = reading.heads(kind=kind, progress=progress)  # type: ignore[arg-type]
        else:
            view = reading.attention(layer, head, kind=kind, rollout=rollout, progress=progress)  # type: ignore[arg-type]
            view = view if token is None else view.of(token)
    output.show(view)
