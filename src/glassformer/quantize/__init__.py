"""A model's weights in another kind: packed once into a cached file, or written as a GGUF file for everybody. No torch.

kinds    which tensor gets which kind
cached   `requantised`: an opened model's tensors, packed, for whoever runs it here
fields   what a GGUF file says of a model
export   `quantise`: the whole model as one GGUF file, as llama.cpp and others open it
"""

from __future__ import annotations

from glassformer.quantize.export import quantize
from glassformer.quantize.weight_cache import requantize

__all__ = ["quantize", "requantize"]
