"""An opened model's tensors in another kind, packed once into a file below `home()` and mapped from there ever after.

The file is a GGUF with the checkpoint's own tensor names; what is not packed keeps coming from the checkpoint. Its name says
which files it was made from, how long and how old they were, and by which version of the rules: when any of that changes it
is made anew, and the old one goes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from glassformer.checkpoint.gguf import GgufCheckpoint
from glassformer.checkpoint.gguf_writer import OutputTensor, remove_stale_parts, rows_in_layout, stored_rows, write_gguf
from glassformer.checkpoint.locate import home
from glassformer.checkpoint.quantization import check_kind
from glassformer.checkpoint.stored_tensors import Layout, StoredTensor, Transposed
from glassformer.errors import CheckpointError
from glassformer.opened import OpenedModel
from glassformer.progress import NamedProgress
from glassformer.quantize.tensor_kinds import Role, checked, kind_for, label, stored_roles

VERSION = 1  # of the rules: counted up when the same weights would be packed otherwise
ARCHITECTURE = "glassformer"  # no other reader is meant


def requantize(opened: OpenedModel, kind: str, progress: NamedProgress | None = None) -> Mapping[str, StoredTensor]:
    """The tensors of a model under the names that they have, those of products and tables in another kind."""
    if opened.packed and opened.kind == check_kind(kind):
        return opened.tensors
    kind, known = checked(opened, kind), stored_roles(opened)
    chosen = {id(one): one for one in opened.tensors.values() if id(one) in known}
    planned = {key: plan for key, one in chosen.items() if (plan := _plan(one, known[key], kind))}
    if not planned:
        return opened.tensors
    path = _place(label(opened), chosen.values(), kind)
    if not path.exists():
        said = f"packing {label(opened)} as {kind}"
        tell = None if progress is None else lambda _, so_far, total: progress(said, so_far, total)
        _make(path, list(planned.values()), tell)
    raw = GgufCheckpoint(path).raw
    packed = {key: _as_it_was(raw[chosen[key].name], chosen[key], known[key]) for key in planned}
    tables = {key: one for key, one in packed.items() if known[key] == "table"}
    found = {}
    for name, one in opened.tensors.items():
        twin = next((key for key in tables if id(one) not in known and one.same_bytes(chosen[key])), id(one))
        found[name] = packed.get(twin, one)  # a table that is stored twice stays one tensor
    return found


def _turned(stored: StoredTensor, role: Role) -> Layout | None:
    """How rows are laid for packing: a product's columns become rows, unless the file has them so already."""
    return Transposed() if role == "columns" and stored.layout is None else None


def _plan(stored: StoredTensor, role: Role, kind: str) -> OutputTensor | None:
    """A tensor as the cached file has it; None where it stays as it is."""
    turned = _turned(stored, role)
    layout = turned or stored.layout
    shape = stored.shape if layout is None else layout.stored_shape(stored.shape)
    wanted = kind_for(role, shape[-1], kind)
    if wanted is None or wanted == stored.kind:
        return None
    source = partial(stored_rows, stored) if turned is None else partial(rows_in_layout, stored, turned)
    return OutputTensor(stored.name, wanted, shape, source)


def _as_it_was(packed: StoredTensor, stored: StoredTensor, role: Role) -> StoredTensor:
    """A tensor of the cached file with the shape and the layout that the checkpoint's has."""
    return replace(packed, shape=stored.shape, layout=_turned(stored, role) or stored.layout)


def _place(name: str, stored: Iterable[StoredTensor], kind: str) -> Path:
    """Where the file lies: the same for the same source, as long as that does not change."""
    files = sorted({one.file.path.resolve() for one in stored})
    source = _digest([str(file) for file in files])
    state = _digest([VERSION, [(file.stat().st_size, file.stat().st_mtime_ns) for file in files]])
    return home() / "packed" / f"{name}-{source}" / f"{kind.lower()}-{state}.gguf"


def _digest(what: object) -> str:
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:12]


def _make(path: Path, tensors: list[OutputTensor], progress: NamedProgress | None) -> None:
    """Write the file, and remove what was made of the same source in an earlier state."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"{path.parent}: cannot be made ({error.strerror}). Mend that, or set GLASS_HOME to another folder."
        ) from error
    remove_stale_parts(path.parent, ".*.part")
    write_gguf(path, ARCHITECTURE, {}, tensors, progress)
    for old in path.parent.glob(f"{path.name.partition('-')[0]}-*.gguf"):
        if old != path:
            with suppress(OSError):  # in use, on some systems
                old.unlink()
