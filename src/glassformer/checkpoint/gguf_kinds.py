"""The kinds of numbers that a GGUF file stores: code, name, and how many elements and bytes a block has.

The gguf package has the same table (and the tests compare the two); it is stated here because that package takes longer to
import than a model takes to open.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from glassformer.checkpoint.codebooks import CODEBOOK_KINDS, expand
from glassformer.ground.errors import CheckpointError

_KINDS = {  # type code: name, elements per block, bytes per block
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip
_FILE_TYPES = {  # general.file_type: what a file as a whole is called; most have matrices of several kinds
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE", 39: "NVFP4", 40: "Q1_0",
}  # fmt: skip
_SIZES = {name: (elements, size) for name, elements, size in _KINDS.values()}


def kind_name(code: int) -> str | None:
    """The name of a GGUF type code, or None for one that does not exist."""
    return _KINDS[code][0] if code in _KINDS else None


def block_size(kind: str) -> tuple[int, int]:
    """(elements per block, bytes per block) of a kind; plain kinds are blocks of one."""
    return _SIZES[kind]


def file_kind(code: object) -> str | None:
    """What a file with this general.file_type is called, or None for a code that does not exist.

    >>> file_kind(15), file_kind(None)
    ('Q4_K_M', None)
    """
    return _FILE_TYPES.get(code) if isinstance(code, int) else None


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
        for begin in range(0, max(count, 1), step):
            piece = rows[begin : begin + step]
            if kind not in CODEBOOK_KINDS:
                values[begin : begin + step] = gguf_dequantize(piece, GGMLQuantizationType[kind])
            elif piece.size:
                values[begin : begin + step] = expand(kind, piece)
    except (NotImplementedError, KeyError) as error:
        raise CheckpointError(
            f"{where} is of kind {kind}, which cannot be expanded. "
            "Use a file in one of the usual kinds, such as Q4_K, Q8_0 or F16."
        ) from error
    return values.reshape(shape)
