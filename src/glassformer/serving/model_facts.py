"""What a model's files say of it, before it is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from glassformer.checkpoint.gguf import GgufCheckpoint
from glassformer.ground.errors import GlassError
from glassformer.model_files import ModelFiles
from glassformer.runtime.in_memory import InMemory


@dataclass(frozen=True)
class ModelFacts:
    """Empty where it is not known."""

    bytes: int = 0  # of its weights, as they are stored
    parameters: int = 0
    family: str = ""
    kind: str = ""  # what its weights are stored in
    format: str = ""  # gguf or safetensors


def facts_of(opened: ModelFiles | InMemory) -> ModelFacts:
    """The facts of a model; of one that cannot be read none, as who asks for it will hear why."""
    if isinstance(opened, InMemory):
        return ModelFacts(family=opened.config.model_type, kind=opened.kind)
    try:
        tensors = opened.tensors.values()
        return ModelFacts(
            bytes=sum(tensor.size for tensor in tensors),
            parameters=opened.blueprint().parameters,
            family=opened.config.model_type,
            kind=opened.kind_text,
            format="gguf" if isinstance(opened.checkpoint, GgufCheckpoint) else "safetensors",
        )
    except GlassError:
        return ModelFacts()
