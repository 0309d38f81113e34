"""`glass patch`: which places inside make one text lead elsewhere than another."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from glassformer.cli import common
from glassformer.cli.options import CHANGING, SHOWING, WORDING, Changing, Showing, Wording, bundled

PARTS = ("residual", "attention", "mlp", "heads", "query", "key", "value", "pattern")
EXAMPLE = (
    'Example: glass patch --raw "The capital of France is" "The capital of Italy is"   ·   '
    'glass patch --raw "The capital of France is" "The capital of Italy is" --part heads'
)


@bundled
def patch(
    first: Annotated[str, typer.Argument(help="The text that the patches come from.", show_default=False)],
    second: Annotated[str, typer.Argument(help="The text that they are put into: as many tokens.", show_default=False)],
    part: Annotated[
        str, typer.Option("--part", help=f"What is carried over: {', '.join(PARTS[:-1])} or {PARTS[-1]}.")
    ] = "residual",
    token: Annotated[
        list[str] | None,
        typer.Option("--token", "-t", help="Only here: a position, or a token of the second text; several times."),
    ] = None,
    answer: Annotated[
        str | None, typer.Option(help="The token to bring back, by text or #id; else what the first text leads to.")
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="The one it is held against; else what the second text leads to.")
    ] = None,
    target: Annotated[str | None, typer.Option("--target", help="What an encoder-decoder has written already.")] = None,
    load: Changing = CHANGING,
    word: Wording = WORDING,
    shown: Showing = SHOWING,
) -> None:
    """Carry one text's inner values into another's pass, place by place, and see which of them bring its answer back."""
    loaded = load.open()
    asked: dict[str, Any] = {"answer": answer, "against": against, "target": target, **word.how()}
    with common.counting(f"{load.model} is patched") as progress:
        found = loaded.patch(first, second, cast(Any, part), token, **asked, progress=progress)
    shown.show(found)
