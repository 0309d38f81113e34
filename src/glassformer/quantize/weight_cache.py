"""An opened model's tensors in another kind, packed once into a file below `home()` and mapped from there ever after.

The file is a GGUF with the checkpoint's own tensor names; what is not packed keeps coming from the checkpoint. Its name says
which files it was made from, what they held, and by which version of the rules: when any of that changes it is made anew,
and the old one goes. It ends in a checksum, which is compared whenever it is opened.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from glassformer.checkpoint.content_digest import content_digest, is_intact, seal
from glassformer.checkpoint.gguf import GgufCheckpoint
from glassformer.checkpoint.gguf_writer import OutputTensor, rows_in_layout, write_gguf
from glassformer.checkpoint.quantization import check_kind, kind_text
from glassformer.checkpoint.stored_tensors import Layout, MappedFile, RowPermutation, StoredTensor, Transposed
from glassformer.ground.errors import CheckpointError, WriteError
from glassformer.ground.files import home, remove_abandoned
from glassformer.ground.progress import NamedProgress
from glassformer.model_files import ModelFiles
from glassformer.quantize.tensor_kinds import Role, check_quantizable, kind_for, model_label, stored_roles

note = logging.getLogger("glassformer").warning
VERSION = 3  # of the rules: counted up when the same weights would be packed otherwise
ARCHITECTURE = "glassformer"  # no other reader is meant


def requantized(opened: ModelFiles, kind: str, progress: NamedProgress | None = None) -> ModelFiles:
    """A model with its weights in another kind."""
    return replace(opened, replacement_tensors=requantize(opened, kind, progress), replacement_kind=kind)


def requantize(opened: ModelFiles, kind: str, progress: NamedProgress | None = None) -> Mapping[str, StoredTensor]:
    """The tensors of a model under the names that they have, those of products and tables in another kind."""
    if opened.packed and opened.kind == check_kind(kind):
        return opened.tensors
    kind, roles = check_quantizable(opened, kind), stored_roles(opened)
    candidates = {id(tensor): tensor for tensor in opened.tensors.values() if id(tensor) in roles}
    planned = {key: plan for key, tensor in candidates.items() if (plan := _plan(tensor, roles[key], kind))}
    if not planned:
        return opened.tensors
    path = _cache_path(model_label(opened), candidates.values(), kind)
    if not _is_complete(path):
        message = f"packing {model_label(opened)} as {kind}"
        report = None if progress is None else lambda _, so_far, total: progress(message, so_far, total)
        _write(path, list(planned.values()), report)
    raw = GgufCheckpoint(path).raw
    packed = {key: _with_family_shape(raw[candidates[key].name], candidates[key], roles[key]) for key in planned}
    tables = {key: tensor for key, tensor in packed.items() if roles[key] == "table"}
    if (text := kind_text(kind, [raw[candidates[key].name] for key in planned if key not in tables])) != kind:
        note(f"{model_label(opened)}: its weights are {text}.")
    tensors = {}
    for name, tensor in opened.tensors.items():
        twin = next((key for key in tables if id(tensor) not in roles and tensor.same_bytes(candidates[key])), id(tensor))
        tensors[name] = packed.get(twin, tensor)  # a table that is stored twice stays one tensor
    return tensors


def _packing_layout(stored: StoredTensor, role: Role) -> Layout | None:
    """How rows are laid for packing: each is what one output of a product is summed over, in the checkpoint's order."""
    if role == "columns":
        return Transposed()
    return stored.layout if isinstance(stored.layout, RowPermutation) else None


def _plan(stored: StoredTensor, role: Role, kind: str) -> OutputTensor | None:
    """A tensor as the cached file has it; None where it stays as it is."""
    layout = _packing_layout(stored, role)
    shape = stored.shape if layout is None else layout.stored_shape(stored.shape)
    target = kind_for(role, shape[-1], kind)
    if target is None or target == stored.kind:
        return None
    return OutputTensor(stored.name, target, shape, partial(rows_in_layout, stored, layout))


def _with_family_shape(packed: StoredTensor, stored: StoredTensor, role: Role) -> StoredTensor:
    """A tensor of the cached file with the shape that the family's has, and the layout in which it was packed."""
    return replace(packed, shape=stored.shape, layout=_packing_layout(stored, role))


def _cache_path(name: str, stored: Iterable[StoredTensor], kind: str) -> Path:
    """Where the file lies: the same for the same source, as long as that does not change."""
    files = {id(tensor.file.mapped or tensor.file): tensor.file for tensor in stored}.values()
    source = _digest(sorted({str(file.path.resolve()) for file in files}))
    state = _digest([VERSION, [content_digest(file) for file in sorted(files, key=lambda file: file.path)]])
    return home() / "packed" / f"{name}-{source}" / f"{kind.lower()}-{state}.gguf"


def _is_complete(path: Path) -> bool:
    """Whether the file is there, and still what was written."""
    if not path.exists():
        return False
    with suppress(CheckpointError):
        if is_intact(MappedFile(path)):
            return True
    note(f"{path}: damaged; it is packed anew.")
    return False


def _digest(what: object) -> str:
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:12]


def _write(path: Path, tensors: list[OutputTensor], progress: NamedProgress | None) -> None:
    """Write the file, and remove what was made of the same source in an earlier state."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(
            f"{path.parent}: cannot be made ({error.strerror}). Fix that, or set GLASS_HOME to another folder."
        ) from error
    remove_abandoned(path.parent, ".*.part")
    write_gguf(path, ARCHITECTURE, {}, tensors, progress, finish=seal)
    for old in path.parent.glob(f"{path.name.partition('-')[0]}-*.gguf"):
        if old != path:
            with suppress(OSError):  # in use, on some systems
                old.unlink()
