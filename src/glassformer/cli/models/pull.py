"""`glass models pull`: fetch a model, or check the one that is here."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from glassformer.cli import common

EXAMPLE = "Example: glass models pull smollm2"


def pull(
    name: Annotated[str, typer.Argument(help="A catalogue name or a hub id.")], as_json: common.JsonOption = False
) -> None:
    """Fetch a model into the cache, or check the one that is there, and say where it lies."""
    from glassformer.checkpoint import ranks
    from glassformer.checkpoint.locate import pull

    common.listen()
    with common.progress_bar() as progress:
        path = pull(name, progress)
    if name == ranks.NAME and (copy := ranks.place()):
        common.note(f"tiktoken finds it as {copy}")
    print(json.dumps({"name": name, "path": str(path)}) if as_json else path)
