"""Models as data: one module per `model_type`, with its `Config` and its `blueprint`. Needs no torch."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any

from glassformer.blueprints.blueprint import Blueprint, Op, Weight
from glassformer.blueprints.config import Config, Head
from glassformer.blueprints.rope import Rope
from glassformer.errors import ConfigError, did_you_mean

SHARED = frozenset({"blueprint", "bounds", "config", "other_fields", "positions", "rope"})


@cache
def model_types() -> tuple[str, ...]:
    """The model types that have a blueprint: the files of this folder."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in SHARED))


def module_for(model_type: object) -> ModuleType:
    """The module here that describes a model type."""
    if not isinstance(model_type, str) or model_type not in model_types():
        raise ConfigError(
            f"config field 'model_type' is {model_type!r}, which is not a known family."
            f"{did_you_mean(str(model_type), model_types())} Known: {', '.join(model_types())}."
        )
    module = importlib.import_module(f"{__name__}.{model_type}")
    if (declared := module.Config.model_type) != model_type:
        raise ConfigError(f"blueprints/{model_type}.py has a Config for model_type {declared!r}. The two names must be one.")
    return module


def read_config(raw: Mapping[str, Any], default_type: str | None = None) -> Config:
    """A raw `config.json` as the family's own checked config; `default_type`: the family, where the config has none."""
    model_type = default_type if raw.get("model_type") is None else raw["model_type"]
    if model_type is None:
        raise ConfigError(
            "config field 'model_type' is missing, so its family is unknown. Load it with a class of that family, such as "
            f"BertForMaskedLM, or add the field: one of {', '.join(model_types())}."
        )
    config: Config = module_for(model_type).Config.read(raw)
    return config


def blueprint(config: Config, head: Head | None = None) -> Blueprint:
    """The ops of the model that a config describes, with the family's default head or another."""
    result: Blueprint = module_for(config.model_type).blueprint(config, head or config.default_head)
    return result


__all__ = ["Blueprint", "Config", "Head", "Op", "Rope", "Weight", "blueprint", "model_types", "module_for", "read_config"]
