"""Glassformer: a transformer runtime in a glass case.

Run a pretrained transformer as fast as the machine allows, and see every step that made each token.

    import glassformer as glass
    model = glass.load("smollm2")
    print(model.chat("how are you?"))

Everything here is imported when it is first used, so `import glassformer` is quick and needs no torch. Beside what is
listed, every family's classes are here by name: `glassformer.BertForMaskedLM`, `glassformer.T5Model`, ….
"""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from glassformer.compat.auto import AutoModel as AutoModel
    from glassformer.compat.auto import AutoModelForCausalLM as AutoModelForCausalLM
    from glassformer.compat.auto import AutoModelForMaskedLM as AutoModelForMaskedLM
    from glassformer.compat.auto import AutoModelForQuestionAnswering as AutoModelForQuestionAnswering
    from glassformer.compat.auto import AutoModelForSeq2SeqLM as AutoModelForSeq2SeqLM
    from glassformer.compat.auto import AutoModelForSequenceClassification as AutoModelForSequenceClassification
    from glassformer.compat.auto import AutoModelForTextEncoding as AutoModelForTextEncoding
    from glassformer.compat.auto import AutoModelForTokenClassification as AutoModelForTokenClassification
    from glassformer.compat.generate import TextStreamer as TextStreamer
    from glassformer.decoding import GenerationConfig as GenerationConfig
    from glassformer.decoding import Step as Step
    from glassformer.engine.protocol import Executor as Executor
    from glassformer.errors import GlassError as GlassError
    from glassformer.families.shared.outputs import ModelOutput as ModelOutput
    from glassformer.layers.cache import DynamicCache as DynamicCache
    from glassformer.layers.cache import EncoderDecoderCache as EncoderDecoderCache
    from glassformer.layers.cache import StaticCache as StaticCache
    from glassformer.observe.compare import compare as compare
    from glassformer.observe.plan import plan as plan
    from glassformer.opened import AutoConfig as AutoConfig
    from glassformer.opened import AutoTokenizer as AutoTokenizer
    from glassformer.runtime.model import Model as Model
    from glassformer.runtime.model import load as load
    from glassformer.runtime.run import Run as Run
    from glassformer.sites import Change as Change
    from glassformer.sites import Watch as Watch
    from glassformer.tasks import Task as Task
    from glassformer.tasks import pipeline as pipeline
    from glassformer.text import BatchEncoding as BatchEncoding
    from glassformer.text import Tokenizer as Tokenizer
    from glassformer.views.journey import Journey as Journey

_HOMES = {
    "compat.auto": ("AutoModel", "AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForQuestionAnswering",
                    "AutoModelForSeq2SeqLM", "AutoModelForSequenceClassification", "AutoModelForTextEncoding",
                    "AutoModelForTokenClassification"),
    "compat.generate": ("TextStreamer",),
    "decoding": ("GenerationConfig", "Step"),
    "engine.protocol": ("Executor",),
    "errors": ("GlassError",),
    "families.shared.outputs": ("ModelOutput",),
    "layers.cache": ("DynamicCache", "EncoderDecoderCache", "StaticCache"),
    "observe.compare": ("compare",),
    "observe.plan": ("plan",),
    "opened": ("AutoConfig", "AutoTokenizer"),
    "runtime": ("Model", "Run", "load"),
    "sites": ("Change", "Watch"),
    "tasks": ("Task", "pipeline"),
    "text": ("BatchEncoding", "Tokenizer"),
    "views.journey": ("Journey",),
}  # fmt: skip
_FAMILY = re.compile(r"[A-Z]\w+(Model|For[A-Z]\w+)")  # `BertForMaskedLM` and others, which `compat.auto` assembles
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AutoConfig",
    "AutoModel",
    "AutoModelForCausalLM",
    "AutoModelForMaskedLM",
    "AutoModelForQuestionAnswering",
    "AutoModelForSeq2SeqLM",
    "AutoModelForSequenceClassification",
    "AutoModelForTextEncoding",
    "AutoModelForTokenClassification",
    "AutoTokenizer",
    "BatchEncoding",
    "Change",
    "DynamicCache",
    "EncoderDecoderCache",
    "Executor",
    "GenerationConfig",
    "GlassError",
    "Journey",
    "Model",
    "ModelOutput",
    "Run",
    "StaticCache",
    "Step",
    "Task",
    "TextStreamer",
    "Tokenizer",
    "Watch",
    "__version__",
    "compare",
    "load",
    "pipeline",
    "plan",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    else:
        auto = importlib.import_module(f"{__name__}.compat.auto") if _FAMILY.fullmatch(name) else None
        value = None if auto is None else auto.find_model_class(name)
        if value is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
