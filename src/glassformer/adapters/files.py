"""An adapter's files to an `Adapter`: a folder of peft, or a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glassformer.adapters import gguf_adapter, peft
from glassformer.adapters.adapter import Adapter
from glassformer.ground.errors import CheckpointError


def is_adapter(path: Path) -> bool:
    """Whether a folder holds an adapter."""
    return path.is_dir() and (path / peft.CONFIG).exists()


def read_adapter(path: Path, base_config: Mapping[str, Any]) -> Adapter:
    """The adapter at a path; `base_config`: of the model that it is for, whose heads say how GGUF has ordered its rows."""
    if is_adapter(path):
        return peft.read_folder(path)
    if path.suffix == ".gguf" and path.is_file():
        return gguf_adapter.read_file(path, base_config)
    raise CheckpointError(
        f"{path}: not an adapter. Give a folder that holds {peft.CONFIG} and {peft.WEIGHTS[0]}, or a .gguf "
        "file whose general.type is 'adapter'."
    )
