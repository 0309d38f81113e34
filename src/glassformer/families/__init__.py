"""How each family computes, in PyTorch: the specification. One file per `model_type`, found by its name."""

from __future__ import annotations

import importlib

from glassformer.blueprints import find as find_blueprint
from glassformer.families.base import Base


def find(model_type: str) -> type[Base]:
    """The base model's class of a model type."""
    find_blueprint(model_type)  # raises for an unknown one
    return importlib.import_module(f"{__name__}.{model_type}").Model


__all__ = ["Base", "find"]
