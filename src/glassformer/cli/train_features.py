"""`glass train-features`: a sparse autoencoder of a model's activations on a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from glassformer.atomic_files import prepared_target
from glassformer.cli import bars, common
from glassformer.cli.command import option
from glassformer.cli.options import MODEL_GROUP, OUTPUT_GROUP, ModelGroup, OutputGroup
from glassformer.cli.text_input import read_text_file
from glassformer.errors import InputError

EXAMPLE = (
    "Example: glass train-features --text corpus.txt --site blocks.8.residual --out resid-8   ·   "
    "glass train-features --text corpus.txt --site blocks.8.mlp.update --features 8192 --kind batchtopk -k 16 --out mlp-8"
)


def train_features(
    text: Annotated[Path, option("--text", metavar="FILE", help="The text that the model reads, in UTF-8.")],
    site: Annotated[str, option("--site", help="Whose activations: blocks.8.residual, blocks.8.mlp.update, ….")],
    out: Annotated[Path, option("--out", metavar="DIR", help="A new folder, which SAELens reads too.")],
    features: Annotated[int | None, option("--features", minimum=1, help="How many; by default 8 for each number.")] = None,
    kind: Annotated[str, option("--kind", help="topk; batchtopk, written as a JumpReLU; or l1.")] = "topk",
    k: Annotated[int, option("-k", minimum=1, help="Active features of a token.")] = 32,
    l1: Annotated[float, option("--l1", help="What activations cost, of the kind l1.")] = 1.0,
    steps: Annotated[int, option("--steps", minimum=1, help="Steps of the training.")] = 2000,
    batch_size: Annotated[int, option("--batch-size", minimum=1, help="Tokens of a step.")] = 512,
    learning_rate: Annotated[float, option("--learning-rate", help="At its highest.")] = 1e-3,
    seed: Annotated[int, option("--seed", minimum=0, help="The same seed gives the same features.")] = 0,
    length: Annotated[int, option("--length", minimum=2, help="Tokens that the model reads at once.")] = 128,
    model_options: ModelGroup = MODEL_GROUP,
    output: OutputGroup = OUTPUT_GROUP,
) -> None:
    """Train a sparse autoencoder (SAE) on a model's activations, and show losses and dead features."""
    from glassformer.features.files import write_dictionary
    from glassformer.observe.activation_rows import activation_rows
    from glassformer.training.feature_training import FeatureTrainingSettings, train_features

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"--out {str(out)!r} is there already, and not empty. Name a new folder.")
    with prepared_target(out / "training.json"):
        content = read_text_file(text)
        model = model_options.load()
        chosen: dict[str, Any] = {"kind": kind, "k": k, "l1": l1, "steps": steps, "batch_size": batch_size}
        with common.explained_interrupt("No features were kept."), bars.counter_bar("training") as progress:
            rows = activation_rows(model, content, site, length)
            settings = FeatureTrainingSettings(
                features=features or 8 * rows.width, learning_rate=learning_rate, seed=seed, **chosen
            )
            dictionary, view = train_features(
                rows, settings, site=site, model=model.name, name=out.name,
                progress=lambda point: progress(point.step, settings.steps),
            )  # fmt: skip
        write_dictionary(dictionary, out)
        view.save(out / "training.html")
        view.save(out / "training.json")
    output.show(view)
    common.note(f"saved in {out}; try: {common.typed('features', model_options.model, '--sae', str(out))} …")
