"""`glass attention --record`: files. What `glass attention` shows of a text are operations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from glassformer.cli import common
from glassformer.ground.operations import about, operation
from glassformer.ground.progress import Progress
from glassformer.see.activations import Activations
from glassformer.see.attention import SITES, KindArgument, layers_and_heads


@operation(owner="command.reading", verb="attention", chosen_by=("record",))
def record_maps(
    reading: Activations,
    record: Annotated[Path, about("Write all maps to disk, one .npy file per layer.", metavar="FOLDER")],
    kind: KindArgument = "self",
    *,
    progress: Progress | None = None,
) -> tuple[Path, ...]:
    """Write all maps to disk."""
    layers_and_heads(reading, kind)
    patterns = SITES[kind].format("*")
    common.note(f"{reading.cost(patterns).summary(len(reading))} in {record}")
    return reading.record(patterns, folder=record, progress=progress)
