"""Packed kinds whose numbers are entries of a table (a codebook): quickly back to float32.

A block holds scales, and for each four or eight numbers the row of a table and a mask of signs. The gguf package knows the
tables; its own functions look them up one by one, with several copies of everything, which takes seconds for each
hundred million numbers. Here a row, where possible with its signs, is looked up as a whole, and multiplied by its scale in
place. The results are the same, bit for bit.

Shapes: blocks (blocks, bytes); results (blocks, groups, numbers of a group), each group with a scale of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float32]


def expand(kind: str, rows: Bytes) -> Floats:
    """The numbers of rows of whole blocks of a kind in `CODEBOOK_KINDS`: (rows, numbers of a row)."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    return CODEBOOK_KINDS[kind](rows.reshape(-1, size)).reshape(len(rows), rows.shape[1] // size * elements)


# Tables ---------------------------------------------------------------------------------------------------------


@cache
def _grid(kind: str) -> Floats:
    """A kind's table, as the gguf package has it: (rows, 4 or 8)."""
    from gguf import quants

    table = getattr(quants, kind)
    table.init_grid()
    rows: Floats = np.ascontiguousarray(table.grid[0, 0], np.float32)
    return rows


@cache
def _signs() -> Floats:
    """For each byte, its bits as signs: (256, 8)."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return np.where(bits, np.float32(-1), np.float32(1))


@cache
def _even_signs() -> Floats:
    """The signs for each seven bits; the eighth makes their number even: (128, 8)."""
    from gguf import quants

    return _signs()[np.frombuffer(quants.IQ2_XXS.ksigns, np.uint8)]


@cache
def _signed_grid(kind: str) -> Floats:
    """Each row of a table with each mask of seven signs: (128 * rows, 8); the row's index is in the lower bits."""
    return (_even_signs()[:, None] * _grid(kind)).reshape(-1, 8)


@cache
def _grid_pairs(kind: str) -> Floats:
    """Each two rows of four side by side: (65536, 8); the first one's index is in the lower bits."""
    grid = _grid(kind)
    pairs = np.empty((len(grid), len(grid), 8), np.float32)
    pairs[..., :4] = grid
    pairs[..., 4:] = grid[:, None]
    return pairs.reshape(-1, 8)


@cache
def _shifted_grid(kind: str) -> Floats:
    """A table plus a small number, and then less it: (2 * rows, 8)."""
    from gguf import quants

    delta = np.float32(getattr(quants, kind).delta)
    return np.concatenate([_grid(kind) + delta, _grid(kind) - delta])


def _look_up(table: Floats, rows: npt.NDArray[Any], count: int, groups: int) -> Floats:
    return np.take(table, rows.reshape(-1), axis=0).reshape(count, groups, -1)


def _scaled(values: Floats, scales: npt.NDArray[Any]) -> Floats:
    np.multiply(values, scales.reshape(*values.shape[:2], 1), out=values)
    return values


# Scales ---------------------------------------------------------------------------------------------------------


