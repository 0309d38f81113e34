"""Classes of transformers by their names: configs and tokenizers of every family."""

from __future__ import annotations

import os
import re
from functools import cache
from typing import Any

from glassformer import blueprints, families
from glassformer.blueprints import Config
from glassformer.ground.errors import InputTypeError
from glassformer.model_files import AutoTokenizer
from glassformer.text import Tokenizer
from glassformer.text.tokenizer_files.tokenizer_classes import CLASS_BY_NAME

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


NAME = re.compile(r"(\w+?)Tokenizer(Fast|Base)?")
ANY = "PreTrained"  # what the names of the general classes begin with


class NamedTokenizer(type):
    """The class of such names."""

    stem: str

    def __call__(cls, *args: Any, **named: Any) -> Any:
        raise InputTypeError(f"{cls.__name__} is made from files: {cls.__name__}.from_pretrained(folder or name).")

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Tokenizer) and cls.stem in (ANY, *instance.class_stems)

    def from_pretrained(cls, name: str | os.PathLike[str], **options: Any) -> Tokenizer:
        """The tokenizer of a model, as AutoTokenizer finds it."""
        return AutoTokenizer.from_pretrained(name, **options)


@cache
def find_tokenizer(name: str) -> NamedTokenizer | None:
    """`BertTokenizer` and the like, or None for a name that is not known."""
    match = NAME.fullmatch(name)
    if match is None or match[1] not in (ANY, *CLASS_BY_NAME) or (match[2] == "Base" and match[1] != ANY):
        return None
    return NamedTokenizer(name, (), {"stem": match[1], "__doc__": "Tokenizers, by one of their names."})
