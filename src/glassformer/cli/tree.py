"""`glass tree`: the likeliest continuations of a prompt, and how likely each is."""

from __future__ import annotations

from typing import Annotated

from glassformer.cli import bars, common
from glassformer.cli.command import option
from glassformer.cli.options import ChangeableModelGroup, OutputGroup, PromptGroup
from glassformer.cli.text_input import read_prompt
from glassformer.ground.errors import InputError

EXAMPLE = (
    'Example: glass tree --raw "Today" --width 3 --depth 3   ·   glass tree --raw "Today" --at 0.2   ·   '
    'glass tree --raw "The dog" --force " flew"'
)


def tree(
    prompt: common.PromptArgument = None,
    width: Annotated[int, option("--width", "-w", help="How many tokens follow each token.")] = 3,
    depth: Annotated[int, option("--depth", "-d", help="How many tokens a path has.")] = 3,
    at: Annotated[
        str | None, option("--at", metavar="N.N", help="Grow this node further: 0.2 is the third child of the first.")
    ] = None,
    force: Annotated[
        str | None,
        option("--force", metavar="TEXT", help="Append this text at the node of --at or at the root, and grow it."),
    ] = None,
    *,
    model_options: ChangeableModelGroup,
    prompt_options: PromptGroup,
    output: OutputGroup,
) -> None:
    """Show what could follow a text: the likeliest tokens, what could follow each, and how likely each path is."""
    text = read_prompt(prompt)
    path = parse_path(at)
    model = model_options.load()
    with bars.counter_bar(f"growing the tree of {model_options.model}") as progress:
        view = model.tree(text, width=width, depth=depth, progress=progress, **prompt_options.keywords())
        if force is not None:
            view = view.forced(path, force)
            view = view if view.at(*view.focus).finish else view.grown(view.focus, progress=progress)
        elif at is not None:
            view = view.grown(path, progress=progress)
    output.show(view)


def parse_path(at: str | None) -> list[int]:
    """The value of --at, such as 0.2."""
    numbers = at.split(".") if at else []
    if not all(number.isascii() and number.isdigit() for number in numbers):
        raise InputError(f"--at {at!r} is not the numbers of children, joined by dots, such as 0.2.")
    return [int(number) for number in numbers]
