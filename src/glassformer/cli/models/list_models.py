"""`glass models list`: the catalogue, what of it is on this machine, and its size on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from glassformer.cli import common

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo

    from glassformer.checkpoint.catalogue import CatalogueEntry

EXAMPLE = "Example: glass models list --json"

ModelEntry: TypeAlias = dict[str, Any]


def list_models(as_json: common.JsonOption = False) -> None:
    """List the catalogue, what of it is here and its size, and what else is in the hub's cache."""
    from glassformer.blueprints import model_types
    from glassformer.checkpoint.catalogue import CATALOGUE
    from glassformer.checkpoint.local_cache import hub_models, packed
    from glassformer.checkpoint.locate import hub_repositories

    hub = hub_models()
    catalogue = [_catalogue_entry(name, hub) for name in CATALOGUE]
    in_catalogue = {repository for name in CATALOGUE for repository in hub_repositories(name)}
    others = [_hub_entry(repo) for name, repo in hub.items() if name not in in_catalogue]
    packed_bytes = sum(file.bytes for file in packed())
    if as_json:
        about = "made from models' weights to run them, and made again when needed"
        weights = [_entry("packed weights", "packed", about, "", "here", None, packed_bytes)] if packed_bytes else []
        common.print_json([*catalogue, *others, *weights])
        return
    _print(catalogue, others, packed_bytes)
    families = ", ".join(model_types())
    common.note("Any hub id ('Qwen/Qwen3-0.6B') or path (a folder, a .gguf or .ckpt file) works too.")
    common.note(f"The families of models that can be opened: {families}.")


def _catalogue_entry(name: str, hub: Mapping[str, CachedRepoInfo]) -> ModelEntry:
    """A model of the catalogue. After an interrupted fetch it has a size but no path."""
    from glassformer.checkpoint.catalogue import CATALOGUE
    from glassformer.checkpoint.local_cache import fetched
    from glassformer.checkpoint.locate import hub_repositories, local_path

    entry = CATALOGUE[name]
    size = sum(file.bytes for file in fetched(name))
    size += sum(hub[repository].size_on_disk for repository in hub_repositories(name) if repository in hub)
    return {
        **_entry(name, entry.kind, entry.about, entry.licence, entry.origin, local_path(name), size),
        **(_facts(entry) if entry.config is not None else {}),
    }


def _facts(entry: CatalogueEntry) -> ModelEntry:
    """What a model's config says of its size."""
    from glassformer.blueprints import blueprint, read_config
    from glassformer.quantize.tensor_kinds import weight_bytes

    config = read_config(dict(entry.config or {}))
    model = blueprint(config)
    kinds = dict.fromkeys((entry.stored_as, "Q8_0", "Q4_1"))
    return {
        "parameters": model.parameters,
        "context": config.context,
        "gated": entry.gated,
        "bytes_by_kind": {kind: weight_bytes(model, kind) for kind in kinds},
    }


def _hub_entry(repo: CachedRepoInfo) -> ModelEntry:
    """A model of the hub that is not in the catalogue."""
    from glassformer.checkpoint.locate import local_path

    return _entry(repo.repo_id, "model", "in the hub's cache", "", "hub", local_path(repo.repo_id), repo.size_on_disk)


def _entry(name: str, kind: str, about: str, licence: str, origin: str, path: object, size: int) -> ModelEntry:
    return {
        "name": name,
        "kind": kind,
        "about": about,
        "licence": licence,
        "from": origin,
        "path": str(path) if path else None,
        "bytes": size,
    }


def _print(catalogue: Sequence[ModelEntry], others: Sequence[ModelEntry], packed_bytes: int) -> None:
    from rich.console import Console
    from rich.table import Table

    from glassformer.page.format import format_bytes

    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    table.add_column("name", min_width=max(len(row["name"]) for row in catalogue))  # whole, to be copied
    table.add_column("about", overflow="fold")
    table.add_column("licence")
    table.add_column("from")
    table.add_column("here", justify="right", min_width=max(len(_size(row)) for row in catalogue))
    for row in catalogue:
        table.add_row(row["name"], row["about"], row["licence"], row["from"], _size(row))
    console.print(table)
    if others:
        more = Table("also in the hub's cache", box=None, pad_edge=False)
        more.add_column("here", justify="right")
        for row in others:
            more.add_row(row["name"], _size(row))
        console.print("", more)
    models = sum(row["bytes"] for row in (*catalogue, *others))
    packed = f", {format_bytes(packed_bytes)} of it packed weights (glass models rm --packed)" if packed_bytes else ""
    console.print(f"\ntotal: {format_bytes(models + packed_bytes) or 'nothing'}{packed}")


def _size(row: ModelEntry) -> str:
    """The size on disk, and whether it is complete."""
    from glassformer.page.format import format_bytes

    return f"{format_bytes(row['bytes'])}{'' if row['path'] else ', part'}" if row["bytes"] else ""
