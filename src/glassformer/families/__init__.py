"""How models compute in PyTorch: the specification. Modules come from blueprints, under the checkpoints' names."""

from __future__ import annotations

from functools import cache

from glassformer.blueprints import module_for
from glassformer.families.shared.base import BaseModel
from glassformer.families.shared.derived_models import derived_class
from glassformer.ground.errors import ConfigError


@cache
def base_class_for(model_type: str) -> type[BaseModel]:
    """The base model's class of a model type."""
    described = module_for(model_type)
    if not hasattr(described, "FAMILY"):
        raise ConfigError(f"{model_type} has a blueprint, but no names: blueprints/{model_type}.py must have a FAMILY.")
    return derived_class(described.Config, described.FAMILY)


@cache
def encoder_class_for(model_type: str) -> type[BaseModel] | None:
    """The class of an encoder-decoder's encoder alone, in a family that has one."""
    described = module_for(model_type)
    has_one = described.FAMILY.has_encoder_model
    return derived_class(described.Config, described.FAMILY, encoder_alone=True) if has_one else None


__all__ = ["BaseModel", "base_class_for", "encoder_class_for"]