def _half(blocks: Bytes, offset: int = 0) -> Floats:
    """The half-width float at a place of each block: (blocks, 1)."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view(np.float16).astype(np.float32)


def _words(blocks: Bytes, first: int, last: int, dtype: Any) -> npt.NDArray[Any]:
    return np.ascontiguousarray(blocks[:, first:last]).view(dtype)


def _nibbles(scales: Bytes) -> Bytes:
    """Two numbers for each byte, the lower first."""
    return np.stack([scales & 15, scales >> 4], axis=-1).reshape(len(scales), -1)


# Kinds ----------------------------------------------------------------------------------------------------------


def _iq2_xxs(blocks: Bytes) -> Floats:
    words = _words(blocks, 2, 66, np.uint32).reshape(len(blocks), 8, 2)
    signs = words[..., 1, None] >> np.array([0, 7, 14, 21], np.uint32) & 127
    rows = np.ascontiguousarray(words[..., 0]).view(np.uint8).reshape(len(blocks), 8, 4) | signs << 8
    scales = _half(blocks) * (np.float32(0.5) + (words[..., 1] >> 28).astype(np.float32)) * np.float32(0.25)
    return _scaled(_look_up(_signed_grid("IQ2_XXS"), rows, len(blocks), 8), scales)


def _iq2_xs(blocks: Bytes) -> Floats:
    scales = _half(blocks) * (np.float32(0.5) + _nibbles(blocks[:, 66:74])) * np.float32(0.25)
    return _scaled(_look_up(_signed_grid("IQ2_XS"), _words(blocks, 2, 66, np.uint16), len(blocks), 16), scales)


def _iq2_s(blocks: Bytes) -> Floats:
    high = blocks[:, 66:74, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    rows = blocks[:, 2:34] | high.reshape(len(blocks), -1).astype(np.uint16) << 8
    values = _look_up(_grid("IQ2_S"), rows, len(blocks), 16)
    values *= _look_up(_signs(), blocks[:, 34:66], len(blocks), 16)
    return _scaled(values, _half(blocks) * (np.float32(0.5) + _nibbles(blocks[:, 74:82])) * np.float32(0.25))


def _iq3_xxs(blocks: Bytes) -> Floats:
    words = _words(blocks, 66, 98, np.uint32)
    values = _look_up(_grid_pairs("IQ3_XXS"), _words(blocks, 2, 66, np.uint16), len(blocks), 8)
    values *= _look_up(_even_signs(), words[..., None] >> np.array([0, 7, 14, 21], np.uint32) & 127, len(blocks), 8)
    return _scaled(values, _half(blocks) * (np.float32(0.5) + (words >> 28).astype(np.float32)) * np.float32(0.5))


def _iq3_s(blocks: Bytes) -> Floats:
    high = np.unpackbits(blocks[:, 66:74], axis=1, bitorder="little").astype(np.uint16)
    values = _look_up(_grid("IQ3_S"), blocks[:, 2:66] | high << 8, len(blocks), 8)
    values *= _look_up(_signs(), blocks[:, 74:106], len(blocks), 8)
    return _scaled(values, _half(blocks) * (1 + 2 * _nibbles(blocks[:, 106:110])))


def _iq1_s(blocks: Bytes) -> Floats:
    words = _words(blocks, 34, 50, np.uint16)
    high = words[..., None] >> np.array([0, 3, 6, 9], np.uint16) & 7 | (words >> 15 << 3)[..., None]
    rows = blocks[:, 2:34] | high.reshape(len(blocks), -1) << 8
    return _scaled(_look_up(_shifted_grid("IQ1_S"), rows, len(blocks), 8), _half(blocks) * (2 * (words >> 12 & 7) + 1))


def _iq1_m(blocks: Bytes) -> Floats:
    words = _words(blocks, 48, 56, np.uint16)
    half = np.bitwise_or.reduce((words & 0xF000) >> np.array([12, 8, 4, 0], np.uint16), axis=1, keepdims=True)
    scales = (words[..., None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(len(blocks), -1)
    rows = blocks[:, :32] | _nibbles(blocks[:, 32:48]).astype(np.uint16) << 8
    values = _look_up(_shifted_grid("IQ1_M"), rows, len(blocks), 16)
    return _scaled(values, half.view(np.float16).astype(np.float32) * (2 * scales + 1))


@cache
def _nibble_values(kind: str) -> tuple[Floats, Floats]:
    """For each byte, the values of its lower and of its upper half: (256,) each."""
    from gguf import quants

    values = np.array(getattr(quants, kind).kvalues, np.float32)
    codes = np.arange(256)
    return values[codes & 15], values[codes >> 4]


def _from_nibbles(kind: str, packed: Bytes, scales: npt.NDArray[Any]) -> Floats:
    """Groups of 32 numbers: first the lower halves of 16 bytes, then the upper ones."""
    groups = packed.reshape(len(packed), -1, 16)
    values = np.empty((*groups.shape[:2], 32), np.float32)
    for half, table in enumerate(_nibble_values(kind)):
        values[..., half * 16 : half * 16 + 16] = np.take(table, groups)
    return _scaled(values, scales)


def _iq4_nl(blocks: Bytes) -> Floats:
    return _from_nibbles("IQ4_NL", blocks[:, 2:], _half(blocks))


def _iq4_xs(blocks: Bytes) -> Floats:
    high = _words(blocks, 2, 4, np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scales = (_nibbles(blocks[:, 4:8]) | high.astype(np.uint8) << 4).astype(np.int8) - np.int8(32)
    return _from_nibbles("IQ4_NL", blocks[:, 8:], _half(blocks) * scales.astype(np.float32))


CODEBOOK_KINDS: Mapping[str, Callable[[Bytes], Floats]] = {
    "IQ2_XXS": _iq2_xxs, "IQ2_XS": _iq2_xs, "IQ2_S": _iq2_s, "IQ3_XXS": _iq3_xxs, "IQ3_S": _iq3_s, "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m, "IQ4_NL": _iq4_nl, "IQ4_XS": _iq4_xs,
}  # fmt: skip
