"""`glass train-features`: a sparse autoencoder of a model's activations on a text, or of recorded ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from glassformer.cli import bars, common
from glassformer.cli.command import option
from glassformer.cli.options import ModelGroup, OutputGroup
from glassformer.ground.errors import InputError, SettingError
from glassformer.ground.files import prepared_target

EXAMPLE = (
    "Example: glass train-features --text corpus.txt --site blocks.8.residual --out resid-8   ·   "
    "glass train-features --recorded acts --site blocks.8.mlp.update --features 8192 --kind batchtopk -k 16 --out mlp-8"
)

NEEDS = {"length": "text"}
EXCLUDES = (("text", "recorded"),)


def train_features(
    site: Annotated[str, option("--site", help="Whose activations: blocks.8.residual, blocks.8.mlp.update, ….")],
    out: Annotated[Path, option("--out", metavar="DIR", help="A new folder, which SAELens reads too.")],
    text: Annotated[Path | None, option("--text", metavar="FILE", help="The text that the model reads, in UTF-8.")] = None,
    recorded: Annotated[
        Path | None, option("--recorded", metavar="DIR", help="In place of --text: what `glass activations --out` wrote.")
    ] = None,
    features: Annotated[int | None, option("--features", minimum=1, help="How many; by default 8 for each number.")] = None,
    kind: Annotated[str, option("--kind", help="topk; batchtopk, written as a JumpReLU; or l1.")] = "topk",
    k: Annotated[int, option("-k", minimum=1, help="Active features of a token.")] = 32,
    l1: Annotated[float, option("--l1", help="What activations cost, of the kind l1.")] = 1.0,
    steps: Annotated[int, option("--steps", minimum=1, help="Steps of the training.")] = 2000,
    batch_size: Annotated[int, option("--batch-size", minimum=1, help="Tokens of a step.")] = 512,
    learning_rate: Annotated[float, option("--learning-rate", help="At its highest.")] = 1e-3,
    seed: Annotated[int, option("--seed", minimum=0, help="The same seed gives the same features.")] = 0,
    length: Annotated[
        int | None, option("--length", minimum=2, help="With --text: tokens that the model reads at once; by default 128.")
    ] = None,
    *,
    model_options: ModelGroup,
    output: OutputGroup,
) -> None:
    """Train a sparse autoencoder (SAE) on a model's activations, and show losses and dead features."""
    from glassformer.cli.text_files import TextPieces
    from glassformer.features.files import write_dictionary
    from glassformer.see import fit_features
    from glassformer.see.activation_rows import RecordedRows, SiteRows, activation_rows
    from glassformer.see.recorded_activations import RecordedActivations

    if text is None and recorded is None:
        raise SettingError("what are the features learned from? Give --text FILE or --recorded DIR, one of them.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"--out {str(out)!r} is there already, and not empty. Name a new folder.")
    with prepared_target(out / "training.json"):
        rows: SiteRows
        if recorded is not None:
            folder = RecordedActivations(recorded)
            rows, name = RecordedRows(folder, site), folder.index.model
        else:
            assert text is not None
            pieces = TextPieces(text)
            model = model_options.load()
            rows, name = activation_rows(model, pieces, site, length), model.name
        chosen: dict[str, Any] = {"kind": kind, "k": k, "l1": l1, "steps": steps, "batch_size": batch_size}
        settings = fit_features.FeatureTrainingSettings(
            features=features or 8 * rows.width, learning_rate=learning_rate, seed=seed, **chosen
        )
        with common.explained_interrupt("No features were kept."), bars.stage_bar("reading activations") as progress:
            dictionary, view = fit_features.train_features(
                rows, settings, site=rows.site, model=name, name=out.name, progress=progress
            )
        write_dictionary(dictionary, out)
        view.save(out / "training.html")
        view.save(out / "training.json")
    output.show(view)
    common.note(f"saved in {out}; try: {common.typed('features', model_options.model, '--sae', str(out))} …")
