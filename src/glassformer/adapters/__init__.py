"""Adapters: small files that change a base model, read from peft's folders and from GGUF, and applied to its weights.

read_adapter      a folder or a .gguf file to an `Adapter`: low-rank updates by module, and whole tensors
apply_adapters    a base's tensors with the updates merged into them, or beside them; refused where they do not fit
with_adapter_ops  a base's blueprint with the updates beside it as ops of their own
write_adapter     updates that were trained, as peft saves them
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glassformer.adapters.application import MODES, Adapter, AdapterMode, AppliedAdapters, MatrixUpdate, apply_adapters
from glassformer.adapters.gguf_adapter import read_file
from glassformer.adapters.peft import CONFIG as PEFT_CONFIG
from glassformer.adapters.peft import WEIGHTS, LoraDescription, read_folder, write_adapter
from glassformer.adapters.unmerged import adaptable_modules, with_adapter_ops
from glassformer.ground.errors import CheckpointError

__all__ = [
    "MODES",
    "PEFT_CONFIG",
    "Adapter",
    "AdapterMode",
    "AppliedAdapters",
    "LoraDescription",
    "MatrixUpdate",
    "adaptable_modules",
    "apply_adapters",
    "is_adapter",
    "read_adapter",
    "with_adapter_ops",
    "write_adapter",
]


def is_adapter(path: Path) -> bool:
    """Whether a folder holds an adapter."""
    return path.is_dir() and (path / PEFT_CONFIG).exists()


def read_adapter(path: Path, base_config: Mapping[str, Any]) -> Adapter:
    """The adapter at a path; `base_config`: of the model that it is for, whose heads say how GGUF has ordered its rows."""
    if is_adapter(path):
        return read_folder(path)
    if path.suffix == ".gguf" and path.is_file():
        return read_file(path, base_config)
    raise CheckpointError(
        f"{path}: not an adapter. Give a folder that holds {PEFT_CONFIG} and {WEIGHTS[0]}, or a .gguf "
        "file whose general.type is 'adapter'."
    )
