"""`glass steer`: steering vectors from pairs of texts, and those that there are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

from glassformer.cli import bars, common
from glassformer.cli.command import VerbGroup, command, option
from glassformer.cli.options import ModelGroup, OutputGroup, PromptGroup
from glassformer.ground.errors import InputError
from glassformer.ground.files import prepared_target

WITH, WITHOUT = ("positive", "with", "chosen"), ("negative", "without", "rejected")
MAKE_EXAMPLE = (
    "Example: glass steer make --pairs formal.jsonl --site blocks.12.residual --out formal   ·   "
    "glass steer make --raw --pairs pairs.csv --site 'blocks.*.residual' --tokens all --method pca --out all.safetensors"
)
LIST_EXAMPLE = "Example: glass steer list   ·   glass steer list --json"


def make(
    pairs: Annotated[
        Path,
        option("--pairs", metavar="FILE", help="Rows with a positive and a negative text: .jsonl, .csv or .tsv."),
    ],
    site: Annotated[str, option("--site", help="Where: blocks.12.residual, or a pattern for several sites.")],
    out: Annotated[
        str, option("--out", metavar="FILE", help="The .safetensors file; or a name, which is kept in GLASS_HOME/steering.")
    ],
    tokens: Annotated[str, option("--tokens", help="What is read of each text: its last token, or all.")] = "last",
    method: Annotated[str, option("--method", help="mean, or pca: the first principal component.")] = "mean",
    *,
    model_options: ModelGroup,
    prompt_options: PromptGroup,
    output: OutputGroup,
) -> None:
    """Make a steering vector from pairs of texts, of which the first has what the second lacks."""
    from glassformer.training.rows import read_rows

    target = vector_path(out)
    with prepared_target(target):
        texts = [(row.text(WITH), row.text(WITHOUT)) for row in read_rows(pairs)]
        model = model_options.load()
        choices: dict[str, Any] = {"tokens": tokens, "method": method}
        with bars.counter_bar("reading pairs") as progress:
            view = model.steering(cast(Any, texts), site, **choices, **prompt_options.keywords(), progress=progress)
        view.save(target)
    output.show(view)
    common.note(f"saved as {target}; try: {common.typed('run', model_options.model, '--steer', f'{out}=1')} …")


def list_vectors(model_options: ModelGroup, output: OutputGroup) -> None:
    """List the steering vectors in GLASS_HOME/steering, and whether they fit the model."""
    from glassformer.steering.library import local_library

    model = model_options.load()
    output.show(model.steering_vectors())
    common.note(f"Looked in {local_library().steering}; a vector that is elsewhere is named by its path: --steer ./FILE=1.")


def vector_path(out: str) -> Path:
    """The file that --out means."""
    from glassformer.ground.files import home

    path = Path(out)
    if path.suffix == ".safetensors":
        return path
    if path.name != out or path.suffix or not out.isprintable():
        raise InputError(f"--out {out!r} is neither a name nor a .safetensors file.")
    return home() / "steering" / f"{out}.safetensors"


app = VerbGroup(
    "steer", help="Make steering vectors from pairs of texts, and list those that there are.", no_args_is_help=True
)
app.add_command(command(make, "make", MAKE_EXAMPLE))
app.add_command(command(list_vectors, "list", LIST_EXAMPLE))
