"""`glass models list`: what can be run by a short name, what is here, and how much room it takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from glassformer.cli import common

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo

EXAMPLE = "Example: glass models list --json"

Listed: TypeAlias = dict[str, Any]


def list_models(as_json: common.JsonOption = False) -> None:
    """The catalogue, what of it is here and how large, and what else lies in the hub's cache."""
    from glassformer.checkpoint.catalogue import CATALOGUE
    from glassformer.checkpoint.kept import hub_models, packed
    from glassformer.checkpoint.locate import repositories

    hub = hub_models()
    known = [_known(name, hub) for name in CATALOGUE]
    named = {repository for name in CATALOGUE for repository in repositories(name)}
    others = [_other(repo) for name, repo in hub.items() if name not in named]
    tiles = sum(one.bytes for one in packed())
    if as_json:
        about = "made of other models' weights to run them, and made again when needed"
        made = [_listed("packed weights", "packed", about, "", "here", None, tiles)] if tiles else []
        print(json.dumps([*known, *others, *made], ensure_ascii=False))
        return
    _print(known, others, tiles)
    common.note("Any hub id ('Qwen/Qwen3-0.6B') or path (a folder, a .gguf or .ckpt file) works too.")


def _known(name: str, hub: Mapping[str, CachedRepoInfo]) -> Listed:
    """A model of the catalogue. It may take room and have no path: when a fetch was broken off."""
    from glassformer.checkpoint.catalogue import CATALOGUE
    from glassformer.checkpoint.kept import fetched
    from glassformer.checkpoint.locate import held, repositories

    entry = CATALOGUE[name]
    room = sum(one.bytes for one in fetched(name)) + sum(hub[one].size_on_disk for one in repositories(name) if one in hub)
    return _listed(name, entry.kind, entry.about, entry.licence, entry.origin, held(name), room)


def _other(repo: CachedRepoInfo) -> Listed:
    """A model of the hub that has no short name."""
    from glassformer.checkpoint.locate import held

    return _listed(repo.repo_id, "model", "in the hub's cache", "", "hub", held(repo.repo_id), repo.size_on_disk)


def _listed(name: str, kind: str, about: str, licence: str, origin: str, path: object, room: int) -> Listed:
    return {
        "name": name,
        "kind": kind,
        "about": about,
        "licence": licence,
        "from": origin,
        "path": str(path) if path else None,
        "bytes": room,
    }


def _print(known: Sequence[Listed], others: Sequence[Listed], tiles: int) -> None:
    from rich.console import Console
    from rich.table import Table

    from glassformer.page.format import storage

    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    table.add_column("name", min_width=max(len(row["name"]) for row in known))  # it is to be copied
    table.add_column("about", overflow="fold")
    table.add_column("licence")
    table.add_column("from")
    table.add_column("here", justify="right", min_width=max(len(_here(row)) for row in known))
    for row in known:
        table.add_row(row["name"], row["about"], row["licence"], row["from"], _here(row))
    console.print(table)
    if others:
        more = Table("also in the hub's cache", box=None, pad_edge=False)
        more.add_column("here", justify="right")
        for row in others:
            more.add_row(row["name"], _here(row))
        console.print("", more)
    models = sum(row["bytes"] for row in (*known, *others))
    packed = f", {storage(tiles)} of it packed weights (glass models rm --packed)" if tiles else ""
    console.print(f"\nkept in all: {storage(models + tiles) or 'nothing'}{packed}")


def _here(row: Listed) -> str:
    """How large it is, and whether that is all of it."""
    from glassformer.page.format import storage

    return f"{storage(row['bytes'])}{'' if row['path'] else ', part'}" if row["bytes"] else ""
