"""A model's weights in another kind: packed once into a cached file, or written as a GGUF file for everybody. No torch.

tensor_kinds    which tensor gets which kind
weight_cache    `requantized`: an opened model with its tensors in another kind, for running it here
gguf_metadata   a model's config as the metadata of a GGUF file
export          `quantize`: the whole model as one GGUF file, as llama.cpp and others open it
"""

from __future__ import annotations

from glassformer.quantize.export import quantize
from glassformer.quantize.weight_cache import requantize, requantized

__all__ = ["quantize", "requantize", "requantized"]
