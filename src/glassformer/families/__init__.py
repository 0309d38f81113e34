"""How each family computes, in PyTorch: the specification. One file per `model_type`, found by its name."""

from __future__ import annotations

import importlib
import importlib.util

from glassformer.blueprints import module_for
from glassformer.errors import ConfigError
from glassformer.families.shared.base import BaseModel


def base_class_for(model_type: str) -> type[BaseModel]:
    """The base model's class of a model type."""
    module_for(model_type)  # raises for an unknown one
    name = f"{__name__}.{model_type}"
    module = importlib.import_module(name) if importlib.util.find_spec(name) else None
    if not hasattr(module, "Model"):
        raise ConfigError(f"{model_type} has a blueprint, but no family: families/{model_type}.py must have a Model.")
    family: type[BaseModel] = module.Model  # type: ignore[union-attr]
    return family


__all__ = ["BaseModel", "base_class_for"]
