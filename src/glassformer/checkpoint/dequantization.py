"""Packed (quantised) kinds: how many bytes a block takes, and back to float32.

The gguf package knows the kinds and their formulas; this module only looks them up.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import numpy.typing as npt

from glassformer.errors import CheckpointError

CHUNK = 1 << 20  # elements


@cache
def block_size(kind: str) -> tuple[int, int]:
    """(elements per block, bytes per block) of a kind; plain kinds are blocks of one."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    return GGML_QUANT_SIZES[GGMLQuantizationType[kind]]


@cache
def kind_name(code: int) -> str | None:
    """The name of a GGUF type code, or None for one that does not exist."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        kind = GGMLQuantizationType(code)
    except ValueError:
        return None
    return kind.name if kind in GGML_QUANT_SIZES else None


def dequantize(raw: npt.NDArray[np.uint8], kind: str, shape: tuple[int, ...], where: str) -> npt.NDArray[np.float32]:
    """Stored bytes as float32 values of a shape; `where` names the tensor in the error for a kind that cannot be."""
    if kind == "F32":
        return raw.view("<f4").reshape(shape)
    if kind == "F16":
        return raw.view("<f2").astype(np.float32).reshape(shape)
    if kind == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
    if kind == "F64":
        return raw.view("<f8").astype(np.float32).reshape(shape)
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize as gguf_dequantize

    count = math.prod(shape[:-1])
    rows = raw.reshape(count, raw.size // (count or 1))
    values = np.empty((count, shape[-1]), np.float32)
    step = max(1, CHUNK // shape[-1])  # piece by piece, for the formulas take several times a piece's memory
    try:
        for at in range(0, max(count, 1), step):
            values[at : at + step] = gguf_dequantize(rows[at : at + step], GGMLQuantizationType[kind])
    except (NotImplementedError, KeyError) as error:
        raise CheckpointError(
            f"{where} is of kind {kind}, which cannot be expanded. "
            "Use a file in one of the usual kinds, such as Q4_K, Q8_0 or F16."
        ) from error
    return values.reshape(shape)
