"""`glass probe`: linear probes of labelled texts, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from glassformer.cli import bars, common
from glassformer.cli.activations import SITE
from glassformer.cli.options import ChangeableModelGroup
from glassformer.ground.errors import SettingError
from glassformer.ground.files import prepared_target
from glassformer.ground.operations import about, operation
from glassformer.see.probes import Probes
from glassformer.see.readings import LengthArgument, Readings


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
    assert probes.view is not None
    return probes.view
