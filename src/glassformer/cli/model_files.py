"""A model's files without loading it: for views that need a config, or the weights' headers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.cli import bars, common

if TYPE_CHECKING:
    from glassformer.checkpoint import Checkpoint, StoredTensor
    from glassformer.model_files import ModelFiles


def open_files(name: str, *, weights: bool) -> ModelFiles:
    """A model; its weights are fetched only if `weights` is set, and otherwise shown where they are here."""
    from glassformer.adapters import is_adapter
    from glassformer.checkpoint import open_at
    from glassformer.checkpoint.catalogue import CATALOGUE, Hub
    from glassformer.checkpoint.locate import local_path
    from glassformer.engine.bridge.files import bridged
    from glassformer.model_files import ModelFiles, locate_finished, open_model

    common.log_to_stderr()
    source = name
    if not weights and name in CATALOGUE and not Path(name).exists() and local_path(name) is None:
        hubs = (hub for hub in CATALOGUE[name].sources if isinstance(hub, Hub) and not hub.file)
        source = next((hub.repository for hub in hubs), name)  # a repository gives its config by itself
    with bars.download_bar() as progress:
        path = locate_finished(source, "model" if weights else "config", progress)
        if is_adapter(path):
            return open_model(name, progress=progress)  # its base with it
    checkpoint: Checkpoint = ConfigOnly(path) if path.suffix == ".json" else open_at(path)
    return bridged(ModelFiles(name, checkpoint))


@dataclass
class ConfigOnly:
    """A checkpoint that is only a config.json."""

    path: Path

    @cached_property
    def config(self) -> Mapping[str, Any]:
        from glassformer.checkpoint.folder import read_json

        return read_json(self.path)

    @property
    def settings(self) -> Mapping[str, Any]:
        return {}

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        return {}
