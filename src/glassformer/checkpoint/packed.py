"""Packed (quantised) kinds: how many bytes a block takes, and back to float32.

The gguf package knows the kinds and their formulas; this module only looks them up.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from glassformer.errors import CheckpointError

if TYPE_CHECKING:
    from glassformer.checkpoint.stored import Stored

CHUNK = 1 << 20  # elements


@cache
def block(kind: str) -> tuple[int, int]:
    """(elements per block, bytes per block) of a kind; plain kinds are blocks of one."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    return GGML_QUANT_SIZES[GGMLQuantizationType[kind]]


@cache
def kind_of(code: int) -> str | None:
    """The name behind a GGUF type code, or None for one that does not exist."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        found = GGMLQuantizationType(code)
    except ValueError:
        return None
    return found.name if found in GGML_QUANT_SIZES else None


def dequantise(stored: Stored) -> npt.NDArray[np.float32]:
    """A stored tensor's values in float32, in the stored order of rows."""
    raw = stored.bytes
    if stored.kind == "F32":
        return raw.view("<f4").reshape(stored.shape)
    if stored.kind == "F16":
        return raw.view("<f2").astype(np.float32).reshape(stored.shape)
    if stored.kind == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(stored.shape)
    if stored.kind == "F64":
        return raw.view("<f8").astype(np.float32).reshape(stored.shape)
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    count = math.prod(stored.shape[:-1])
    rows = raw.reshape(count, stored.size // (count or 1))
    values = np.empty((count, stored.shape[-1]), np.float32)
    step = max(1, CHUNK // stored.shape[-1])  # piece by piece, for the formulas take several times a piece's memory
    try:
        for at in range(0, max(count, 1), step):
            values[at : at + step] = dequantize(rows[at : at + step], GGMLQuantizationType[stored.kind])
    except (NotImplementedError, KeyError) as error:
        raise CheckpointError(
            f"{stored.file.path}: tensor {stored.name!r} is of kind {stored.kind}, which cannot be expanded. "
            "Use a file in one of the usual kinds, such as Q4_K, Q8_0 or F16."
        ) from error
    return values.reshape(stored.shape)
