"""`glass attribution-patch`: what patching would give at every place, estimated by gradients."""

from __future__ import annotations

from typing import Annotated, Any, cast

from glassformer.cli import bars
from glassformer.cli.command import argument, option
from glassformer.cli.options import ChangeableModelGroup, OutputGroup, PromptGroup
from glassformer.cli.patch import PARTS

EXAMPLE = (
    'Example: glass attribution-patch --raw "The capital of France is" "The capital of Italy is" --part heads   ·   '
    'glass attribution-patch --raw "The capital of France is" "The capital of Italy is" --check'
)


def attribution_patch(
    first: Annotated[str, argument(help="The text whose activations would be patched in.", default_shown=False)],
    second: Annotated[str, argument(help="The text they would be patched into, of equal length.", default_shown=False)],
    part: Annotated[str, option("--part", help=f"What is patched: {', '.join(PARTS[:-1])} or {PARTS[-1]}.")] = "residual",
    token: Annotated[
        list[str] | None,
        option("--token", "-t", help="Only at this position, or token of the second text; repeatable."),
    ] = None,
    answer: Annotated[
        str | None, option(help="The token to restore, by text or #id; by default the first text's best.")
    ] = None,
    against: Annotated[str | None, option(help="The token it is compared with; by default the second text's best.")] = None,
    target: Annotated[str | None, option("--target", help="An encoder-decoder's output so far.")] = None,
    check: Annotated[bool, option("--check", help="Patch too, and show how far off the estimate is.")] = False,
    *,
    model_options: ChangeableModelGroup,
    prompt_options: PromptGroup,
    output: OutputGroup,
) -> None:
    """Estimate what patching would restore at every place, all at once, by one backward pass."""
    model = model_options.load()
    tokens: dict[str, Any] = {"answer": answer, "against": against, "target": target}
    with bars.counter_bar(f"patching {model_options.model}") as progress:
        view = model.attribution_patch(
            first, second, cast(Any, part), token, **tokens, check=check, **prompt_options.keywords(), progress=progress
        )
    output.show(view)
