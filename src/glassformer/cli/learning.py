"""`glass learning`: how a training went, and what its model made of a text on the way."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from glassformer.cli import bars, common
from glassformer.cli.command import OptionGroup
from glassformer.ground.operations import about, operation
from glassformer.see import learning as snapshots

if TYPE_CHECKING:
    from glassformer.see.reading import Reading
    from glassformer.see.view import View


@dataclass(frozen=True)
class ExecutorGroup(OptionGroup):
    """How snapshots run."""

    HEADING = "Model"

    executor: common.ExecutorOption = "auto"
    threads: common.ThreadsOption = None


@operation(
    section="Train and evaluate",
    example="glass learning speeches   ·   glass learning speeches 'My fellow'   ·   "
    "glass learning speeches 'My fellow' --layer 2 --head 1 --save learning.html",
    settings_of=snapshots.learning,
    needs=dict.fromkeys(("position", "layer", "head", "target"), "text"),
)
def learning(
    model_options: ExecutorGroup,
    folder: Annotated[Path, about("The folder of a training: glass train --out DIR.", positional=True, metavar="DIR")],
    text: Annotated[
        str | None, about("A text; without one, the training's curves.", positional=True, metavar="[PROMPT]")
    ] = None,
    target: Annotated[str | None, about("An encoder-decoder's output text.")] = None,
    **settings: Any,
) -> View:
    """Show how a model learned: its curves; or what it made of a text after each of some steps.

    For a text: the loss of each token, what the model expected next, what each layer would predict, and what a head attends
    to, in each of the snapshots that the training has kept.
    """
    common.use_threads(model_options.threads)
    if text is None:
        from glassformer.see.training_curves import read_training

        return read_training(folder)
    from glassformer.runtime.model import load

    common.log_to_stderr()

    def read(path: Path) -> Reading:
        return load(path, executor=model_options.executor).read(text, target, raw=True)

    with bars.counter_bar("reading snapshots") as progress:
        return snapshots.learning(folder, read, **settings, progress=progress)
