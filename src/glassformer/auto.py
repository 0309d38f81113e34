"""The named classes and the Auto classes.

`Qwen3ForCausalLM` is family × head × loading × generating. The classes are assembled here on demand, by name, so that
a new family needs no list of subclasses.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from glassformer import blueprints, families
from glassformer.errors import UnknownArgument
from glassformer.generating import Generating, TextStreamer
from glassformer.heads import HEADS, CausalLM, WithHead
from glassformer.loading import Pretrained, chosen_dtype, load
from glassformer.opening import AutoConfig, AutoTokenizer, open_model


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


class _Auto:
    head = "Model"

    @classmethod
    def from_pretrained(
        cls,
        name: str | os.PathLike[str],
        *,
        dtype: torch.dtype | str | None = None,
        torch_dtype: torch.dtype | str | None = None,
        key_mapping: Mapping[str, str] | None = None,
        attn_implementation: str | None = None,
        **changes: Any,
    ) -> Any:
        """The right class for a checkpoint, with its weights. The arguments are those of every model class:

        Args:
            name: a path, a catalogue name ('smollm2') or a hub id ('Qwen/Qwen3-0.6B').
            dtype: torch.bfloat16, "float32", …; by default as stored. Packed (GGUF) weights expand to float32.
            torch_dtype: the older name of the same.
            key_mapping: patterns of stored names to replace, such as {"lm_head.weight": "score.weight"}.
            attn_implementation: accepted for familiarity; every pattern can be seen without it.
            changes: fields of the config, such as num_labels=3.
        """
        if changes.pop("trust_remote_code", False):
            raise UnknownArgument("trust_remote_code is not supported: no code from a checkpoint is ever run.")
        opened = open_model(name)
        wanted = chosen_dtype(dtype if dtype is not None else torch_dtype)
        return load(assemble(opened.config.model_type, cls.head), opened, wanted, key_mapping, changes)

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
