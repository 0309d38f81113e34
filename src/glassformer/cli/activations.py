"""`glass activations`: what many texts have at some sites, written to disk; or their statistics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from glassformer.cli import bars, common
from glassformer.cli.options import ChangeableModelGroup
from glassformer.ground.files import prepared_target
from glassformer.ground.operations import about, operation
from glassformer.see.activation_statistics import ActivationStatistics
from glassformer.see.readings import LengthArgument, Readings
from glassformer.see.recorded_activations import ActivationFiles

TextsArgument = Annotated[
    Path, about("The texts: one on each line, or a column of .jsonl or .csv.", "--texts", "-f", metavar="FILE")
]
ColumnArgument = Annotated[str | None, about("The column that holds the texts; by default 'text'.")]
SITE = about("A site, such as blocks.*.residual; repeatable.", metavar="PATTERN")


@operation(
    section="Features and many texts",
    example='glass activations --texts lines.txt --site "blocks.*.residual" --out acts   ·   '
    "glass activations --texts reviews.csv --site blocks.3.mlp.hidden --neuron 17",
    verb_help="Write activations of many texts to disk; or show their means, and each neuron's strongest tokens.",
    settings_of=Readings.statistics,
    needs={"covariance": "arrays"},
)
def activations(
    model_options: ChangeableModelGroup,
    texts: TextsArgument,
    site: Annotated[Sequence[str], SITE],
    neuron: Annotated[Sequence[int] | None, about("Show this neuron; repeatable.", minimum=0)] = None,
    arrays: Annotated[
        Path | None, about("Write means, variances and all neurons' examples: .safetensors.", metavar="FILE")
    ] = None,
    column: ColumnArgument = None,
    length: LengthArgument = None,
    **settings: Any,
) -> ActivationStatistics:
    """Show the means of activations, and each neuron's strongest tokens."""
    common.check_suffix("--arrays", arrays)
    with prepared_target(arrays):
        readings = read_texts(model_options, texts, column, length)
        with bars.counter_bar("reading texts") as progress:
            statistics = readings.statistics(*site, **settings, progress=progress)
        view = statistics.view(neuron)
        if arrays is not None:
            statistics.save(arrays)
    return view


@operation(verb="activations", chosen_by=("out",), settings_of=Readings.record)
def record(
    model_options: ChangeableModelGroup,
    texts: TextsArgument,
    site: Annotated[Sequence[str], SITE],
    out: Annotated[Path, about("Write the activations of every token here.", metavar="DIR")],
    column: ColumnArgument = None,
    length: LengthArgument = None,
    **settings: Any,
) -> ActivationFiles:
    """Write the activations of every token to disk."""
    readings = read_texts(model_options, texts, column, length)
    go_on = "To go on after the last whole shard, run the same command with --resume."
    with common.explained_interrupt(go_on), bars.counter_bar("reading texts") as progress:
        return readings.record(*site, folder=out, **settings, progress=progress).summary()


def read_texts(model_options: ChangeableModelGroup, texts: Path, column: str | None, length: int | None) -> Readings:
    """The texts of a file, for a model that is loaded after the file was found to be one."""
    from glassformer.cli.text_files import TextFile

    file = TextFile(texts, column)
    return model_options.load().read_many(file, length=length)
