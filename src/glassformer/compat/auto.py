"""The named classes and the Auto classes.

`Qwen3ForCausalLM` is family × head × loading × generation. The classes are built here on demand, by name, so that a new
family needs no list of subclasses.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from glassformer import blueprints, families
from glassformer.blueprints import Head
from glassformer.compat.generate import GenerationMixin
from glassformer.compat.model_parts import Seq2SeqParts
from glassformer.compat.pretrained import FromPretrained, PreTrainedModel
from glassformer.families.shared.encoder import Encoder
from glassformer.families.shared.heads import HEADS, CausalLM, ModelWithHead, Seq2SeqLM
from glassformer.ground.errors import ConfigError
from glassformer.model_files import AutoConfig, AutoTokenizer, ModelFiles


@cache
def model_class(model_type: str, head: str) -> type[Any]:
    """The class of a family with a head (`ForCausalLM`, …), of its base (`Model`), or of its encoder (`EncoderModel`)."""
    encoder = families.encoder_class_for(model_type) if head == "EncoderModel" else None
    base = encoder or families.base_class_for(model_type)
    body: dict[str, Any] = {"__module__": __name__, "base_class": base}
    if head in ("Model", "EncoderModel"):
        return type(base.__name__, (PreTrainedModel, base), body)
    kind: type[ModelWithHead] = base.head_classes.get(head, HEADS[head])
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
        base = families.base_class_for(model_type)
        if name == base.__name__:
            return model_class(model_type, "Model")
        if (encoder := families.encoder_class_for(model_type)) is not None and name == encoder.__name__:
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
    head = "Model"

    @classmethod
    def class_for(cls, opened: ModelFiles) -> type[Any]:
        return model_class(opened.config.model_type, cls.head)

    @classmethod
    def from_config(cls, config: blueprints.Config) -> Any:
        """The right class for a config, with random weights."""
        return model_class(config.model_type, cls.head)(config).eval()


class AutoModel(_AutoClass):
    """A base model: ids in, states out."""


class AutoModelForTextEncoding(_AutoClass):
    """A model that reads a whole text at once: an encoder, or the encoder of an encoder-decoder."""

    head = "EncoderModel"

    @classmethod
    def class_for(cls, opened: ModelFiles) -> type[Any]:
        _refuse_decoder(opened.config.model_type)
        return super().class_for(opened)

    @classmethod
    def from_config(cls, config: blueprints.Config) -> Any:
        _refuse_decoder(config.model_type)
        return super().from_config(config)


def _refuse_decoder(model_type: str) -> None:
    """Refuse a family that has no encoder of its own."""
    encoder_only = issubclass(families.base_class_for(model_type), Encoder)
    if not encoder_only and families.encoder_class_for(model_type) is None:
        raise ConfigError(f"a {model_type} model cannot be loaded as AutoModelForTextEncoding. Use AutoModel.")


class AutoModelForCausalLM(_AutoClass):
    """A model that scores the next token, and generates."""

    head = "ForCausalLM"


class AutoModelForSeq2SeqLM(_AutoClass):
    """A model that reads one text and writes another."""

    head = "ForConditionalGeneration"


class AutoModelForMaskedLM(_AutoClass):
    """A model that guesses hidden tokens."""

    head = "ForMaskedLM"


class AutoModelForSequenceClassification(_AutoClass):
    """A model that scores labels for a whole text."""

    head = "ForSequenceClassification"


class AutoModelForTokenClassification(_AutoClass):
    """A model that scores labels for every token."""

    head = "ForTokenClassification"


class AutoModelForQuestionAnswering(_AutoClass):
    """A model that finds where in a text an answer begins and ends."""

    head = "ForQuestionAnswering"


class AutoModelForPreTraining(_AutoClass):
    """A model as it was trained at first: ELECTRA's discriminator, which finds replaced tokens."""

    head = "ForPreTraining"


__all__ = [
    "AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForPreTraining",
    "AutoModelForQuestionAnswering", "AutoModelForSeq2SeqLM", "AutoModelForSequenceClassification",
    "AutoModelForTextEncoding", "AutoModelForTokenClassification", "AutoTokenizer",
    "model_class",
]  # fmt: skip
