"""`glass lens --train`: a tuned lens from a file of texts. What `glass lens` shows of one text are operations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from glassformer.cli import bars, common
from glassformer.cli.options import ModelGroup
from glassformer.ground.files import prepared_target
from glassformer.ground.operations import about, operation
from glassformer.see.lens import LensTraining
from glassformer.see.readings import Readings


@operation(verb="lens", chosen_by=("train",), settings_of=Readings.train_lens)
def train_lens(
    model_options: ModelGroup,
    train: Annotated[Path, about("Train a tuned lens on texts: one on each line, or of .jsonl or .csv.", metavar="FILE")],
    out: Annotated[Path, about("Write the lens, .safetensors.", metavar="FILE")],
    **settings: Any,
) -> LensTraining:
    """Train a tuned lens on the texts of a file."""
    from glassformer.cli.text_files import TextFile

    common.check_suffix("--out", out)
    with prepared_target(out):
        file = TextFile(train)
        model = model_options.load()
        with common.explained_interrupt("No lens was kept."), bars.counter_bar("training a lens") as progress:
            trained = model.read_many(file).train_lens(**settings, progress=progress)
        trained.save(out)
    assert trained.view is not None
    return trained.view
