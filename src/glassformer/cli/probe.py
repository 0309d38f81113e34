"""`glass probe`: linear probes of labelled texts, layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, cast

from glassformer.cli import bars
from glassformer.cli.activations import LengthOption, SiteOption
from glassformer.cli.command import option
from glassformer.cli.options import ChangeableModelGroup, OutputGroup
from glassformer.ground.errors import SettingError
from glassformer.ground.files import prepared_target

EXAMPLE = (
    "Example: glass probe --data reviews.csv   ·   "
    'glass probe --data reviews.csv --site "blocks.*.mlp.update" --position mean --out probes.safetensors'
)


def probe(
    data: Annotated[Path | None, option("--data", "-f", metavar="FILE", help="Labelled texts: .jsonl or .csv.")] = None,
    site: SiteOption = None,
    position: Annotated[str, option("--position", help="A text's vector: its last token's, or the mean of all.")] = "last",
    text_column: Annotated[str | None, option("--text-column", help="The column of the texts; by default 'text'.")] = None,
    label_column: Annotated[
        str | None, option("--label-column", help="The column of the labels; by default 'label'.")
    ] = None,
    held_out: Annotated[int, option("--held-out", minimum=1, maximum=99, help="Percent of the texts to measure on.")] = 25,
    seed: Annotated[int, option("--seed", minimum=0, help="Which texts are held out.")] = 0,
    out: Annotated[Path | None, option("--out", metavar="FILE", help="Write the probes' directions: .safetensors.")] = None,
    length: LengthOption = None,
    *,
    model: ChangeableModelGroup,
    output: OutputGroup,
) -> None:
    """Train a linear probe on labelled texts at each layer, and say how well it does on held-out ones."""
    from glassformer.training.rows import LABEL, TEXT, read_rows

    if data is None:
        raise SettingError("which texts? Give --data FILE, with a text and a label in each row.")
    if position not in ("last", "mean"):
        raise SettingError(f"--position is {position!r}; it must be last or mean.")
    if out is not None and out.suffix != ".safetensors":
        raise SettingError(f"--out {out} must end in .safetensors.")
    with prepared_target(out):
        texts = TEXT if text_column is None else (text_column,)
        labels = LABEL if label_column is None else (label_column,)
        rows = read_rows(data, [texts, labels])
        examples = [(row.text(texts), str(row.get(labels))) for row in rows]
        loaded = model.load()
        with bars.counter_bar("reading texts") as progress:
            probes = loaded.read_many([text for text, _ in examples], length=length).probe(
                [label for _, label in examples], *(site or ()), position=cast(Literal["last", "mean"], position),
                held_out=held_out / 100, seed=seed, progress=progress,
            )  # fmt: skip
        if out is not None:
            probes.save(out)
    assert probes.view is not None
    output.show(probes.view)
