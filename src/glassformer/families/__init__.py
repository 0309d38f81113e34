"""How each family computes, in PyTorch: the specification. One file per `model_type`, found as blueprints are."""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from types import ModuleType

from glassformer.blueprints import module_for
from glassformer.families.shared.base import BaseModel
from glassformer.families.shared.derived_models import derived_class
from glassformer.ground.errors import ConfigError


@cache
def base_class_for(model_type: str) -> type[BaseModel]:
    """The base model's class of a model type."""
    described = module_for(model_type)
    if hasattr(described, "FAMILY"):
        return derived_class(described.Config, described.FAMILY)
    family: type[BaseModel] | None = getattr(_module_for(model_type), "Model", None)
    if family is None:
        raise ConfigError(f"{model_type} has a blueprint, but no family: families/{model_type}.py must have a Model.")
    return family


@cache
def encoder_class_for(model_type: str) -> type[BaseModel] | None:
    """The class of an encoder-decoder's encoder alone, in a family that has one."""
    described = module_for(model_type)
    if hasattr(described, "FAMILY"):
        family = described.FAMILY
        return derived_class(described.Config, family, encoder_alone=True) if family.has_encoder_model else None
    encoder: type[BaseModel] | None = getattr(_module_for(model_type), "EncoderModel", None)
    return encoder


def _module_for(model_type: str) -> ModuleType | None:
    name = f"{__name__}.{module_for(model_type).__name__.rpartition('.')[2]}"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


__all__ = ["BaseModel", "base_class_for", "encoder_class_for"]
