"""`glass features`: what a sparse autoencoder finds in a text."""

from __future__ import annotations

from typing import Annotated

from glassformer.cli import bars, common
from glassformer.cli.command import option
from glassformer.cli.options import ChangeableModelGroup, OutputGroup, PromptGroup
from glassformer.cli.text_input import read_prompt
from glassformer.ground.errors import InputError

EXAMPLE = (
    'Example: glass features --sae ./resid-8 --raw "The capital of France is"   ·   '
    'glass features --sae params.npz --site blocks.20.residual "how are you?"'
)


def features(
    prompt: common.PromptArgument = None,
    sae: Annotated[str, option("--sae", metavar="DIR", help="A sparse autoencoder or a transcoder, by name or path.")] = "",
    site: Annotated[str | None, option("--site", help="Where it reads, if its files do not say.")] = None,
    site_out: Annotated[str | None, option("--site-out", help="What it predicts, if its files do not say.")] = None,
    best: Annotated[int, option("--best", minimum=1, maximum=1000, help="Features to keep of each token.")] = 10,
    target: Annotated[str | None, option("--target", help="An encoder-decoder's output so far.")] = None,
    new: Annotated[int, option("-n", minimum=0, maximum=100_000, help="Tokens to generate first.")] = 0,
    *,
    model_options: ChangeableModelGroup,
    prompt_options: PromptGroup,
    output: OutputGroup,
) -> None:
    """Show which features of a sparse autoencoder a text activates, and how well they explain it.

    Without --sae, list the autoencoders in GLASS_HOME/features.
    """
    if prompt is not None and not sae:
        raise InputError(
            "whose features? Give --sae DIR: glass features lists those that there are, glass train-features trains one."
        )
    model = model_options.load()
    if not sae:
        from glassformer.see.features import known_dictionaries
        from glassformer.steering.library import local_library

        output.show(known_dictionaries(model, model.library))
        common.note(f"Looked in {local_library().features}; one that is elsewhere is named by its path: --sae DIR.")
        return
    dictionary = model.dictionary(sae, site, site_out)
    reading = prompt_options.read(model, read_prompt(prompt), target, new)
    with bars.spinner("reading features"):
        view = reading.features(dictionary, best)
    output.show(view)
