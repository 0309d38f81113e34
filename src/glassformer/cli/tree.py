"""`glass tree`: the likeliest ways on from a prompt, and how likely each is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from glassformer.cli import common
from glassformer.errors import InputError

if TYPE_CHECKING:
    from glassformer.observe.tree import Tell

EXAMPLE = (
    'Example: glass tree --raw "Today" --width 3 --depth 3   ·   glass tree --raw "Today" --at 0.2   ·   '
    'glass tree --raw "The dog" --force " flew"'
)


def tree(
    prompt: common.PromptArgument = None,
    model: common.ModelOption = common.DEFAULT_MODEL,
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
    raw: common.RawOption = False,
    system: common.SystemOption = None,
    template: common.TemplateOption = None,
    executor: common.ExecutorOption = "auto",
    weights: common.WeightsOption = None,
    cache: common.CacheOption = None,
    dtype: common.DtypeOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Show a large tree whole.")] = False,
    as_json: common.JsonOption = False,
) -> None:  # fmt: skip
    """Show what could follow a text: the likeliest tokens, what could follow each of these, and how likely each path is."""
    text = common.read_prompt(prompt)
    place = numbers(at)
    variables = common.variables(template)
    loaded = common.open_model(model, dtype=dtype, executor=executor, weights=weights, cache=cache)
    with growing(model) as tell:
        found = loaded.tree(text, width=width, depth=depth, raw=raw, system=system, template=variables, tell=tell)
        if force is not None:
            found = found.forced(place, force)
            found = found if found.at(*found.focus).finish else found.grown(found.focus, tell=tell)
        elif at is not None:
            found = found.grown(place, tell=tell)
    common.show(found, as_json=as_json, everything=everything)


def numbers(at: str | None) -> list[int]:
    """A path as it is written."""
    parts = at.split(".") if at else []
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise InputError(f"--at {at!r} is not the numbers of children, joined by dots, such as 0.2.")
    return [int(part) for part in parts]


@contextmanager
def growing(name: str) -> Iterator[Tell]:
    """A bar while a tree grows; none off a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("nodes"))
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(f"{name} reads the prompt", total=None)
        yield lambda done, total: bar.update(task, description=f"{name} grows", completed=done, total=total)
