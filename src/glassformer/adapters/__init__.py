"""Adapters: small files that change a base model, read from peft's folders and from GGUF, and applied to its weights.

read_adapter      a folder or a .gguf file to an `Adapter`: low-rank updates by module, and whole tensors
apply_adapters    a base's tensors with the updates merged into them, or beside them; refused where they do not fit
with_adapter_ops  a base's blueprint with the updates beside it as ops of their own
write_adapter     updates that were trained, as peft saves them
"""

from glassformer.adapters.adapter import Adapter, LowRankUpdate
from glassformer.adapters.application import MODES, AdapterMode, AppliedAdapters, apply_adapters
from glassformer.adapters.files import is_adapter, read_adapter
from glassformer.adapters.peft import CONFIG as PEFT_CONFIG
from glassformer.adapters.peft import LoraDescription, write_adapter
from glassformer.adapters.unmerged import adaptable_modules, with_adapter_ops

__all__ = [
    "MODES",
    "PEFT_CONFIG",
    "Adapter",
    "AdapterMode",
    "AppliedAdapters",
    "LoraDescription",
    "LowRankUpdate",
    "adaptable_modules",
    "apply_adapters",
    "is_adapter",
    "read_adapter",
    "with_adapter_ops",
    "write_adapter",
]
