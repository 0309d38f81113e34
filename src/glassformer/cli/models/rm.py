"""`glass models rm`: remove a model that was fetched, and what was packed from it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from glassformer.cli import common
from glassformer.errors import GlassError, InputError

if TYPE_CHECKING:
    from glassformer.checkpoint.kept import Kept

EXAMPLE = "Example: glass models rm smollm2   ·   glass models rm --packed --yes"
SHOWN = 10  # things that are listed before they go


def rm(
    name: Annotated[
        str | None, typer.Argument(help="A catalogue name or a hub id, as 'glass models list' has it.", show_default=False)
    ] = None,
    packed: Annotated[
        bool, typer.Option("--packed", help="Only what was packed from models, all of it; it is made again when needed.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: common.JsonOption = False,
) -> None:
    """Remove a model from the cache, with what was packed from it. It can be fetched again."""
    from glassformer.checkpoint import kept
    from glassformer.page.format import storage

    if (name is None) == (not packed):
        raise InputError("say what to remove: a model's name, or --packed for what was packed from all models.")
    found = kept.packed() if name is None else (*kept.kept(name), *_packed_from(name))
    if not found:
        common.note("Nothing is packed, so there is nothing to remove.")
    else:
        room = storage(sum(one.bytes for one in found)) or "0 B"
        if not yes:
            _ask(found, f"Remove {room}?")
        kept.remove(found)
        common.note(f"{room} removed.")
        if name is not None and (left := kept.packed()):
            room = storage(sum(one.bytes for one in left))
            common.note(f"What was packed from models, this one or others, takes {room}: glass models rm --packed")
    if as_json:
        print(json.dumps([{"name": o.name, "kind": o.where, "path": str(o.path), "bytes": o.bytes} for o in found]))
        return
    for one in found:
        print(one.path)


def _ask(found: Sequence[Kept], question: str) -> None:
    """Show what will go, and go on only after a yes."""
    from glassformer.page.format import storage

    if not sys.stdin.isatty():
        raise InputError("removing asks first, and here is no terminal to ask on. Say --yes.")
    for one in found[:SHOWN]:
        common.note(f"{storage(one.bytes) or '0 B':>9}  {one.path}")
    if len(found) > SHOWN:
        common.note(f"{storage(sum(one.bytes for one in found[SHOWN:])):>9}  in {len(found) - SHOWN} more files")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise InputError("nothing was removed.")


def _packed_from(name: str) -> tuple[Kept, ...]:
    """What was packed from a model in another kind, as far as it can be opened."""
    from glassformer.checkpoint import kept, open_at
    from glassformer.checkpoint.locate import held
    from glassformer.opened import Opened
    from glassformer.quantize.kinds import stored_roles

    if not kept.packed() or (path := held(name)) is None:
        return ()
    try:
        opened = Opened(name, open_at(path))
        known = stored_roles(opened)
        return kept.packed_from(one.file.path for one in opened.tensors.values() if id(one) in known)
    except GlassError:  # what cannot be opened was not packed either
        return ()
