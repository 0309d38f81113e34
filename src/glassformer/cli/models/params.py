"""`glass models params`: a model's parameters, tensor by tensor. Only headers are read, unless statistics are asked for."""

from __future__ import annotations

from typing import Annotated

from glassformer.cli import bars, common
from glassformer.cli.command import argument, option
from glassformer.cli.model_files import open_files
from glassformer.cli.options import OutputGroup

EXAMPLE = "Example: glass models params smollm2   ·   glass models params --only '*.q_proj.weight' --histogram"


def params(
    model: Annotated[
        str, argument(envvar="GLASS_MODEL", help="A catalogue name, a hub id, or a path.", default_shown=True)
    ] = common.DEFAULT_MODEL,
    only: Annotated[
        str | None,
        option("--only", metavar="PATTERN", help="A name, a module, or a pattern such as '*.q_proj.weight'."),
    ] = None,
    stats: Annotated[
        bool, option("--stats", help="Read the values: mean, deviation, extremes, zeros and outliers.")
    ] = False,
    histogram: Annotated[bool, option("--histogram", help="The same, with a histogram of 21 bins.")] = False,
    *,
    output: OutputGroup,
) -> None:
    """Show a model's parameters: shapes, counts, bytes and data types, summed up by module.

    Weights that are not here are not fetched: the config is enough.
    """
    from glassformer.see.parameters import parameters

    if stats or histogram:
        opened = open_files(model, weights=True)
        with bars.work_bar(f"reading {model}", in_bytes=False) as progress:
            view = parameters(opened, only=only, stats=stats, histogram=histogram, progress=progress)
    else:
        view = parameters(open_files(model, weights=False), only=only)
    output.show(view)
