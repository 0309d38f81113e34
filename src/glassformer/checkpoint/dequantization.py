"""Quantized tensors back to float32, by the formulas of the gguf package, or by `codebooks` where those are slow."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from glassformer.checkpoint.codebooks import CODEBOOK_KINDS, expand
from glassformer.ground.errors import CheckpointError

CHUNK = 1 << 20  # elements
FLOAT8_KINDS = ("F8_E4M3", "F8_E5M2")  # a byte each


def _float8_values(kind: str) -> npt.NDArray[np.float32]:
    """What each of the 256 bytes means. E5M2 is the upper half of a float16; E4M3 has no infinities."""
    codes = np.arange(256, dtype=np.uint16)
    if kind == "F8_E5M2":
        with np.errstate(invalid="ignore"):  # some are no numbers
            return (codes << 8).view(np.float16).astype(np.float32)
    exponent, fraction = (codes >> 3 & 15).astype(np.float32), (codes & 7).astype(np.float32)
    magnitude = np.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * np.exp2(exponent - 7))
    magnitude = np.where(codes & 127 == 127, np.nan, magnitude)
    return np.where(codes & 128, -magnitude, magnitude).astype(np.float32)


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
    if kind in FLOAT8_KINDS:
        return _float8_values(kind)[raw].reshape(shape)
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize as gguf_dequantize

    count = math.prod(shape[:-1])
    rows = raw.reshape(count, raw.size // (count or 1))
    values = np.empty((count, shape[-1]), np.float32)
    step = max(1, CHUNK // shape[-1])  # piece by piece, for the formulas take several times a piece's memory
    try:
        for at in range(0, max(count, 1), step):
            piece = rows[at : at + step]
            if kind not in CODEBOOK_KINDS:
                values[at : at + step] = gguf_dequantize(piece, GGMLQuantizationType[kind])
            elif piece.size:
                values[at : at + step] = expand(kind, piece)
    except (NotImplementedError, KeyError) as error:
        raise CheckpointError(
            f"{where} is of kind {kind}, which cannot be expanded. "
            "Use a file in one of the usual kinds, such as Q4_K, Q8_0 or F16."
        ) from error
    return values.reshape(shape)
