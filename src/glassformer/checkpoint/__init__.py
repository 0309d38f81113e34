"""Names to files, files to a configuration and stored tensors. Runs no code from any file, and needs no torch but for
pickles.

locate   a name (path, catalogue entry, hub id) to a file or folder, fetching it if it must
open_at  that file or folder to a `Checkpoint`: config, settings and stored tensors, all read lazily
stored_tensors   where a tensor's bytes lie, of which kind and shape; memory-mapped, never copied here
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from glassformer.checkpoint.stored_tensors import StoredTensor
from glassformer.ground.errors import CheckpointError
from glassformer.ground.files import finish_saves


class Checkpoint(Protocol):
    """What `FolderCheckpoint`, `GgufCheckpoint` and `ScratchCheckpoint` have in common."""

    path: Path

    @property
    def config(self) -> Mapping[str, Any]:
        """The model's configuration under the names of `config.json`."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """The model's own generation settings; empty when it has none."""

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """The stored tensors under the names of the family's modules."""


def open_at(path: Path) -> Checkpoint:
    """The checkpoint at a path: a folder in the layout of the hub (or its weights), `.gguf`, or a model from scratch."""
    from glassformer.checkpoint.folder import FolderCheckpoint
    from glassformer.checkpoint.gguf import GgufCheckpoint
    from glassformer.checkpoint.scratch import ScratchCheckpoint
    from glassformer.checkpoint.torch_file import TORCH_SUFFIXES

    if path.is_dir():
        finish_saves(path)
        packed = sorted(path.glob("*.gguf"))
        if not packed or (path / "config.json").exists():
            return FolderCheckpoint(path)
        if len(packed) > 1:
            raise CheckpointError(f"{path}: holds {len(packed)} .gguf files. Give the path of one, such as {packed[0]}.")
        return GgufCheckpoint(packed[0])
    if path.suffix == ".gguf":
        return GgufCheckpoint(path)
    if path.suffix in (".safetensors", ".bin") and (path.parent / "config.json").exists():
        return FolderCheckpoint(path.parent, path.name)
    if path.suffix in TORCH_SUFFIXES:
        return ScratchCheckpoint(path)
    if path.suffix == ".tiktoken":
        raise CheckpointError(f"{path}: the ranks of a tokenizer, not a model. Give the model that they belong to.")
    raise CheckpointError(
        f"{path}: not a checkpoint. Give a folder that holds config.json and model.safetensors, a .gguf file, "
        "or the .ckpt file of a model from scratch."
    )


__all__ = ["Checkpoint", "StoredTensor", "open_at"]
