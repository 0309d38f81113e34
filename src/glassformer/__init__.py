"""Glassformer: a transformer runtime in a glass case.

Run a pretrained transformer as fast as the machine allows, and see every step that made each token.

    import glassformer as glass
    model = glass.load("smollm2")
    print(model.chat("how are you?"))

Everything here is imported when it is first used, so `import glassformer` is quick and needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from glassformer.auto import AutoModel as AutoModel
    from glassformer.auto import AutoModelForCausalLM as AutoModelForCausalLM
    from glassformer.auto import AutoModelForSequenceClassification as AutoModelForSequenceClassification
    from glassformer.cache import DynamicCache as DynamicCache
    from glassformer.decoding import GenerationConfig as GenerationConfig
    from glassformer.decoding import Step as Step
    from glassformer.engine.protocol import Executor as Executor
    from glassformer.errors import GlassError as GlassError
    from glassformer.generating import TextStreamer as TextStreamer
    from glassformer.heads import CausalLM, SequenceClassification
    from glassformer.observe.journey import Journey as Journey
    from glassformer.opening import AutoConfig as AutoConfig
    from glassformer.opening import AutoTokenizer as AutoTokenizer
    from glassformer.outputs import ModelOutput as ModelOutput
    from glassformer.runtime import Model as Model
    from glassformer.runtime import Run as Run
    from glassformer.runtime import load as load
    from glassformer.sites import Change as Change
    from glassformer.sites import Watch as Watch
    from glassformer.text import BatchEncoding as BatchEncoding
    from glassformer.text import Tokenizer as Tokenizer

    LlamaForCausalLM: type[CausalLM]
    LlamaForSequenceClassification: type[SequenceClassification]
    LlamaModel: type[Any]
    MistralForCausalLM: type[CausalLM]
    MistralForSequenceClassification: type[SequenceClassification]
    MistralModel: type[Any]
    Qwen2ForCausalLM: type[CausalLM]
    Qwen2ForSequenceClassification: type[SequenceClassification]
    Qwen2Model: type[Any]
    Qwen3ForCausalLM: type[CausalLM]
    Qwen3ForSequenceClassification: type[SequenceClassification]
    Qwen3Model: type[Any]

_HOMES = {
    "auto": ("AutoModel", "AutoModelForCausalLM", "AutoModelForSequenceClassification", "LlamaForCausalLM",
             "LlamaForSequenceClassification", "LlamaModel", "MistralForCausalLM", "MistralForSequenceClassification",
             "MistralModel", "Qwen2ForCausalLM", "Qwen2ForSequenceClassification", "Qwen2Model", "Qwen3ForCausalLM",
             "Qwen3ForSequenceClassification",
             "Qwen3Model"),
    "cache": ("DynamicCache",),
    "decoding": ("GenerationConfig", "Step"),
    "engine.protocol": ("Executor",),
    "errors": ("GlassError",),
    "generating": ("TextStreamer",),
    "observe.journey": ("Journey",),
    "opening": ("AutoConfig", "AutoTokenizer"),
    "outputs": ("ModelOutput",),
    "runtime": ("Model", "Run", "load"),
    "sites": ("Change", "Watch"),
    "text": ("BatchEncoding", "Tokenizer"),
}  # fmt: skip
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AutoConfig",
    "AutoModel",
    "AutoModelForCausalLM",
    "AutoModelForSequenceClassification",
    "AutoTokenizer",
    "BatchEncoding",
    "Change",
    "DynamicCache",
    "Executor",
    "GenerationConfig",
    "GlassError",
    "Journey",
    "LlamaForCausalLM",
    "LlamaForSequenceClassification",
    "LlamaModel",
    "MistralForCausalLM",
    "MistralForSequenceClassification",
    "MistralModel",
    "Model",
    "ModelOutput",
    "Qwen2ForCausalLM",
    "Qwen2ForSequenceClassification",
    "Qwen2Model",
    "Qwen3ForCausalLM",
    "Qwen3ForSequenceClassification",
    "Qwen3Model",
    "Run",
    "Step",
    "TextStreamer",
    "Tokenizer",
    "Watch",
    "__version__",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
