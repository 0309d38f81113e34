"""`glass activations`: what many texts have at some sites, written to disk; or their statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from glassformer.cli import bars, common
from glassformer.cli.command import option
from glassformer.cli.options import ChangeableModelGroup, OutputGroup
from glassformer.ground.errors import SettingError
from glassformer.ground.files import prepared_target

EXAMPLE = (
    'Example: glass activations --texts lines.txt --site "blocks.*.residual" --out acts   ·   '
    "glass activations --texts reviews.csv --site blocks.3.mlp.hidden --neuron 17"
)
TextsOption = Annotated[
    Path | None, option("--texts", "-f", metavar="FILE", help="The texts: one on each line, or a column of .jsonl or .csv.")
]
ColumnOption = Annotated[str | None, option("--column", help="The column that holds the texts; by default 'text'.")]
SiteOption = Annotated[
    list[str] | None, option("--site", metavar="PATTERN", help="A site, such as blocks.*.residual; repeatable.")
]
LengthOption = Annotated[int | None, option("--length", minimum=1, help="Tokens of a text, at most.")]

NEEDS = {"resume": "out", "positions": "out", "stored_dtype": "out", "covariance": "arrays"}
EXCLUDES = (("neuron", "out"), ("arrays", "out"))


def activations(
    texts: TextsOption = None,
    site: SiteOption = None,
    out: Annotated[Path | None, option("--out", metavar="DIR", help="Write the activations of every token here.")] = None,
    resume: Annotated[bool, option("--resume", help="With --out: go on where a recording was stopped.")] = False,
    stored_dtype: Annotated[
        str, option("--stored-dtype", help="With --out: float32, or float16 for half of the room.")
    ] = "float32",
    positions: Annotated[str, option("--positions", help="With --out: all, or of each text the last token alone.")] = "all",
    neuron: Annotated[
        list[int] | None, option("--neuron", minimum=0, help="Without --out: show this neuron; repeatable.")
    ] = None,
    examples: Annotated[int, option("--examples", minimum=1, maximum=100, help="Strongest examples of a neuron.")] = 5,
    covariance: Annotated[
        bool, option("--covariance", help="With --arrays: whole covariances, not variances alone.")
    ] = False,
    arrays: Annotated[
        Path | None,
        option("--arrays", metavar="FILE", help="Write means, variances and all neurons' examples: .safetensors."),
    ] = None,
    column: ColumnOption = None,
    length: LengthOption = None,
    *,
    model: ChangeableModelGroup,
    output: OutputGroup,
) -> None:
    """Write activations of many texts to disk; or show their means, and each neuron's strongest tokens."""
    from glassformer.cli.text_files import TextFile

    if texts is None or not site:
        raise SettingError("which texts, and what of them? Give --texts FILE and --site PATTERN.")
    if arrays is not None and arrays.suffix != ".safetensors":
        raise SettingError(f"--arrays {arrays} must end in .safetensors.")
    with prepared_target(arrays):
        readings = model.load().read_many(TextFile(texts, column), length=length)
        if out is not None:
            go_on = "To go on after the last whole shard, run the same command with --resume."
            with common.explained_interrupt(go_on), bars.counter_bar("reading texts") as progress:
                recorded = readings.record(
                    *site, folder=out, dtype=stored_dtype, positions=positions, resume=resume, progress=progress,  # type: ignore[arg-type]
                )  # fmt: skip
            view = recorded.summary()
        else:
            with bars.counter_bar("reading texts") as progress:
                statistics = readings.statistics(*site, examples=examples, covariance=covariance, progress=progress)
            view = statistics.view(neuron)  # type: ignore[assignment]
        if arrays is not None:
            statistics.save(arrays)
    output.show(view)
