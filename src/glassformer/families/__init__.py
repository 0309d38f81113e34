"""How each family computes, in PyTorch: the specification. One file per `model_type`, found as blueprints are."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from glassformer.blueprints import module_for
from glassformer.families.shared.base import BaseModel
from glassformer.ground.errors import ConfigError


def base_class_for(model_type: str) -> type[BaseModel]:
    """The base model's class of a model type."""
    family: type[BaseModel] | None = getattr(_module_for(model_type), "Model", None)
    if family is None:
        raise ConfigError(f"{model_type} has a blueprint, but no family: families/{model_type}.py must have a Model.")
    return family


def encoder_class_for(model_type: str) -> type[BaseModel] | None:
    """The class of an encoder-decoder's encoder alone, in a family that has one."""
    encoder: type[BaseModel] | None = getattr(_module_for(model_type), "EncoderModel", None)
    return encoder


def _module_for(model_type: str) -> ModuleType | None:
    name = f"{__name__}.{module_for(model_type).__name__.rpartition('.')[2]}"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


__all__ = ["BaseModel", "base_class_for", "encoder_class_for"]
