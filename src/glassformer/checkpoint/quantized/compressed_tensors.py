"""compressed-tensors, vLLM's format: whole numbers packed in words, or in bytes, or eight-bit floats.

Shapes: weight_packed (outputs, inputs · bits / 32), rounded up, weight_scale (outputs, groups), weight_shape (2,), and of
asymmetric ones weight_zero_point (outputs · bits / 32, groups). Packed numbers are stored with half of their range added.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from glassformer.checkpoint.quantized.float8 import UNUSED, scaled_floats
from glassformer.checkpoint.quantized.parts import (
    FLOATS,
    WORD,
    MatrixParts,
    checked_groups,
    groups_of,
    integers,
    packed_stems,
    scaled,
    unpacked,
    whole_number,
    with_matrices,
)
from glassformer.checkpoint.stored_tensors import Floats, StoredTensor, computed_tensor
from glassformer.ground.errors import CheckpointError
from glassformer.ground.typecheck import brief

FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
ENDINGS = ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx")
BITS = (4, 8)  # of packed numbers


def expand(tensors: Mapping[str, StoredTensor], config: Mapping[str, Any], path: Path) -> dict[str, StoredTensor]:
    form = config.get("format")
    if form not in FORMATS:
        raise CheckpointError(
            f"{path}: quantization_config has format={brief(form)}, and {', '.join(FORMATS)} can be read. Take the model in "
            "one of them, unpacked, or as a .gguf file."
        )
    packed = list(packed_stems(tensors, "weight_packed"))
    makers = dict.fromkeys(packed_stems(tensors, "weight_scale"), _unpacked)
    if packed:
        makers |= dict.fromkeys(packed, partial(_packed, bits=_bits(config, path)))
    return with_matrices(tensors, path, makers, ENDINGS, UNUSED)


def _bits(config: Mapping[str, Any], path: Path) -> int:
    """How many bits the packed numbers have, in all groups of modules alike."""
    groups = config.get("config_groups")
    weights = (
        [group.get("weights") for group in groups.values() if isinstance(group, dict)] if isinstance(groups, dict) else []
    )
    bits = {whole_number(part, "num_bits", BITS, path) for part in weights if isinstance(part, dict)}
    if len(bits) != 1:
        raise CheckpointError(
            f"{path}: quantization_config packs with {sorted(bits) or 'no'} bits, and one number of bits can be read. Take "
            "the model unpacked, or as a .gguf file."
        )
    return bits.pop()


def _packed(parts: MatrixParts, bits: int) -> StoredTensor:
    words, scales = parts.need("weight_packed", ("I32",), 2), parts.need("weight_scale", FLOATS, 2)
    shape = tuple(int(size) for size in integers(parts.need("weight_shape", ("I64", "I32"), 1)))
    outputs, inputs, groups = words.shape[0], shape[-1], scales.shape[1]
    if len(shape) != 2 or shape[0] != outputs or inputs < 1 or groups > inputs:
        raise parts.error(f"weight_shape is {shape} for {outputs} rows and {groups} groups")
    per_word = WORD // bits
    parts.expect("weight_packed", words, (outputs, -(-inputs // per_word)))
    parts.expect("weight_scale", scales, (outputs, groups))
    zeros, order = parts.maybe("weight_zero_point", ("I32",), 2), parts.maybe("weight_g_idx", ("I32", "I64"), 1)
    if zeros is not None:
        parts.expect("weight_zero_point", zeros, (-(-outputs // per_word), groups))
    if order is not None:
        parts.expect("weight_g_idx", order, (inputs,))
    sources = [words, scales, *(part for part in (zeros, order) if part is not None)]
    compute = partial(_unpack, parts, words, scales, zeros, order, bits, inputs)
    return computed_tensor(f"{parts.stem}.weight", (outputs, inputs), compute, sources, f"pack-quantized {bits}")


def _unpack(
    parts: MatrixParts, words: StoredTensor, scales: StoredTensor, zeros: StoredTensor | None, order: StoredTensor | None,
    bits: int, inputs: int,
) -> Floats:  # fmt: skip
    numbers = unpacked(integers(words), bits, 1)[:, :inputs]
    groups = scales.shape[1]
    group = groups_of(inputs, groups) if order is None else checked_groups(integers(order), groups, parts)
    half = np.asarray(1 << bits - 1, np.uint8)
    middle = half if zeros is None else unpacked(integers(zeros), bits, 0)[: len(numbers), group]
    return scaled(numbers, middle, scales.to_float32()[:, group])


def _unpacked(parts: MatrixParts) -> StoredTensor:
    """Whole numbers of eight bits, or small floats, with a scale for each row, each group or all of them."""
    if parts.need("weight", dimensions=2).kind != "I8":
        return scaled_floats(parts, "weight_scale", None)
    numbers, scales = parts.need("weight", ("I8",), 2), parts.need("weight_scale", FLOATS)
    zeros = parts.maybe("weight_zero_point", ("I8",))
    rows, columns = numbers.shape
    grid = scales.shape if len(scales.shape) == 2 else (scales.elements, 1)
    if grid[0] not in (1, rows) or grid[1] > columns or (zeros is not None and zeros.elements != scales.elements):
        raise parts.error(f"weight_scale has the shape {scales.shape} for {numbers.shape} numbers")
    group = groups_of(columns, grid[1])

    def unpack() -> Floats:
        middle = None if zeros is None else integers(zeros).reshape(grid)[:, group]
        return scaled(integers(numbers), middle, scales.to_float32().reshape(grid)[:, group])

    sources = [numbers, scales, *([] if zeros is None else [zeros])]
    return computed_tensor(f"{parts.stem}.weight", numbers.shape, unpack, sources, "int-quantized")
