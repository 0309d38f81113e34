"""The persistent kernel's stream of weights: matrices in their formats, cut into groups and dealt to the blocks.

A group is stored part by part, and each part in two halves: of the columns of a half, first all rows' words of the format's
first section, (places, rows, words), then those of the next, padded to 16 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

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
    for number, section in enumerate(plan.form.sections):
        rows = _rows_of_groups(plan, [part[number] for part in parts])
        rows = pad(rows, (0, 0, 0, plan.padded_columns // section.columns - rows.shape[1]))
        halves = rows.reshape(plan.groups, plan.rows_per_group, 2 * plan.parts, -1, section.words)
        packed.append(halves.permute(0, 2, 3, 1, 4).reshape(plan.groups, 2 * plan.parts, -1))
    words = torch.cat(packed, dim=2)
    return pad(words, (0, plan.half_words - words.shape[2])).reshape(plan.groups, -1)


def unpack_groups(plan: MatrixPlan, groups: Tensor, lengths: Sequence[int]) -> list[Sections]:
    """The inverse of `pack_groups`: the sections of the parts, which have these numbers of rows; columns stay padded."""
    halves, at = groups.reshape(plan.groups, 2 * plan.parts, -1), 0
    parts: list[Sections] = [[] for _ in lengths]
    for section in plan.form.sections:
        places = plan.padded_columns // section.columns // (2 * plan.parts)
        words = halves[:, :, at : at + places * plan.rows_per_group * section.words]
        at += words.shape[2]
        rows = words.reshape(plan.groups, 2 * plan.parts, places, plan.rows_per_group, section.words)
        rows = rows.permute(0, 3, 1, 2, 4).reshape(plan.groups, plan.rows_per_group, -1, section.words)
        first = 0
        for number, (part, length) in enumerate(zip(parts, lengths, strict=True)):
            half = plan.rows_per_group // 2
            of_part = rows[:, number * half : (number + 1) * half] if plan.paired else rows
            part.append(of_part.flatten(0, 1)[first : first + length])
            first += 0 if plan.paired else length
    return parts


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
        values = pad(matrix.data, (0, -matrix.columns % 32))
        return [_words(values, 32)]
    assert matrix.scales is not None
    scales, outer_scales = matrix.scales, matrix.outer_scales
    match form.number:
        case FormatNumber.BITS_8:
            return [_codes_of_eight_bits(matrix.data), scales[..., None]]
        case FormatNumber.BITS_4:
            return [_codes_of_four_bits(matrix.data ^ 0x88), scales[..., None]]  # code - 8, in two's complement
    assert outer_scales is not None
    codes = _codes_of_four_bits(matrix.data)
    match form.number:
        case FormatNumber.BITS_4_AND_MINIMUMS:
            return [codes, torch.stack([scales, outer_scales], -1)]
        case FormatNumber.K_BITS_4_AND_MINIMUMS:
            return [codes, scales[..., None], outer_scales[..., None]]
        case FormatNumber.K_BITS_6:
            return [codes, _upper_bits(matrix), scales[..., None], outer_scales[..., None]]
    if matrix.kind == "Q6_K":
        words, outer_scales = torch.stack([scales, torch.zeros_like(scales)], -1), outer_scales & 0xFFFF
    else:  # a scale for each 16 columns instead of 32, and the minimums apart
        even, minimums = scales & 0x00FF00FF, scales >> 8 & 0x00FF00FF
        words = torch.stack([even | even << 8, minimums], -1)
    return [codes, _upper_bits(matrix), words, outer_scales[..., None]]


def _words(values: Tensor, columns: int) -> Tensor:
    """Numbers of one or two bytes as words: (rows, places, words of so many columns)."""
    words = values.contiguous().view(torch.uint8).view(torch.int32)
    return words.reshape(len(values), -1, columns * values.itemsize // 4)


def _codes_of_eight_bits(data: Tensor) -> Tensor:
    """From (below or above, first or second 16, lane) to lanes first."""
    words = _words(data, BLOCK)
    return words.reshape(*words.shape[:2], 2, 2, 4).permute(0, 1, 4, 2, 3).reshape(words.shape)


def _codes_of_four_bits(data: Tensor) -> Tensor:
    """From (first or second 16, lane) to lanes first."""
    words = _words(data, BLOCK // 2)
    return words.reshape(*words.shape[:2], 2, 4).transpose(2, 3).reshape(words.shape)


def _upper_bits(matrix: DeviceMatrix) -> Tensor:
    """The upper two of six bits in two's complement: byte j has those of the columns j, j + 32, j + 16 and j + 48."""
    if matrix.high_bits is None:  # codes of four bits
        return torch.zeros_like(_words(matrix.data, BLOCK // 2)[..., :4])
    if matrix.kind == "Q6_K":
        return _words(matrix.high_bits ^ 0xAA, BLOCK // 4)  # code - 32
    bits = matrix.high_bits.reshape(len(matrix.high_bits), -1, 8)
    pairs = torch.stack([bits >> 2 * part & 3 for part in range(4)], dim=-2).reshape(*bits.shape[:2], 2, 16)
    spread = pairs & 1 | (pairs & 2) << 1
    return _words((spread[:, :, 0] | spread[:, :, 1] << 4).flatten(1), BLOCK // 4)
