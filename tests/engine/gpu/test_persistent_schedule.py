"""What of the persistent kernel is data: the fit of shapes, the division of rows, the stream and its inverse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from glassformer.engine.gpu.kernels.tensors import float_matrix
from glassformer.engine.gpu.persistent.formats import BFLOAT16, FORMATS, Format, FormatNumber, format_of
from glassformer.engine.gpu.persistent.schedule import MATRICES, DecoderShape, MatrixPlan, Schedule, misfit, plan_matrix
from glassformer.engine.gpu.persistent.stream import Sections, pack_groups, to_sections, write_matrix
from tests.sweeps import examples

SHARED_BYTES = 232_448
QWEN3_600M = DecoderShape(28, 1024, 16, 8, 128, 3072, 151_936, 1e-6, head_norms=True)
LLAMA3_8B = DecoderShape(32, 4096, 32, 8, 128, 14_336, 128_256, 1e-5)
SHAPES = {
    "Qwen3-0.6B": QWEN3_600M,
    "Llama-3-8B": LLAMA3_8B,
    "Qwen2.5-0.5B": DecoderShape(24, 896, 14, 2, 64, 4864, 151_936, 1e-6, qkv_bias=True),
    "SmolLM2-135M": DecoderShape(30, 576, 9, 3, 64, 1536, 49_152, 1e-5),
    "Llama-3.2-1B": DecoderShape(16, 2048, 32, 8, 64, 8192, 128_256, 1e-5),
}


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


@st.composite
def shapes(draw: st.DrawFn) -> DecoderShape:
    kv_heads, queries = draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 3))
    return DecoderShape(
        layers=draw(st.integers(1, 3)),
        hidden=8 * draw(st.integers(8, 300)),
        heads=kv_heads * queries,
        kv_heads=kv_heads,
        head_size=draw(st.sampled_from([64, 128])),
        inner=8 * draw(st.integers(8, 300)),
        vocabulary=draw(st.integers(100, 3000)),
        epsilon=1e-6,
    )


def parts_of(shape: DecoderShape, name: str) -> list[int]:
    """The numbers of rows of a matrix's parts."""
    kv_rows = shape.kv_heads * shape.head_size
    return {
        "qkv": [shape.attended, kv_rows, kv_rows],
        "output": [shape.hidden],
        "gate_up": [shape.inner, shape.inner],
        "down": [shape.hidden],
        "head": [shape.vocabulary],
    }[name]


