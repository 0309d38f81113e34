"""Each family's config under the name that scripts have for it: `LlamaConfig`, `BertConfig`, ….

A call makes a config of the family's own class, from its fields under any of their names; what is left out is as in the
field's usual config. `isinstance` asks for the family's class.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from glassformer import blueprints, families
from glassformer.blueprints import Config

SUFFIX = "Config"


class NamedConfig(type):
    """The class of such names."""

    config_class: type[Config]

    def __call__(cls, **fields: Any) -> Config:
        kind = cls.config_class
        unlike_defaults = {kind.aliases.get(name, name) for name in fields}
        defaults = {name: value for name, value in kind.default_fields.items() if name not in unlike_defaults}
        return kind.read({**defaults, **fields})

    def __instancecheck__(cls, instance: object) -> bool:
        return type(instance) is cls.config_class

    @property
    def model_type(cls) -> str:
        return cls.config_class.model_type

    def from_pretrained(cls, name: str | os.PathLike[str], **changes: Any) -> Config:
        """The config of a checkpoint of this family."""
        return cls.config_class.from_pretrained(name, **changes)

    def from_dict(cls, values: dict[str, Any]) -> Config:
        """From the object in `config.json`."""
        return cls.config_class.read(values)


@cache
def find_config(name: str) -> NamedConfig | None:
    """`LlamaConfig` and the like, or None for a name that no family has."""
    for model_type in blueprints.model_types():
        base = families.base_class_for(model_type)
        if name == base.__name__.removesuffix("Model") + SUFFIX:
            return NamedConfig(name, (), {"config_class": base.config_class, "__doc__": f"A {model_type} config."})
    return None
