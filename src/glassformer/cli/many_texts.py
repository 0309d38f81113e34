"""`glass activations`, `glass probe` and `glass lens --train`: what is kept or learned of the texts of a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from glassformer.cli import bars, common
from glassformer.cli.options import ChangeableModelGroup, ModelGroup
from glassformer.ground.errors import SettingError
from glassformer.ground.files import prepared_target
from glassformer.ground.operations import about, operation
from glassformer.see.activation_statistics import ActivationStatistics
from glassformer.see.lens import LensTraining
from glassformer.see.probes import Probes, measured_probes
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


@operation(
    section="Features and many texts",
    example="glass probe --data reviews.csv   ·   "
    'glass probe --data reviews.csv --site "blocks.*.mlp.update" --position mean --out probes.safetensors',
    settings_of=Readings.probe,
)
def probe(
    model_options: ChangeableModelGroup,
    data: Annotated[Path | None, about("Labelled texts: .jsonl or .csv.", "--data", "-f", metavar="FILE")] = None,
    site: Annotated[Sequence[str] | None, SITE] = None,
    text_column: Annotated[str | None, about("The column of the texts; by default 'text'.")] = None,
    label_column: Annotated[str | None, about("The column of the labels; by default 'label'.")] = None,
    held_out: Annotated[int, about("Percent of the texts to measure on.", minimum=1, maximum=99)] = 25,
    out: Annotated[Path | None, about("Write the probes' directions: .safetensors.", metavar="FILE")] = None,
    length: LengthArgument = None,
    **settings: Any,
) -> Probes:
    """Train a linear probe on labelled texts at each layer, and say how well it does on held-out ones."""
    from glassformer.training.rows import LABEL, TEXT, read_rows

    if data is None:
        raise SettingError("which texts? Give --data FILE, with a text and a label in each row.")
    common.check_suffix("--out", out)
    with prepared_target(out):
        texts = TEXT if text_column is None else (text_column,)
        labels = LABEL if label_column is None else (label_column,)
        rows = read_rows(data, [texts, labels])
        examples = [row.text(texts) for row in rows], [str(row.get(labels)) for row in rows]
        readings = model_options.load().read_many(examples[0], length=length)
        with bars.counter_bar("reading texts") as progress:
            probes = readings.probe(examples[1], *(site or ()), held_out=held_out / 100, **settings, progress=progress)
        if out is not None:
            probes.save(out)
    return measured_probes(probes)


@operation(verb="lens", chosen_by=("train",), settings_of=Readings.train_lens)
def train_lens(
    model_options: ModelGroup,
    train: Annotated[Path, about("Train a tuned lens on texts: one on each line, or of .jsonl or .csv.", metavar="FILE")],
    out: Annotated[Path, about("Write the lens, .safetensors.", metavar="FILE")],
    **settings: Any,
) -> LensTraining:
    """Train a tuned lens on the texts of a file."""
    common.check_suffix("--out", out)
    with prepared_target(out):
        readings = read_texts(model_options, train)
        with common.explained_interrupt("No lens was kept."), bars.counter_bar("training a lens") as progress:
            trained = readings.train_lens(**settings, progress=progress)
        trained.save(out)
    assert trained.view is not None
    return trained.view


def read_texts(model_options: ModelGroup, texts: Path, column: str | None = None, length: int | None = None) -> Readings:
    """The texts of a file, for a model that is loaded after the file was found to be one."""
    from glassformer.cli.text_files import TextFile

    file = TextFile(texts, column)
    return model_options.load().read_many(file, length=length)
