"""`glass models rm`: remove a fetched model, and the weights packed from it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from glassformer.cli import common
from glassformer.cli.command import argument, option
from glassformer.ground.errors import GlassError, InputError

if TYPE_CHECKING:
    from glassformer.checkpoint.local_cache import CachedItem

EXAMPLE = "Example: glass models rm smollm2   ·   glass models rm --packed --yes"
LISTED_FILES = 10  # before a question


def rm(
    name: Annotated[
        str | None, argument(help="A catalogue name or a hub id, as in 'glass models list'.", default_shown=False)
    ] = None,
    packed: Annotated[
        bool, option("--packed", help="Only the packed weights of all models; they are made again when needed.")
    ] = False,
    yes: Annotated[bool, option("--yes", "-y", help="Do not ask.")] = False,
    as_json: common.JsonOption = False,
) -> None:
    """Remove a model and its packed weights from the cache. It can be fetched again."""
    from glassformer.checkpoint import local_cache
    from glassformer.page.format import format_bytes

    if (name is None) == (not packed):
        raise InputError("name what to remove: a model, or --packed for the packed weights of all models.")
    files = local_cache.packed() if name is None else (*local_cache.cached_items(name), *_packed_from(name))
    if not files:
        common.note("There are no packed weights to remove.")
    else:
        size = format_bytes(sum(file.bytes for file in files)) or "0 B"
        if not yes:
            _confirm(files, f"Remove {size}?")
        local_cache.remove(files)
        common.note(f"{size} removed.")
        if name is not None and (left := local_cache.packed()):
            size = format_bytes(sum(file.bytes for file in left))
            common.note(f"Packed weights of this and other models still take {size}: glass models rm --packed")
    if as_json:
        common.print_json([{"name": f.name, "kind": f.where, "path": str(f.path), "bytes": f.bytes} for f in files])
        return
    for file in files:
        common.print_line(file.path)


def _confirm(files: Sequence[CachedItem], question: str) -> None:
    """List what will be removed, and raise unless the answer is yes."""
    from glassformer.page.format import format_bytes

    if not sys.stdin.isatty():
        raise InputError("removing asks first, and there is no terminal to ask on. Pass --yes.")
    for file in files[:LISTED_FILES]:
        common.note(f"{format_bytes(file.bytes) or '0 B':>9}  {file.path}")
    if more := files[LISTED_FILES:]:
        common.note(f"{format_bytes(sum(file.bytes for file in more)):>9}  in {len(more)} more files")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise InputError("nothing was removed.")


def _packed_from(name: str) -> tuple[CachedItem, ...]:
    """The packed weights of a model, if it can be opened."""
    from glassformer.checkpoint import local_cache, open_at
    from glassformer.checkpoint.locate import local_path
    from glassformer.model_files import ModelFiles
    from glassformer.quantize.tensor_kinds import stored_roles

    if not local_cache.packed() or (path := local_path(name)) is None:
        return ()
    try:
        opened = ModelFiles(name, open_at(path))
        roles = stored_roles(opened)
        return local_cache.packed_from(tensor.file.path for tensor in opened.tensors.values() if id(tensor) in roles)
    except GlassError:  # a model that cannot be opened was not packed either
        return ()
