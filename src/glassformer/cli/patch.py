"""`glass patch`: activation patching between two texts."""

from __future__ import annotations

from typing import Annotated, Any, cast

from glassformer.cli import bars
from glassformer.cli.command import argument, option
from glassformer.cli.options import (
    CHANGEABLE_MODEL_GROUP,
    OUTPUT_GROUP,
    PROMPT_GROUP,
    ChangeableModelGroup,
    OutputGroup,
    PromptGroup,
)

PARTS = ("residual", "attention", "mlp", "heads", "query", "key", "value", "pattern")
EXAMPLE = (
    'Example: glass patch --raw "The capital of France is" "The capital of Italy is"   ·   '
    'glass patch --raw "The capital of France is" "The capital of Italy is" --part heads'
)


def patch(
    first: Annotated[str, argument(help="The text whose activations are patched in.", default_shown=False)],
    second: Annotated[str, argument(help="The text they are patched into, of equal length.", default_shown=False)],
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
    model_options: ChangeableModelGroup = CHANGEABLE_MODEL_GROUP,
    prompt_options: PromptGroup = PROMPT_GROUP,
    output: OutputGroup = OUTPUT_GROUP,
) -> None:
    """Patch one text's activations into another's forward pass, place by place, and see which restore its answer."""
    model = model_options.load()
    tokens: dict[str, Any] = {"answer": answer, "against": against, "target": target}
    with bars.counter_bar(f"patching {model_options.model}") as progress:
        view = model.patch(first, second, cast(Any, part), token, **tokens, **prompt_options.keywords(), progress=progress)
    output.show(view)
