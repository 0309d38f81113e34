"""The named classes and the Auto classes.

`Qwen3ForCausalLM` is family × head × loading × generating. The classes are assembled here on demand, by name, so that
a new family needs no list of subclasses.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from glassformer import blueprints, families
from glassformer.generating import Generating, TextStreamer
from glassformer.heads import HEADS, CausalLM, WithHead
from glassformer.loading import Loadable, Pretrained
from glassformer.opening import AutoConfig, AutoTokenizer, Opened


@cache
def assemble(model_type: str, head: str = "Model") -> type[Any]:
    """The class of a family with a head (`ForCausalLM`, …), or of its base alone (`Model`)."""
    base = families.find(model_type)
    body: dict[str, Any] = {"__module__": __name__, "base_class": base}
    if head == "Model":
        return type(base.__name__, (Pretrained, base), body)
    kind: type[WithHead] = HEADS[head]
    parents = (Generating, Pretrained, kind) if issubclass(kind, CausalLM) else (Pretrained, kind)
    return type(f"{base.family}{head}", parents, {**body, "base_class": assemble(model_type), "__doc__": kind.__doc__})


def __getattr__(name: str) -> type[Any]:
    """`auto.Qwen3ForCausalLM` and its kin."""
    for model_type in blueprints.known():
        family = families.find(model_type).family
        if name.startswith(family) and name[len(family) :] in {"Model", *HEADS}:
            return assemble(model_type, name[len(family) :])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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


class AutoModelForSequenceClassification(_Auto):
    """A model that scores labels for a whole text."""

    head = "ForSequenceClassification"


__all__ = [
    "AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoModelForSequenceClassification", "AutoTokenizer",
    "TextStreamer", "assemble",
]  # fmt: skip
