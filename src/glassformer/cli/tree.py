"""`glass tree`: the likeliest ways on from a prompt, and how likely each is."""

from __future__ import annotations

from typing import Annotated

import typer

from glassformer.cli import common
from glassformer.cli.options import CHANGING, SHOWING, WORDING, Changing, Showing, Wording, bundled
from glassformer.errors import InputError

EXAMPLE = (
    'Example: glass tree --raw "Today" --width 3 --depth 3   ·   glass tree --raw "Today" --at 0.2   ·   '
    'glass tree --raw "The dog" --force " flew"'
)


@bundled
def tree(
    prompt: common.PromptArgument = None,
    width: Annotated[int, typer.Option("--width", "-w", help="How many tokens follow each one: the likeliest.")] = 3,
    depth: Annotated[int, typer.Option("--depth", "-d", help="How many tokens a path has.")] = 3,
    at: Annotated[
        str | None, typer.Option("--at", metavar="N.N", help="Grow on from this node, by as many levels: 0.2 is the third "
                                                             "child of the first.")
    ] = None,
    force: Annotated[
        str | None, typer.Option("--force", metavar="TEXT", help="Let this text follow, at the node of --at or at the root, "
                                                                 "and grow on from it.")
    ] = None,
    load: Changing = CHANGING,
    word: Wording = WORDING,
    shown: Showing = SHOWING,
) -> None:  # fmt: skip
    """Show what could follow a text: the likeliest tokens, what could follow each of these, and how likely each path is."""
    text = common.read_prompt(prompt)
    place = numbers(at)
    loaded = load.open()
    with common.counting(f"{load.model} grows") as progress:
        found = loaded.tree(text, width=width, depth=depth, progress=progress, **word.how())
        if force is not None:
            found = found.forced(place, force)
            found = found if found.at(*found.focus).finish else found.grown(found.focus, progress=progress)
        elif at is not None:
            found = found.grown(place, progress=progress)
    shown.show(found)


def numbers(at: str | None) -> list[int]:
    """A path as it is written."""
    parts = at.split(".") if at else []
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise InputError(f"--at {at!r} is not the numbers of children, joined by dots, such as 0.2.")
    return [int(part) for part in parts]
