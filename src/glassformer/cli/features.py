"""`glass features` without a text, which lists what there is; and `glass train-features`, which writes a folder.

What `glass features` shows of a text is an operation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from glassformer.cli import bars, common
from glassformer.cli.options import ModelGroup
from glassformer.ground.errors import InputError, SettingError
from glassformer.ground.files import prepared_target
from glassformer.ground.operations import about, operation
from glassformer.see import features
from glassformer.see.feature_training import FeatureTraining
from glassformer.steering.library import local_library


@operation(verb="features")
def list_features(model_options: ModelGroup) -> features.FeatureDictionaries:
    """List the autoencoders in GLASS_HOME/features, and whether they fit the model."""
    model = model_options.load()
    common.note_after(f"Looked in {local_library().features}; one that is elsewhere is named by its path: --sae DIR.")
    return model.feature_dictionaries()


@operation(
    section="Features and many texts",
    example="glass train-features --text corpus.txt --site blocks.8.residual --out resid-8   ·   "
    "glass train-features --recorded acts --site blocks.8.mlp.update --features 8192 --kind batchtopk -k 16 --out mlp-8",
    settings_of=features.train_features,
    needs={"length": "text"},
    excludes=(("text", "recorded"),),
)
def train_features(
    model_options: ModelGroup,
    site: str,
    out: Annotated[Path, about("A new folder, which SAELens reads too.", metavar="DIR")],
    text: Annotated[Path | None, about("The text that the model reads, in UTF-8.", metavar="FILE")] = None,
    recorded: Annotated[
        Path | None, about("In place of --text: what `glass activations --out` wrote.", metavar="DIR")
    ] = None,
    site_out: str | None = None,
    length: int | None = None,
    **settings: Any,
) -> FeatureTraining:
    """Train a sparse autoencoder (SAE) on a model's activations, and show losses and dead features."""
    from glassformer.cli.text_files import TextPieces
    from glassformer.features.files import write_dictionary
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
            rows, name = RecordedRows(folder, site, site_out), folder.index.model
        else:
            assert text is not None
            pieces = TextPieces(text)
            model = model_options.load()
            rows, name = activation_rows(model, pieces, site, length, site_out), model.name
        with common.explained_interrupt("No features were kept."), bars.stage_bar("reading activations") as progress:
            dictionary, view = features.features_of_rows(rows, name, out.name, progress, **settings)
        write_dictionary(dictionary, out)
        view.save(out / "training.html")
        view.save(out / "training.json")
    common.note_after(f"saved in {out}; try: {common.typed('features', model_options.model, '--sae', str(out))} …")
    return view
