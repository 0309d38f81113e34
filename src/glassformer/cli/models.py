"""`glass models`: what can be run, and fetching it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from glassformer.cli import common

app = typer.Typer(help="List and fetch models.", no_args_is_help=True)


@app.command("list", epilog="Example: glass models list --json")
def list_models(as_json: common.JsonOption = False) -> None:
    """The catalogue, and what of it is here."""
    from rich.console import Console
    from rich.table import Table

    from glassformer.checkpoint.catalogue import CATALOGUE
    from glassformer.checkpoint.locate import held

    rows = [(name, entry, held(name)) for name, entry in CATALOGUE.items()]
    if as_json:
        listed = [
            {
                "name": name,
                "kind": entry.kind,
                "about": entry.about,
                "licence": entry.licence,
                "from": entry.origin,
                "path": str(path) if path else None,
            }
            for name, entry, path in rows
        ]
        print(json.dumps(listed, ensure_ascii=False))
        return
    table = Table("name", "about", "licence", "from", "here", box=None, pad_edge=False)
    for name, entry, path in rows:
        table.add_row(name, entry.about, entry.licence, entry.origin, "yes" if path else "")
    Console().print(table)
    common.note("Any hub id ('Qwen/Qwen3-0.6B') or path (a folder, a .gguf or .ckpt file) works too.")


@app.command("pull", epilog="Example: glass models pull smollm2")
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
