"""Weights that other libraries have packed: GPTQ, AWQ, bitsandbytes, FP8 and compressed-tensors, read as float32.

A format is a function that takes a folder's tensors and its `quantization_config`, and gives in place of a packed matrix's
parts one tensor under the matrix's own name, whose numbers are unpacked when they are first read. So everything that reads
a checkpoint reads these, and `weights='q4_k'` or `glass models quantize` packs them again for the engines. Which modules
were packed is seen from the tensors: those of `modules_to_not_convert` have their plain weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from glassformer.checkpoint.quantized import awq, bitsandbytes, compressed_tensors, float8, gptq
from glassformer.checkpoint.stored_tensors import StoredTensor

Expand: TypeAlias = Callable[[Mapping[str, StoredTensor], Mapping[str, Any], Path], dict[str, StoredTensor]]

METHODS: Mapping[str, Expand] = {
    "gptq": gptq.expand, "awq": awq.expand, "bitsandbytes": bitsandbytes.expand, "fp8": float8.expand,
    "fbgemm_fp8": float8.expand, "compressed-tensors": compressed_tensors.expand,
}  # fmt: skip


def quantization_method(config: object) -> str | None:
    """The method of a `quantization_config` that can be read; None for another, or for none."""
    if not isinstance(config, Mapping):
        return None
    method = config.get("quant_method")
    if method is None and (config.get("load_in_4bit") or config.get("load_in_8bit")):
        return "bitsandbytes"  # of its first versions
    return method if isinstance(method, str) and method in METHODS else None


def expand_quantized(
    tensors: Mapping[str, StoredTensor], config: Mapping[str, Any] | None, path: Path
) -> dict[str, StoredTensor]:
    """A folder's tensors with those of packed matrices unpacked, and bare eight-bit floats made wider."""
    method = quantization_method(config)
    expanded = dict(tensors) if method is None or config is None else METHODS[method](tensors, config, path)
    return {name: float8.widened(tensor) for name, tensor in expanded.items()}
