"""The named classes and the Auto classes.

`Qwen3ForCausalLM` is family × head × loading × generating. The classes are assembled here on demand, by name, so that
a new family needs no list of subclasses.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from glassformer import blueprints, families
from glassformer.blueprints import Head
from glassformer.compat.generate import Generating, TextStreamer
from glassformer.compat.pretrained import Loadable, Pretrained
from glassformer.errors import ConfigError
from glassformer.families.shared.heads import HEADS, CausalLM, Seq2SeqLM, WithHead
from glassformer.opened import AutoConfig, AutoTokenizer, Opened


@cache
def assemble(model_type: str, head: str) -> type[Any]:
    """The class of a family with a head (`ForCausalLM`, …), or of its base alone (`Model`)."""
    base = families.find(model_type)
    body: dict[str, Any] = {"__module__": __name__, "base_class": base}
    if head == "Model":
        return type(base.__name__, (Pretrained, base), body)
    kind: type[WithHead] = HEADS[head]
    if kind.head not in base.heads:
        known = [f"AutoModel{_auto(name)}" for name, other in HEADS.items() if other.head in base.heads]
        raise ConfigError(
            f"a {model_type} model cannot be had as AutoModel{_auto(head)}. Use AutoModel, or {' or '.join(known)}."
        )
    parents = (Generating, Pretrained, kind) if issubclass(kind, (CausalLM, Seq2SeqLM)) else (Pretrained, kind)
    name = base.family + base.titles.get(head, head)
    return type(name, parents, {**body, "base_class": assemble(model_type, "Model"), "__doc__": kind.__doc__})


def made_for(model_type: str, head: Head) -> type[Any]:
    """The class of a family with a head, by the head's short name."""
    return assemble(model_type, next((name for name, kind in HEADS.items() if kind.head == head), "Model"))


def _auto(head: str) -> str:
    """What the Auto class of a head is called by."""
    return {"ForConditionalGeneration": "ForSeq2SeqLM"}.get(head, head)


def by_name(name: str) -> type[Any] | None:
    """`Qwen3ForCausalLM` and its kin, or None for a name that no family has."""
    for model_type in blueprints.known():
        base = families.find(model_type)
        if name == base.__name__:
            return assemble(model_type, "Model")
        for head, kind in HEADS.items():
            if name == base.family + base.titles.get(head, head) and kind.head in base.heads:
                return assemble(model_type, head)
    return None


def __getattr__(name: str) -> type[Any]:
    if name.startswith("_") or (found := by_name(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found


class _Auto(Loadable):
    head = "Model"

    @classmethod
    def class_for(cls, opened: Opened) -> type[Any]:
        return assemble(opened.config.model_type, cls.head)

    @classmethod
    def from_config(cls, config: blueprints.Config) -> Any:
        """The right class for a config, with random weights."""
        return assemble(config.model_type, cls.head)(config).eval()


class AutoModel(_Auto):
    """A base model: ids in, states out."""


class AutoModelForCausalLM(_Auto):
    """A model that scores the next token, and generates."""

    head = "ForCausalLM"


class AutoModelForSeq2SeqLM(_Auto):
    """A model that reads one text and writes another."""

    head = "ForConditionalGeneration"


class AutoModelForMaskedLM(_Auto):
    """A model that guesses hidden tokens."""

    head = "ForMaskedLM"


class AutoModelForSequenceClassification(_Auto):
    """A model that scores labels for a whole text."""

    head = "ForSequenceClassification"


class AutoModelForTokenClassification(_Auto):
    """A model that scores labels for every token."""

    head = "ForTokenClassification"


class AutoModelForQuestionAnswering(_Auto):
    """A model that finds where in a text an answer begins and ends."""

    head = "ForQuestionAnswering"


__all__ = [
    "AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForQuestionAnswering",
    "AutoModelForSeq2SeqLM", "AutoModelForSequenceClassification", "AutoModelForTokenClassification", "AutoTokenizer",
    "TextStreamer", "assemble",
]  # fmt: skip
