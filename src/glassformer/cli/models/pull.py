"""`glass models pull`: fetch a model, or verify the local copy."""

from __future__ import annotations

from typing import Annotated

from glassformer.cli import bars, common
from glassformer.cli.command import argument

EXAMPLE = "Example: glass models pull smollm2"


def pull(name: Annotated[str, argument(help="A catalogue name or a hub id.")], as_json: common.JsonOption = False) -> None:
    """Fetch a model into the cache, or verify the one that is there, and print its path."""
    from glassformer.checkpoint import tiktoken_ranks
    from glassformer.checkpoint.locate import pull

    common.log_to_stderr()
    with bars.download_bar() as progress:
        path = pull(name, progress)
    if name == tiktoken_ranks.NAME and (copy := tiktoken_ranks.copy_to_tiktoken_cache()):
        common.note(f"tiktoken finds it as {copy}")
    common.print_json({"name": name, "path": str(path)}) if as_json else common.print_line(path)
