"""Names to files, files to a configuration and stored tensors. Needs no torch and runs no code from any file.

locate   a name (path, catalogue entry, hub id) to a file or folder, fetching it if it must
open_at  that file or folder to a `Checkpoint`: config, settings and stored tensors, all read lazily
stored   where a tensor's bytes lie, of which kind and shape; memory-mapped, never copied here
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from glassformer.checkpoint.stored import Stored
from glassformer.errors import CheckpointError


class Checkpoint(Protocol):
    """What `Folder` and `Gguf` have in common."""

    path: Path

    @property
    def config(self) -> Mapping[str, Any]:
        """The model's configuration under the names of `config.json`."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """The model's own generation settings; empty when it has none."""

    @property
    def tensors(self) -> Mapping[str, Stored]:
        """The stored tensors under the names of the family's modules."""


def open_at(path: Path) -> Checkpoint:
    """The checkpoint at a path: a `.gguf` file, or a folder in the layout of the hub."""
    from glassformer.checkpoint.folder import Folder
    from glassformer.checkpoint.gguf import Gguf

    if path.is_dir():
        packed = sorted(path.glob("*.gguf"))
        if not packed or (path / "config.json").exists():
            return Folder(path)
        if len(packed) > 1:
            raise CheckpointError(f"{path}: holds {len(packed)} .gguf files. Give the path of one, such as {packed[0]}.")
        return Gguf(packed[0])
    if path.suffix == ".gguf":
        return Gguf(path)
    raise CheckpointError(
        f"{path}: not a checkpoint. Give a folder that holds config.json and model.safetensors, or a .gguf file."
    )


__all__ = ["Checkpoint", "Stored", "open_at"]
