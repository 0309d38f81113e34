"""The persistent kernel's stream of weights: matrices in their formats, cut into groups and dealt to the blocks.

A group is stored part by part, and each part in two halves: of the columns of a half, first all rows' words of the format's
first section, (places, rows, words), then those of the next, padded to 16 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from glassformer.engine.gpu.kernels.packed_matmul import PACKED_KINDS
from glassformer.engine.gpu.kernels.tensors import DeviceMatrix
from glassformer.engine.gpu.persistent.formats import BLOCK, Format, FormatNumber
from glassformer.engine.gpu.persistent.schedule import MatrixPlan, Schedule

Sections = list[Tensor]  # each (rows, columns of the matrix / columns of the section, words), int32


def write_matrix(schedule: Schedule, name: str, layer: int, matrices: Sequence[DeviceMatrix], stream: Tensor) -> None:
    """Copy a matrix, or the parts that make it, into the stream of all blocks. The parts of gate_up are the gate and the up
    projection; the others are put below each other."""
    plan = schedule.matrices[name]
    groups = pack_groups(plan, [to_sections(plan.form, matrix) for matrix in matrices])
    for block in range(schedule.blocks):
        first, count = schedule.share(name, layer, block)
        start = schedule.offset(name, layer, block)
        stream[start : start + count * plan.group_words] = groups[first : first + count].reshape(-1)


def pack_groups(plan: MatrixPlan, parts: Sequence[Sections]) -> Tensor:
    """The groups of a matrix, (groups, words), from its parts' sections."""
    packed = []
    for index, section in enumerate(plan.form.sections):
        rows = _rows_of_groups(plan, [part[index] for part in parts])
        rows = pad(rows, (0, 0, 0, plan.padded_columns // section.columns - rows.shape[1]))
        halves = rows.reshape(plan.groups, plan.rows_per_group, 2 * plan.parts, -1, section.words)
        packed.append(halves.permute(0, 2, 3, 1, 4).reshape(plan.groups, 2 * plan.parts, -1))
    words = torch.cat(packed, dim=2)
    return pad(words, (0, plan.half_words - words.shape[2])).reshape(plan.groups, -1)


def _rows_of_groups(plan: MatrixPlan, parts: Sequence[Tensor]) -> Tensor:
    """All rows in the order of the groups, zeros after the last: (groups * rows of a group, places, words)."""
    if not plan.paired:
        rows = torch.cat(list(parts))
        return pad(rows, (0, 0, 0, 0, 0, plan.groups * plan.rows_per_group - len(rows)))
    half = plan.rows_per_group // 2
    padded = [pad(part, (0, 0, 0, 0, 0, plan.groups * half - len(part))) for part in parts]
    return torch.cat([part.reshape(plan.groups, half, *part.shape[1:]) for part in padded], dim=1).flatten(0, 1)


# A matrix in a format ------------------------------------------------------------------------------------------------


def to_sections(form: Format, matrix: DeviceMatrix) -> Sections:
    """A matrix of a kind that the format can hold; see formats.py and, for what is converted, packed_matmul.py."""
    if not form.is_packed:
        values = pad(matrix.data, (0, -matrix.columns % 32)).contiguous()
        return [values.view(torch.int32).reshape(matrix.rows, -1, 16)]
    assert matrix.scales is not None
    codes, scales = _codes_in_lanes(form, matrix), matrix.scales
    if matrix.outer_scales is None:
        return [*codes, scales[..., None]]
    outer_scales = matrix.outer_scales
    match form.number:
        case FormatNumber.BITS_4_AND_MINIMUMS:
            return [*codes, torch.stack([scales, outer_scales], -1)]
        case FormatNumber.K_BITS_4_AND_MINIMUMS | FormatNumber.K_BITS_6:
            return [*codes, scales[..., None], outer_scales[..., None]]
    if matrix.kind == "Q6_K":
        words, outer_scales = torch.stack([scales, torch.zeros_like(scales)], -1), outer_scales & 0xFFFF
    else:  # a scale for each 16 columns instead of 32, and the minimums apart
        even, minimums = scales & 0x00FF00FF, scales >> 8 & 0x00FF00FF
        words = torch.stack([even | even << 8, minimums], -1)
    return [*codes, words, outer_scales[..., None]]


def _codes_in_lanes(form: Format, matrix: DeviceMatrix) -> Sections:
    """The codes as four lanes read them: lane i has the columns 4 · i to 4 · i + 3 of each 16.

    The kernel makes two codes at a time bfloat16, those of columns side by side, with the same bits of the lower and of the
    upper half of a word. So the first of each pair of columns come in the lower half, the second in the upper one.
    """
    kind = PACKED_KINDS[matrix.kind]
    codes = _codes(matrix, kind.bits) + (form.zero - kind.zero)  # uint8, in which 128 is added to signed ones
    lanes = codes.reshape(len(codes), -1, 2, 2, 4, 2, 2)  # (rows, blocks, 32s, 16s, lanes, pairs, columns of a pair)
    if form.number is FormatNumber.BITS_8:
        return [_bit_fields(lanes.permute(0, 1, 4, 2, 3, 6, 5), 8)]
    low = _bit_fields((lanes & 15).permute(0, 1, 4, 2, 6, 3, 5), 4)
    if form.number not in (FormatNumber.K_BITS_6, FormatNumber.K_BITS_6_AND_MINIMUMS):
        return [low]
    return [low, _bit_fields((lanes >> 4).permute(0, 1, 4, 6, 2, 3, 5), 2)]


def _codes(matrix: DeviceMatrix, bits: int) -> Tensor:
    """(rows, padded columns) as uint8; those of eight bits in two's complement."""
    if bits == 8:
        return matrix.data.view(torch.uint8)
    bytes_ = matrix.data.reshape(matrix.rows, -1, 1, BLOCK // 2)
    codes = torch.cat([bytes_ & 15, bytes_ >> 4], dim=2)  # (rows, blocks, below or above, columns)
    if matrix.high_bits is not None:
        upper, mask = bits - 4, (1 << bits - 4) - 1
        packed = matrix.high_bits.reshape(matrix.rows, -1, 1, 8 * upper)
        parts = [packed >> shift for shift in range(0, 8, 2 * upper)]
        pairs = torch.cat(parts, dim=3)  # of each byte's two columns, above what else the byte holds
        codes |= torch.cat([pairs & mask, pairs >> upper & mask], dim=2) << 4
    return codes.flatten(1)


def _bit_fields(values: Tensor, bits: int) -> Tensor:
    """Numbers of some bits, (rows, blocks, …), in words, from the lowest bits on: (rows, blocks, words)."""
    fields = values.reshape(*values.shape[:2], -1, 8 // bits)
    packed = fields[..., 0].clone()
    for index in range(1, 8 // bits):
        packed |= fields[..., index] << bits * index
    return packed.view(torch.int32)