@settings(max_examples=examples(5, 20), deadline=None)
@given(shapes(), st.integers(2, 40), st.sampled_from(FORMATS))
def test_unpacking_the_groups_gives_every_section_of_every_matrix_back(
    shape: DecoderShape, multiprocessors: int, form: Format
) -> None:
    schedule, draw = Schedule(shape, multiprocessors, SHARED_BYTES, formats=dict.fromkeys(MATRICES, form)), torch.Generator()
    for name, plan in schedule.matrices.items():
        lengths = parts_of(shape, name)
        places = [-(-plan.columns // section.columns) for section in form.sections]
        parts = [
            [
                torch.randint(1, 1 << 30, (rows, count, section.words), generator=draw, dtype=torch.int32)
                for section, count in zip(form.sections, places, strict=True)
            ]
            for rows in lengths
        ]
        groups = pack_groups(plan, parts)
        assert groups.shape == (plan.groups, plan.group_words)
        for part, unpacked in zip(parts, unpack_groups(plan, groups, lengths), strict=True):
            for section, again in zip(part, unpacked, strict=True):
                assert torch.equal(again[:, : section.shape[1]], section)
                assert not again[:, section.shape[1] :].any()
        assert int(groups.count_nonzero()) == sum(section.numel() for part in parts for section in part)


@settings(max_examples=examples(12, 50), deadline=None)
@given(shapes(), st.integers(2, 140))
def test_every_group_belongs_to_one_block_and_every_block_owns_a_part_of_every_matrix(
    shape: DecoderShape, multiprocessors: int
) -> None:
    schedule = Schedule(shape, multiprocessors, SHARED_BYTES)
    for name, layer in schedule.matrices_in_order():
        plan = schedule.matrices[name]
        owned = [schedule.share(name, layer, block) for block in range(schedule.blocks)]
        groups = sorted(group for first, count in owned for group in range(first, first + count))
        assert groups == list(range(plan.groups))
        counts = {count for _, count in owned}
        assert min(counts) >= 1
        assert max(counts) == plan.most
        assert max(counts) - min(counts) in (0, plan.bundle)
        assert plan.groups * plan.rows_per_group >= plan.rows
        assert plan.padded_columns >= plan.columns


@settings(max_examples=10, deadline=None)
@given(shapes(), st.integers(2, 40))
def test_a_blocks_stream_is_its_groups_in_the_order_of_use_without_gaps(shape: DecoderShape, multiprocessors: int) -> None:
    schedule = Schedule(shape, multiprocessors, SHARED_BYTES)
    for block in range(schedule.blocks):
        position = block * schedule.stream_words
        for name, layer in schedule.matrices_in_order():
            assert schedule.offset(name, layer, block) == position
            position += schedule.share(name, layer, block)[1] * schedule.matrices[name].group_words
        assert position == block * schedule.stream_words + schedule.words[block]


def test_a_matrix_is_written_to_the_streams_of_the_blocks_that_multiply_it() -> None:
    shape = DecoderShape(1, 64, 2, 1, 64, 64, 50, 1e-6)
    schedule = Schedule(shape, 3, SHARED_BYTES)
    stream, head = torch.zeros(schedule.blocks * schedule.stream_words, dtype=torch.int32), torch.randn(50, 64).bfloat16()
    write_matrix(schedule, "head", 1, [float_matrix(head)], stream)
    groups = pack_groups(schedule.matrices["head"], [to_sections(BFLOAT16, float_matrix(head))])
    for block in range(schedule.blocks):
        first, count = schedule.share("head", 1, block)
        start = schedule.offset("head", 1, block)
        assert torch.equal(stream[start : start + count * groups.shape[1]], groups[first : first + count].flatten())


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_streams_of_real_shapes_are_balanced_and_waste_little(shape: DecoderShape) -> None:
    assert misfit(shape, 132, SHARED_BYTES) is None
    schedule = Schedule(shape, 132, SHARED_BYTES)
    assert schedule.words.max() / schedule.words.mean() < 1.01
    layer = shape.qkv_rows * shape.hidden + shape.attended * shape.hidden + 3 * shape.hidden * shape.inner
    weights = shape.layers * layer + shape.vocabulary * shape.hidden
    wasted = schedule.words.sum() * 2 / weights
    assert wasted < (1.35 if shape.hidden == 576 else 1.16)


def test_qwen3_and_llama_3_waste_nothing_and_use_every_multiprocessor() -> None:
    for shape in (QWEN3_600M, LLAMA3_8B):
        schedule = Schedule(shape, 132, SHARED_BYTES)
        assert schedule.blocks == 132
        assert all(plan.padded_columns == plan.columns for plan in schedule.matrices.values())


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (replace(QWEN3_600M, head_size=80), "heads of 80 values"),
        (replace(QWEN3_600M, heads=15), "15 heads cannot be divided among 8 KV heads"),
        (replace(QWEN3_600M, heads=72, kv_heads=8), "9 query heads for each KV head"),
        (replace(QWEN3_600M, hidden=1020), "the hidden size of 1020 is no multiple of 8"),
        (replace(QWEN3_600M, inner=3001), "the inner size of 3001 is no multiple of 8"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused_with_the_reason(shape: DecoderShape, reason: str) -> None:
    assert reason in (misfit(shape, 132, SHARED_BYTES) or "")


def test_too_few_blocks_for_the_heads_are_a_reason() -> None:
    assert "8 KV heads are more than the 7 blocks" in (misfit(QWEN3_600M, 7, SHARED_BYTES) or "")
    assert "1 blocks for each KV head are fewer than its 2 query heads" in (misfit(QWEN3_600M, 15, SHARED_BYTES) or "")


def test_too_little_shared_memory_is_a_reason() -> None:
    assert "100000 bytes of shared memory are too few" in (misfit(LLAMA3_8B, 132, 100_000) or "")


def test_gate_and_up_rows_of_one_unit_are_in_one_group_and_pairs_of_units_in_one_block() -> None:
    plan = plan_matrix("gate_up", 2 * 16, 2304, 5, paired=True)
    assert (plan.bundle, plan.rows_per_group) == (2, 2)


def test_wide_groups_are_cut_into_parts_of_the_usual_size() -> None:
    plan = plan_matrix("down", 4096, 14_336, 132)
    assert (plan.rows_per_group, plan.parts, plan.part_bytes, plan.padded_columns) == (8, 14, 16_384, 14_336)
    plan = plan_matrix("down", 896, 4864, 132)  # 19 units of 256 columns
    assert plan.parts == 1


@pytest.mark.parametrize(
    ("kinds", "number"),
    [
        (["BF16"], FormatNumber.BFLOAT16),
        (["Q8_0"], FormatNumber.BITS_8),
        (["Q4_K"], FormatNumber.K_BITS_4_AND_MINIMUMS),
        (["Q6_K"], FormatNumber.K_BITS_6),
        (["Q4_K", "Q6_K"], FormatNumber.K_BITS_6_AND_MINIMUMS),
        (["Q5_K"], FormatNumber.K_BITS_6_AND_MINIMUMS),
    ],
)
def test_a_format_holds_all_kinds_of_a_matrix_in_as_few_bits_as_it_can(kinds: list[str], number: FormatNumber) -> None:
    form = format_of(kinds)
    assert form is not None
    assert form.number is number


def test_kinds_that_no_format_holds_have_none() -> None:
    assert format_of(["F32"]) is None
    assert format_of(["Q8_0", "Q4_K"]) is None
