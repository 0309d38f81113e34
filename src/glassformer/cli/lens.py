"""`glass lens`: what each layer would have said, and who wrote the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from glassformer.cli import common
from glassformer.cli.options import CHANGING, SHOWING, WORDING, Changing, Showing, Wording, bundled
from glassformer.errors import InputError

if TYPE_CHECKING:
    from glassformer.views.view import View

EXAMPLE = (
    'Example: glass lens --raw "The capital of France is"   ·   glass lens --raw "The capital of France is" --wrote " Paris"'
)


@bundled
def lens(
    prompt: common.PromptArgument = None,
    token: Annotated[
        list[str] | None, typer.Option("--token", "-t", help="After which token: its position or its text; several times.")
    ] = None,
    wrote: Annotated[
        str | None,
        typer.Option(
            "--wrote", metavar="TEXT", help="Who wrote this next token's score, by block and head; 'best': the best."
        ),
    ] = None,
    against: Annotated[
        str | None, typer.Option("--against", metavar="TEXT", help="With --wrote: who wrote its lead over this token.")
    ] = None,
    target: Annotated[str | None, typer.Option("--target", help="What an encoder-decoder is to write of the text.")] = None,
    new: Annotated[int, typer.Option("-n", "--max-new-tokens", min=0, help="First write so many tokens.")] = 0,
    load: Changing = CHANGING,
    word: Wording = WORDING,
    shown: Showing = SHOWING,
) -> None:
    """Show what each layer would have said next, and when the answer came up; or which blocks and heads wrote it."""
    text = common.read_prompt(prompt)
    if wrote is not None and len(token or ()) > 1:
        raise InputError("--wrote is about one place. Give --token once.")
    if against is not None and wrote is None:
        raise InputError("--against is what a token's score is held against. Pass --wrote too.")
    loaded = load.open()
    reading = word.reading(loaded, text, target, new)
    with common.counting(f"{load.model} reads") as progress:
        found: View
        if wrote is not None:
            found = reading.attribution(token[0] if token else -1, None if wrote == "best" else wrote, against)
        else:
            found = reading.lens(token or (range(len(reading)) if shown.everything else None), progress=progress)
    shown.show(found)
