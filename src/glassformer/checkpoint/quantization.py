"""Rows of float32 to packed (quantised) bytes: the inverse of `dequantization`, for the kinds that models are written in.

A block of neighbours in a row shares a scale, and some kinds a minimum too (GGUF's block formats, as ggml has them). For the
simple kinds the gguf package has the formulas. The K kinds (blocks of 256, cut into parts that each have a scale of 6 or 8
bits) are made here: each part's scale and minimum are searched for. A candidate scale decides how the numbers round; then
weighted least squares give the scale and minimum that serve those whole numbers best; the candidate with the least error
wins.

Shapes: rows (rows, columns); blocks (blocks, 256); parts (size, parts), a part per column, so that numpy works on long runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.checkpoint.gguf_kinds import block_size
from glassformer.checkpoint.stored_tensors import StoredTensor, main_kind
from glassformer.ground.errors import InputError, did_you_mean

Floats: TypeAlias = npt.NDArray[np.float32]
Bytes: TypeAlias = npt.NDArray[np.uint8]

BITS: Mapping[str, float] = {  # per number, scales included
    "F32": 32, "F16": 16, "BF16": 16, "Q8_0": 8.5, "Q6_K": 6.5625, "Q5_K": 5.5, "Q5_0": 5.5, "Q4_1": 5, "Q4_K": 4.5,
    "Q4_0": 4.5,
}  # fmt: skip
CHUNK = 1 << 18  # numbers that are packed in one go: few enough for the caches, enough for numpy
MAX_HALF = float(np.finfo(np.float16).max)  # scales are half floats
MIN_SPREAD = np.float32(2e-6)  # below this share, numbers differ by rounding only
TINY = 1e-30  # as good as zero, and its inverse is still a number
SUPER_BLOCK = 256
NEIGHBOURS = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, -1))  # of a scale and a minimum


def check_kind(kind: str) -> str:
    """A kind as the format spells it, whatever its case; an unknown one is refused."""
    if not isinstance(kind, str) or kind.upper() not in BITS:
        hint, known = did_you_mean(str(kind), BITS), ", ".join(BITS)
        raise InputError(f"there is no kind {kind!r} that weights can be packed in.{hint} Known: {known}.")
    return kind.upper()


def fits(kind: str, columns: int) -> bool:
    """Whether rows of this many numbers divide into the kind's blocks."""
    return columns % block_size(kind)[0] == 0


def kind_text(kind: str, matrices: Collection[StoredTensor]) -> str:
    """The kind that was asked for, and what most of the numbers became where their rows do not fit it."""
    rows = Counter(matrix.shape[-1] for matrix in matrices if not fits(kind, matrix.shape[-1]))
    most = main_kind(matrices)
    if most == kind or not rows:
        return kind
    ((length, _),) = rows.most_common(1)
    return f"{kind} (mostly {most}: rows of {length} do not fit blocks of {block_size(kind)[0]})"


def quantized_size(kind: str, shape: tuple[int, ...]) -> int:
    """How many bytes a tensor of a shape takes."""
    elements, size = block_size(kind)
    return int(np.prod(shape, dtype=np.int64)) // elements * size


