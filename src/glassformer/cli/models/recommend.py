"""`glass models recommend`: which models of the catalogue fit this machine, and how fast they will be."""

from __future__ import annotations

from typing import Annotated, cast

from glassformer.checkpoint.catalogue import ModelTask
from glassformer.cli import bars, common
from glassformer.cli.command import option

EXAMPLE = "Example: glass models recommend   ·   glass models recommend --task embed --json"


def recommend(
    task: Annotated[str, option("--task", help="chat or embed.")] = "chat",
    context: Annotated[
        int, option("--context", minimum=1, help="How many tokens of a conversation room is left for, at most.")
    ] = 8192,
    as_json: common.JsonOption = False,
) -> None:
    """Say which models of the catalogue fit this machine's memory, and how fast they will write, as measured here."""
    from rich.console import Console

    from glassformer.runtime.recommend import recommend

    common.log_to_stderr()
    with bars.counter_bar("measuring this machine, once") as progress:
        found = recommend(cast(ModelTask, task), context=context, progress=progress)
    if as_json:
        common.print_json(found.to_dict())
        return
    Console(highlight=False).print(found)
