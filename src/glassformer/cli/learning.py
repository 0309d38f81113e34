"""`glass learning`: how a training went, and what its model made of a text on the way."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from glassformer.cli import bars, common
from glassformer.cli.command import argument, option
from glassformer.cli.options import OutputGroup

if TYPE_CHECKING:
    from glassformer.see.reading import Reading
    from glassformer.see.view import View

EXAMPLE = (
    "Example: glass learning speeches   ·   glass learning speeches 'My fellow'   ·   "
    "glass learning speeches 'My fellow' --layer 2 --head 1 --save learning.html"
)

NEEDS = dict.fromkeys(("token", "layer", "head", "target"), "prompt")


def learning(
    folder: Annotated[Path, argument(metavar="DIR", help="The folder of a training: glass train --out DIR.")],
    prompt: Annotated[str | None, argument(metavar="[PROMPT]", help="A text; without one, the training's curves.")] = None,
    token: Annotated[
        str | None, option("--token", "-t", help="Predict after this token: its position or its text; by default the last.")
    ] = None,
    layer: Annotated[int | None, option("--layer", help="Of the attention that is shown; by default the last.")] = None,
    head: Annotated[int | None, option("--head", help="Of that layer; by default 0.")] = None,
    target: common.TargetOption = None,
    executor: common.ExecutorOption = "auto",
    threads: common.ThreadsOption = None,
    *,
    output: OutputGroup,
) -> None:
    """Show how a model learned: its curves; or what it made of a text after each of some steps.

    For a text: the loss of each token, what the model expected next, what each layer would predict, and what a head attends
    to, in each of the snapshots that the training has kept.
    """
    common.use_threads(threads)
    view: View
    if prompt is None:
        from glassformer.see.training_curves import read_training

        view = read_training(folder)
    else:
        from glassformer.runtime.model import load
        from glassformer.see.learning import learning as learn

        common.log_to_stderr()

        def read(path: Path) -> Reading:
            return load(path, executor=executor).read(prompt, target, raw=True)

        with bars.counter_bar("reading snapshots") as progress:
            view = learn(
                folder, read, position=-1 if token is None else token, layer=-1 if layer is None else layer, head=head or 0,
                progress=progress,
            )  # fmt: skip
    output.show(view)