def quantize_rows(rows: Floats, kind: str) -> Bytes:
    """Rows as packed bytes, (rows, bytes per row)."""
    kind = check_kind(kind)
    if not fits(kind, rows.shape[-1]):
        size = block_size(kind)[0]
        raise InputError(f"rows of {rows.shape[-1]} do not divide into {kind} blocks of {size}. Use Q8_0 or F16.")
    rows = np.ascontiguousarray(rows, np.float32).reshape(-1, rows.shape[-1])
    if kind == "F32":
        return rows.view(np.uint8)
    if kind != "BF16":
        _check_range(rows, kind)
    packed = np.empty((len(rows), quantized_size(kind, (rows.shape[-1],))), np.uint8)
    step = max(1, CHUNK // rows.shape[-1])
    quantizer = K_KINDS.get(kind)
    for begin in range(0, len(rows), step):
        piece = rows[begin : begin + step]
        raw = _by_gguf_package(piece, kind) if quantizer is None else quantizer(piece.reshape(-1, SUPER_BLOCK))
        packed[begin : begin + step] = raw.reshape(len(piece), -1)
    return packed


def _check_range(rows: Floats, kind: str) -> None:
    most = float(np.abs(rows).max(initial=0.0))
    if not most <= MAX_HALF:
        what = f"a number as large as {most:.3g}" if np.isfinite(most) else "an infinity or something that is no number"
        raise InputError(f"there is {what} among the weights, which {kind} cannot hold. Use BF16 or F32.")


def _by_gguf_package(rows: Floats, kind: str) -> Bytes:
    """By the gguf package's own formula."""
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import quantize

    if kind.startswith("Q"):
        rows = np.where(np.abs(rows) < TINY, np.float32(0), rows)
    packed: Bytes = quantize(rows, GGMLQuantizationType[kind]).view(np.uint8)
    return packed


# The K kinds ----------------------------------------------------------------------------------------------------


def _q4_k(blocks: Floats) -> Bytes:
    numbers, head = _with_minimum(blocks, 15, np.arange(-5, 6) * 0.2)
    pairs = numbers.reshape(-1, 4, 2, 32)
    return np.concatenate([head, (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)], axis=1)


def _q5_k(blocks: Floats) -> Bytes:
    numbers, head = _with_minimum(blocks, 31, np.arange(-3, 6) * 0.2)
    pairs = (numbers & 15).reshape(-1, 4, 2, 32)
    fifth = np.packbits(numbers.reshape(-1, 8, 32) >> 4, axis=1, bitorder="little").reshape(-1, 32)
    return np.concatenate([head, fifth, (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)], axis=1)


def _with_minimum(blocks: Floats, levels: int, offsets: npt.NDArray[Any]) -> tuple[Bytes, Bytes]:
    """Blocks of eight parts of 32: the whole numbers, and the bytes before them: two half floats, scales and minima."""
    parts = np.ascontiguousarray(blocks.reshape(-1, 32).T)  # (32, parts)
    scales, lows = _fit_scale_and_minimum(parts, levels, offsets)
    (unit, scales6), (under, lows6) = _six_bits(scales.reshape(-1, 8)), _six_bits(lows.reshape(-1, 8))
    units, unders = np.repeat(unit, 8), np.repeat(under, 8)
    scales6, lows6 = _best_neighbour(parts, levels, units, scales6.reshape(-1), unders, lows6.reshape(-1))
    integers = _rounded(parts, levels, units * scales6, unders * lows6).astype(np.uint8).T.reshape(-1, SUPER_BLOCK)
    halves = np.stack([unit, under], axis=1).astype(np.float16).view(np.uint8)
    packed = _pack_scales_and_minima(scales6.reshape(-1, 8), lows6.reshape(-1, 8))
    return integers, np.concatenate([halves, packed], axis=1)


def _rounded(parts: Floats, levels: int, step: Floats, down: Floats) -> Floats:
    """The whole numbers whose multiples of the step, less what all begin below zero, are nearest to the numbers."""
    integers = parts + down
    integers *= np.divide(1, step, out=np.zeros_like(step), where=step > 0)
    return np.clip(np.rint(integers, out=integers), 0, levels, out=integers)


def _best_neighbour(
    parts: Floats, levels: int, units: Floats, scales: Floats, unders: Floats, lows: Floats
) -> tuple[Floats, Floats]:
    """Scales and minima of 6 bits, each pair exchanged for the neighbour that serves its part best: rounding them one by one
    is not yet rounding them well."""
    weights = _weights(parts)
    best, best_pair = np.full_like(units, np.inf), (scales, lows)
    for more, lower in NEIGHBOURS:
        tried = np.clip(scales + more, 0, 63), np.clip(lows + lower, 0, 63)
        step, down = units * tried[0], unders * tried[1]
        errors = _rounded(parts, levels, step, down)
        errors *= step
        errors -= down
        errors -= parts
        error = _dot(np.square(errors, out=errors), weights)
        better = error < best
        best = np.where(better, error, best)
        best_pair = np.where(better, tried[0], best_pair[0]), np.where(better, tried[1], best_pair[1])
    return best_pair


def _fit_scale_and_minimum(parts: Floats, levels: int, offsets: npt.NDArray[Any]) -> tuple[Floats, Floats]:
    """For each part the scale, and how far below zero it begins, that serve its numbers best."""
    low = np.minimum(parts.min(axis=0), 0)
    width = parts.max(axis=0) - low
    inverse = np.divide(1, width, out=np.zeros_like(width), where=width > TINY)
    weights = _weights(parts)
    total, first, square = weights.sum(axis=0), _dot(weights, parts), _dot(weights * parts, parts)
    shifted = (parts - low) * inverse  # 0…1
    weighted = weights * parts
    best, scale, down = np.full_like(low, np.inf), width / levels, -low
    integers, product = np.empty_like(parts), np.empty_like(parts)
    for offset in offsets:
        np.rint(np.multiply(shifted, np.float32(levels + offset), out=integers), out=integers)
        np.minimum(integers, levels, out=integers)
        np.multiply(integers, weights, out=product)
        numbers, squares, meets = product.sum(axis=0), _dot(product, integers), _dot(weighted, integers)
        spread = total * squares - numbers * numbers
        solvable = spread > MIN_SPREAD * total * squares
        slope = np.divide(total * meets - first * numbers, spread, out=np.zeros_like(low), where=solvable)
        start = np.divide(squares * first - numbers * meets, spread, out=np.zeros_like(low), where=solvable)
        above = start > 0  # no part can begin above zero
        slope[above] = np.divide(meets, squares, out=np.zeros_like(low), where=squares > 0)[above]
        start[above] = 0
        error = square - slope * meets - start * first
        better = solvable & (slope > 0) & (error < best)
        best[better], scale[better], down[better] = error[better], slope[better], -start[better]
    return scale, down


def _six_bits(values: Floats) -> tuple[Floats, Floats]:
    """Eight values of a block as whole numbers of 6 bits, and the half float that they are multiples of."""
    unit = (values.max(axis=1) / 63).astype(np.float16).astype(np.float32)
    inverse = np.divide(1, unit, out=np.zeros_like(unit), where=unit > 0)
    return unit, np.clip(np.rint(values * inverse[:, None]), 0, 63)


def _pack_scales_and_minima(scales: Floats, lows: Floats) -> Bytes:
    """Eight scales and eight minima of 6 bits in twelve bytes: the first four of each whole, above them the upper bits of
    the rest, whose lower bits follow."""
    scale, low = scales.astype(np.uint8), lows.astype(np.uint8)
    upper = [values[:, :4] | (values[:, 4:] >> 4) << 6 for values in (scale, low)]
    return np.concatenate([*upper, (scale[:, 4:] & 15) | (low[:, 4:] & 15) << 4], axis=1)


def _q6_k(blocks: Floats) -> Bytes:
    """Sixteen parts of 16, each with a signed scale of 8 bits and numbers from -32 to 31."""
    parts = np.ascontiguousarray(blocks.reshape(-1, 16).T)  # (16, parts)
    scales = _fit_scale(parts, 32, np.arange(-5, 5) * 0.2).reshape(-1, 16)
    far = np.take_along_axis(scales, np.abs(scales).argmax(axis=1)[:, None], axis=1)[:, 0]
    unit = (far / -128).astype(np.float16).astype(np.float32)
    inverse = np.divide(1, unit, out=np.zeros_like(unit), where=unit != 0)
    eight = np.clip(np.rint(scales * inverse[:, None]), -128, 127)
    step = (unit[:, None] * eight).reshape(-1)
    numbers = parts * np.divide(1, step, out=np.zeros_like(step), where=step != 0)
    integers = (np.clip(np.rint(numbers, out=numbers), -32, 31, out=numbers) + 32).astype(np.uint8).T.reshape(-1, 2, 4, 32)
    lower = integers & 15
    fours = np.stack([lower[:, :, 0] | lower[:, :, 2] << 4, lower[:, :, 1] | lower[:, :, 3] << 4], axis=2)
    upper = integers >> 4
    twos = upper[:, :, 0] | upper[:, :, 1] << 2 | upper[:, :, 2] << 4 | upper[:, :, 3] << 6
    halves = unit.astype(np.float16)[:, None].view(np.uint8)
    return np.concatenate(
        [fours.reshape(-1, 128), twos.reshape(-1, 64), eight.astype(np.int8).view(np.uint8), halves], axis=1
    )


def _fit_scale(parts: Floats, levels: int, offsets: npt.NDArray[Any]) -> Floats:
    """For each part the signed scale that serves its numbers best; signed, for there is one more number below zero."""
    far = np.take_along_axis(parts, np.abs(parts).argmax(axis=0)[None], axis=0)[0]
    inverse = np.divide(-1, far, out=np.zeros_like(far), where=np.abs(far) > TINY)
    weights = _weights(parts)
    weighted = weights * parts
    shifted = parts * inverse  # -1 where it is farthest
    best: Floats = np.zeros_like(far)
    scale: Floats = -far / np.float32(levels)
    integers, product = np.empty_like(parts), np.empty_like(parts)
    for offset in offsets:
        np.rint(np.multiply(shifted, np.float32(levels + offset), out=integers), out=integers)
        np.clip(integers, -levels, levels - 1, out=integers)
        meets, squares = _dot(weighted, integers), _dot(np.multiply(weights, integers, out=product), integers)
        slope = np.divide(meets, squares, out=np.zeros_like(far), where=squares > 0)
        gain = slope * meets  # by how much the error is less than the sum of squares
        better = gain > best
        best[better], scale[better] = gain[better], slope[better]
    return scale


def _weights(parts: Floats) -> Floats:
    """How much each number's error counts: the large ones matter more, and none not at all."""
    weights: Floats = np.abs(parts) + np.sqrt(np.square(parts).mean(axis=0))
    return weights


def _dot(left: Floats, right: Floats) -> Floats:
    products: Floats = np.einsum("ij,ij->j", left, right)
    return products


K_KINDS: Mapping[str, Callable[[Floats], Bytes]] = {"Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k}
