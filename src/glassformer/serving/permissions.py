"""What clients may do beyond asking models, as far as the operator of a server allows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from glassformer.ground.progress import NamedProgress
from glassformer.serving.registry import ModelSource

Pull: TypeAlias = Callable[[str, NamedProgress], ModelSource]


@dataclass(frozen=True)
class Permissions:
    """By default only what leaves nothing behind."""

    pull: Pull | None = None  # fetches a model by its name in the catalogue or on the hub
    delete: bool = False  # models, from the disk too; and give them further names
    files: bool = True  # leave files and have batches answered, until the server stops
    store_responses: bool = False  # keep answers of /v1/responses, so that requests can go on from them
