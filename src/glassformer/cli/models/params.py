"""`glass models params`: what a model has learnt, tensor by tensor. Headers alone are read, unless statistics are wanted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glassformer.cli import common
from glassformer.cli.models.working import working
from glassformer.cli.options import SHOWING, Showing, bundled

if TYPE_CHECKING:
    from glassformer.opened import Opened

EXAMPLE = "Example: glass models params smollm2   ·   glass models params --only '*.q_proj.weight' --histogram"


@bundled
def params(
    model: Annotated[
        str, typer.Argument(envvar="GLASS_MODEL", help="A catalogue name, a hub id, or a path.", show_default=True)
    ] = common.DEFAULT_MODEL,
    only: Annotated[
        str | None,
        typer.Option("--only", metavar="PATTERN", help="A name, a module, or a pattern such as '*.q_proj.weight'."),
    ] = None,
    stats: Annotated[
        bool, typer.Option("--stats", help="Read the numbers: mean, spread, least, most, zeros, and what lies far out.")
    ] = False,
    histogram: Annotated[bool, typer.Option("--histogram", help="The same, with a picture of 21 bins.")] = False,
    shown: Showing = SHOWING,
) -> None:
    """Show a model's parameters: shapes, counts, bytes and kinds, summed up by module.

    Weights that are not here are not fetched for that: a config is enough.
    """
    from glassformer.observe.parameters import parameters

    if stats or histogram:
        opened = open_for(model, weights=True)
        with working(f"reading {model}", sizes=False) as progress:
            found = parameters(opened, only=only, stats=stats, histogram=histogram, progress=progress)
    else:
        found = parameters(open_for(model, weights=False), only=only)
    shown.show(found)


def open_for(name: str, weights: bool) -> Opened:
    """A model; with its weights only where they are here, or wanted."""
    from glassformer.checkpoint import open_at
    from glassformer.checkpoint.catalogue import CATALOGUE, Hub
    from glassformer.checkpoint.locate import held, locate
    from glassformer.opened import Opened

    common.listen()
    asked = name
    if not weights and name in CATALOGUE and not Path(name).exists() and held(name) is None:
        source = CATALOGUE[name].sources[0]
        asked = source.repository if isinstance(source, Hub) else name  # a repository gives its config by itself
    with common.progress_bar() as progress:
        path = locate(asked, "model" if weights else "config", progress)
    return Opened(name, open_at(path))
