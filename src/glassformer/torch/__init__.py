"""How models compute in PyTorch: the specification. Modules come from blueprints, under the checkpoints' names."""

from __future__ import annotations

import functools
from typing import Any

from glassformer.blueprints import Config, Head, module_for
from glassformer.blueprints.blueprint import Family
from glassformer.ground.errors import ConfigError
from glassformer.torch.base import BaseModel
from glassformer.torch.shapes import Decoder, Encoder, EncoderDecoder, EncoderPart, GlobalEncoderDecoder

SHAPES: dict[Head, type[BaseModel]] = {"causal": Decoder, "masked": Encoder, "seq2seq": EncoderDecoder}


@functools.cache
def base_class_for(model_type: str) -> type[BaseModel]:
    """The base model's class of a model type."""
    described = module_for(model_type)
    if not hasattr(described, "FAMILY"):
        raise ConfigError(f"{model_type} has a blueprint, but no names: blueprints/{model_type}.py must have a FAMILY.")
    config_class, family = described.Config, described.FAMILY
    name = family.name + family.class_suffixes.get("Model", "Model")
    shape = GlobalEncoderDecoder if family.global_tokens else SHAPES[config_class.default_head]
    return _class(name, shape, config_class, family, heads=family.heads)


@functools.cache
def encoder_class_for(model_type: str) -> type[BaseModel] | None:
    """The class of an encoder-decoder's encoder alone, in a family that has one."""
    described = module_for(model_type)
    family = described.FAMILY
    return _class(f"{family.name}EncoderModel", EncoderPart, described.Config, family) if family.has_encoder_model else None


def _class(
    name: str, shape: type[BaseModel], config_class: type[Config], family: Family, **attributes: Any
) -> type[BaseModel]:
    return type(
        name,
        (shape,),
        {
            "__module__": __name__, "declared": family, "family": family.name, "config_class": config_class,
            "prefix": family.base, "class_suffixes": family.class_suffixes, **attributes,
        },
    )  # fmt: skip


__all__ = ["BaseModel", "base_class_for", "encoder_class_for"]
