"""The named classes and the Auto classes; configs and tokenizers by the names of transformers' classes.

`Qwen3ForCausalLM` is family × head × loading × generation. The classes are built here on demand, by name, so that a new
family needs no list of subclasses.
"""

from __future__ import annotations

import os
import re
from functools import cache, partial
from typing import Any, ClassVar

from glassformer import blueprints
from glassformer.blueprints import Config, Head
from glassformer.compat.generate import GenerationMixin
from glassformer.compat.model_parts import Seq2SeqParts
from glassformer.compat.pretrained import FromPretrained, PreTrainedModel
from glassformer.ground.errors import ConfigError, InputTypeError
from glassformer.model_files import AutoConfig, AutoTokenizer, ModelFiles
from glassformer.text import Tokenizer
from glassformer.text.tokenizer_files.tokenizer_classes import CLASS_BY_NAME
from glassformer.torch import base_class_for, encoder_class_for
from glassformer.torch.heads import HEADS, CausalLM, ModelWithHead, Seq2SeqLM, head_class
from glassformer.torch.shapes import Encoder


@cache
def model_class(model_type: str, head: str) -> type[Any]:
    """The class of a family with a head (`ForCausalLM`, …), of its base (`Model`), or of its encoder (`EncoderModel`)."""
    base = base_class_for(model_type)
    if head == "EncoderModel" and (encoder := encoder_class_for(model_type)) is not None:
        base = encoder
    elif head == "EncoderModel" and not issubclass(base, Encoder):
        hint = blueprints.variant_hint(model_type, f"{model_type}_encoder")
        raise ConfigError(f"a {model_type} model cannot be loaded as AutoModelForTextEncoding. Use AutoModel.{hint}")
    body: dict[str, Any] = {
        "__module__": __name__, "base_class": base, "in_family": staticmethod(partial(model_class, head=head)),
    }  # fmt: skip
    if head in ("Model", "EncoderModel"):
        return type(base.__name__, (PreTrainedModel, base), body)
    kind: type[ModelWithHead] = head_class(base, head)
    if kind.head_kind not in base.heads:
        others = " or ".join(
            f"AutoModel{_auto_suffix(name)}" for name, known in HEADS.items() if known.head_kind in base.heads
        )
        raise ConfigError(
            f"a {model_type} model cannot be loaded as AutoModel{_auto_suffix(head)}. Use AutoModel, or {others}."
        )
    generation = (GenerationMixin,) if issubclass(kind, (CausalLM, Seq2SeqLM)) else ()
    seq2seq = (Seq2SeqParts,) if issubclass(kind, Seq2SeqLM) else ()
    name = base.family + base.class_suffixes.get(head, head)
    body |= {
        "base_class": model_class(model_type, "Model"),
        "__doc__": kind.__doc__,
        "loss_type": head if name.endswith(head) else None,
    }
    return type(name, (*generation, *seq2seq, PreTrainedModel, kind), body)


def model_class_for_head(model_type: str, head: Head) -> type[Any]:
    """The class of a family with a head, by the head's short name."""
    return model_class(model_type, next((name for name, kind in HEADS.items() if kind.head_kind == head), "Model"))


def _auto_suffix(head: str) -> str:
    """The ending of a head's Auto class."""
    return {"ForConditionalGeneration": "ForSeq2SeqLM"}.get(head, head)


def find_model_class(name: str) -> type[Any] | None:
    """`Qwen3ForCausalLM` and the like, or None for a name that no family has."""
    for model_type in blueprints.model_types():
        base = base_class_for(model_type)
        if name == base.__name__:
            return model_class(model_type, "Model")
        if (encoder := encoder_class_for(model_type)) is not None and name == encoder.__name__:
            return model_class(model_type, "EncoderModel")
        for head, kind in HEADS.items():
            if name == base.family + base.class_suffixes.get(head, head) and kind.head_kind in base.heads:
                return model_class(model_type, head)
    return None


def __getattr__(name: str) -> type[Any]:
    if name.startswith("_") or (cls := find_model_class(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return cls


class _AutoClass(FromPretrained):
    head: ClassVar[str]

    def __init_subclass__(cls, head: str | None = None) -> None:
        cls.head = head or cls.head

    @classmethod
    def class_for(cls, opened: ModelFiles) -> type[Any]:
        return model_class(opened.config.model_type, cls.head)

    @classmethod
    def from_config(cls, config: blueprints.Config) -> Any:
        """The right class for a config, with random weights."""
        return model_class(config.model_type, cls.head)(config).eval()


class AutoModel(_AutoClass, head="Model"):
    """A base model: ids in, states out."""


class AutoModelForTextEncoding(_AutoClass, head="EncoderModel"):
    """A model that reads a whole text at once: an encoder, or the encoder of an encoder-decoder."""


class AutoModelForCausalLM(_AutoClass, head="ForCausalLM"):
    """A model that scores the next token, and generates."""


class AutoModelForSeq2SeqLM(_AutoClass, head="ForConditionalGeneration"):
    """A model that reads one text and writes another."""


class AutoModelForMaskedLM(_AutoClass, head="ForMaskedLM"):
    """A model that guesses hidden tokens."""


class AutoModelForSequenceClassification(_AutoClass, head="ForSequenceClassification"):
    """A model that scores labels for a whole text."""


class AutoModelForTokenClassification(_AutoClass, head="ForTokenClassification"):
    """A model that scores labels for every token."""


class AutoModelForQuestionAnswering(_AutoClass, head="ForQuestionAnswering"):
    """A model that finds where in a text an answer begins and ends."""


class AutoModelForPreTraining(_AutoClass, head="ForPreTraining"):
    """A model as it was trained at first: ELECTRA's discriminator, which finds replaced tokens."""


__all__ = [
    "AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForPreTraining",
    "AutoModelForQuestionAnswering", "AutoModelForSeq2SeqLM", "AutoModelForSequenceClassification",
    "AutoModelForTextEncoding", "AutoModelForTokenClassification", "AutoTokenizer",
    "model_class",
]  # fmt: skip


# Configs and tokenizers by name ------------------------------------------------------------------------------------------


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
        base = base_class_for(model_type)
        if name == base.__name__.removesuffix("Model") + SUFFIX:
            return NamedConfig(name, (), {"config_class": base.config_class, "__doc__": f"A {model_type} config."})
    return None


TOKENIZER_NAME = re.compile(r"(\w+?)Tokenizer(Fast|Base)?")
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
    match = TOKENIZER_NAME.fullmatch(name)
    if match is None or match[1] not in (ANY, *CLASS_BY_NAME) or (match[2] == "Base" and match[1] != ANY):
        return None
    return NamedTokenizer(name, (), {"stem": match[1], "__doc__": "Tokenizers, by one of their names."})
