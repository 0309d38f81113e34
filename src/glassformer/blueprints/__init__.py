"""Models as data: one module per `model_type`, with its `Config` and its `blueprint`. Needs no torch.

A file has the name of its `model_type`, with underscores for hyphens: `xlm_roberta.py` is "xlm-roberta".
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any

from glassformer.blueprints import multimodal
from glassformer.blueprints.blueprint import Blueprint
from glassformer.blueprints.config import Config, Head
from glassformer.ground.errors import ConfigError, did_you_misspell, spell
from glassformer.ops.op import Op, Weight
from glassformer.ops.rope import Rope

FORMER_TYPES = {"new": "gte"}  # model types as a family's authors called them, before transformers had it
VARIANTS: Mapping[tuple[str, str, bool], str] = {  # families whose files say it by a field of another's
    ("gemma3_text", "use_bidirectional_attention", True): "embedding_gemma",
    ("t5gemma", "is_encoder_decoder", False): "t5gemma_encoder",
}
SHARED = frozenset(
    {
        "blueprint", "bounds", "bridged", "config", "drafts", "gated_delta", "layer_types", "mla", "multimodal",
        "other_fields", "routed", "state_space", "synonyms",
    }
)  # fmt: skip


@cache
def model_types() -> tuple[str, ...]:
    """The model types that have a blueprint, as configs spell them."""
    return tuple(sorted(_module(name).Config.model_type for name in _file_names()))


def has_family(model_type: str) -> bool:
    """Whether a file here describes a model type, or the text part of it. Reads no file but that one."""
    known = FORMER_TYPES.get(model_type, model_type)
    name = known.replace("-", "_")
    return known in multimodal.TEXT_FAMILIES or (name in _file_names() and _module(name).Config.model_type == known)


def module_for(model_type: object) -> ModuleType:
    """The module here that describes a model type."""
    name = model_type.replace("-", "_") if isinstance(model_type, str) else ""
    if name not in _file_names() or _module(name).Config.model_type != model_type:
        raise ConfigError(
            f"config field 'model_type' is {model_type!r}, which is not a known family."
            f"{did_you_misspell(str(model_type), model_types())} docs/models.md lists those; what transformers knows beside "
            "them opens with glass.load, or with its own classes."
        )
    return _module(name)


@cache
def _file_names() -> frozenset[str]:
    return frozenset(module.name for module in pkgutil.iter_modules(__path__)) - SHARED


def _module(name: str) -> ModuleType:
    module = importlib.import_module(f"{__name__}.{name}")
    if (declared := module.Config.model_type).replace("-", "_") != name:
        raise ConfigError(f"blueprints/{name}.py has a Config for model_type {declared!r}. The two names must be one.")
    return module


def title_of(model_type: str) -> str:
    """What people call a family; its model type where nobody has said."""
    title: str = vars(module_for(model_type).Config).get("title", model_type)  # its own, and not that of a family it extends
    return title


def read_config(raw: Mapping[str, Any], default_type: str | None = None) -> Config:
    """A raw `config.json` as the family's own checked config; `default_type`: the family, where the config has none."""
    model_type = default_type if raw.get("model_type") is None else raw["model_type"]
    if model_type is None:
        raise ConfigError(
            "config field 'model_type' is missing, so its family is unknown. Load it with a class of that family, such as "
            f"BertForMaskedLM, or add the field: one of {', '.join(model_types())}."
        )
    known = FORMER_TYPES.get(model_type, model_type) if isinstance(model_type, str) else model_type
    variants = (kind for (whole, name, value), kind in VARIANTS.items() if known == whole and raw.get(name) is value)
    config: Config = module_for(next(variants, known)).Config.read(raw)
    return config


def variant_field(model_type: str) -> str:
    """The field by which files tell a family and a variant of it apart; "": this one has no variants."""
    return next((name for (whole, name, _), kind in VARIANTS.items() if model_type in (whole, kind)), "")


def variant_hint(model_type: str, wanted: str) -> str:
    """The field that opens a family's files as a variant of it, for the end of a message; nothing where there is none."""
    fields = (spell(name, value) for (whole, name, value), kind in VARIANTS.items() if (whole, kind) == (model_type, wanted))
    return next((f" With {field} it is opened as one." for field in fields), "")


def changed_config(config: Config, changes: Mapping[str, Any]) -> Config:
    """A config with some fields changed; that of a variant, where one of them makes it one."""
    name = variant_field(config.model_type)
    if isinstance(chosen := changes.get(name), bool):
        other = read_config({**config.to_dict(), name: chosen})
        config = config if type(other) is type(config) else other
        changes = {key: value for key, value in changes.items() if key != name}
    return config.with_changes(changes)


def read_text_config(raw: Mapping[str, Any]) -> Config | None:
    """The config of the text part of a model of texts and images; None for every other model."""
    part = multimodal.text_config(raw, model_types())
    if part is None:
        return None
    defaults = module_for(part["model_type"]).Config.default_fields  # such files leave out what the family has by default
    return read_config({**defaults, **part})


def blueprint(config: Config, head: Head | None = None) -> Blueprint:
    """The ops of the model that a config describes, with the family's default head or another."""
    result: Blueprint = module_for(config.model_type).blueprint(config, head or config.default_head)
    return result


__all__ = [
    "Blueprint", "Config", "Head", "Op", "Rope", "Weight", "blueprint", "changed_config", "has_family", "model_types",
    "module_for", "read_config", "read_text_config", "title_of", "variant_field", "variant_hint",
]  # fmt: skip
