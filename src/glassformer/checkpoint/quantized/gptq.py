"""GPTQ (https://arxiv.org/abs/2210.17323), as AutoGPTQ and GPTQModel store it.

Shapes: qweight (inputs · bits / 32, outputs), qzeros (groups, outputs · bits / 32), scales (groups, outputs), g_idx
(inputs,). A weight is scale · (number − zero) of its group, and g_idx says which group an input belongs to: not always one
after another (desc_act). Files of the first format hold each zero less one.

Symmetric ones with four bits, whose groups are whole blocks of 32 inputs, are GGUF's Q4_0 in another order: they become
that, without rounding, and stay packed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

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
from glassformer.checkpoint.stored_tensors import Bytes, Floats, StoredTensor, computed_tensor
from glassformer.ground.errors import CheckpointError
from glassformer.ground.typecheck import brief

BITS = (2, 3, 4, 8)
BLOCK, BLOCK_BYTES = 32, 18  # of Q4_0
FORMATS = ("gptq", "gptq_v2")
ENDINGS = ("qweight", "qzeros", "scales", "g_idx")


def expand(tensors: Mapping[str, StoredTensor], config: Mapping[str, Any], path: Path) -> dict[str, StoredTensor]:
    bits = whole_number(config, "bits", BITS, path)
    form = config.get("checkpoint_format") or config.get("format") or "gptq"
    if form not in FORMATS:
        raise CheckpointError(
            f"{path}: quantization_config has checkpoint_format={brief(form)}, and {' and '.join(FORMATS)} can be read. "
            "Take the model in one of them, unpacked, or as a .gguf file."
        )
    make = partial(_matrix, bits=bits, less_one=form == "gptq")
    return with_matrices(tensors, path, dict.fromkeys(packed_stems(tensors, "qweight"), make), ENDINGS)


def _matrix(parts: MatrixParts, bits: int, less_one: bool) -> StoredTensor:
    numbers, zeros = (parts.need(ending, ("I32",), 2) for ending in ("qweight", "qzeros"))
    scales, order = parts.need("scales", FLOATS, 2), parts.maybe("g_idx", ("I32", "I64"), 1)
    groups, outputs = scales.shape
    inputs = numbers.shape[0] * WORD // bits
    if order is not None:
        bits = _stored_bits(parts, numbers.shape[0], order.shape[0], bits)
        inputs = order.shape[0]
    parts.expect("qweight", numbers, (inputs * bits // WORD, outputs))
    parts.expect("qzeros", zeros, (groups, outputs * bits // WORD))
    if order is None and groups > inputs:
        raise parts.error(f"it has {groups} groups of {inputs} inputs")
    sources = [numbers, zeros, scales, *([] if order is None else [order])]
    if bits == 4 and _is_q4_0(parts, zeros, scales, order, inputs, less_one):
        compute_blocks = partial(_as_q4_0, numbers, scales)
        size = outputs * (inputs // BLOCK) * BLOCK_BYTES
        return computed_tensor(
            f"{parts.stem}.weight", (outputs, inputs), compute_blocks, sources, "gptq as it is", kind="Q4_0", size=size
        )  # fmt: skip
    compute = partial(_unpack, parts, numbers, zeros, scales, order, bits, less_one)
    return computed_tensor(f"{parts.stem}.weight", (outputs, inputs), compute, sources, f"gptq {bits} {less_one}")


def _is_q4_0(
    parts: MatrixParts, zeros: StoredTensor, scales: StoredTensor, order: StoredTensor | None, inputs: int, less_one: bool
) -> bool:
    """Whether a matrix of four bits is one of GGUF's Q4_0: a float16 for each block, and eight for every zero."""
    groups = scales.shape[0]
    if scales.kind != "F16" or inputs % groups or inputs // groups % BLOCK:
        return False
    in_order = order is None or np.array_equal(checked_groups(integers(order), groups, parts), groups_of(inputs, groups))
    return bool(in_order and (unpacked(integers(zeros), 4, 1) == (7 if less_one else 8)).all())


def _as_q4_0(numbers: StoredTensor, scales: StoredTensor) -> Bytes:
    """Blocks of a scale and sixteen bytes: the first half of a block's numbers in the low halves, the second in the high."""
    rows = unpacked(integers(numbers), 4, 0).T  # (outputs, inputs)
    outputs, inputs = rows.shape
    halves = rows.reshape(outputs, inputs // BLOCK, 2, BLOCK // 2)
    blocks = np.empty((outputs, inputs // BLOCK, BLOCK_BYTES), np.uint8)
    repeats = inputs // BLOCK // scales.shape[0]
    block_scales = scales.bytes.view("<f2").reshape(scales.shape).T.repeat(repeats, 1)
    blocks[..., :2] = np.ascontiguousarray(block_scales).view(np.uint8).reshape(outputs, -1, 2)
    blocks[..., 2:] = halves[:, :, 0] | halves[:, :, 1] << 4
    return blocks


def _stored_bits(parts: MatrixParts, rows: int, inputs: int, bits: int) -> int:
    """The bits of this matrix: some files pack some modules otherwise than the config says of all."""
    stored = rows * WORD / inputs
    if stored == bits or stored in BITS:
        return int(stored)
    raise parts.error(f"its qweight has {rows} rows for {inputs} inputs")


def _unpack(
    parts: MatrixParts, numbers: StoredTensor, zeros: StoredTensor, scales: StoredTensor, order: StoredTensor | None,
    bits: int, less_one: bool,
) -> Floats:  # fmt: skip
    unpacked_zeros = unpacked(integers(zeros), bits, 1)
    if less_one:
        unpacked_zeros = (unpacked_zeros + np.uint8(1)) & np.uint8((1 << bits) - 1)
    rows = unpacked(integers(numbers), bits, 0)
    groups = scales.shape[0]
    group = groups_of(len(rows), groups) if order is None else checked_groups(integers(order), groups, parts)
    return scaled(rows, unpacked_zeros[group], scales.to_float32()[group]).T
