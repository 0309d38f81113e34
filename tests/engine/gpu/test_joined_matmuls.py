"""Projections of one input are one launch, over one matrix, and nobody can tell from the numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glassformer.engine.gpu.joined_matmuls import joined_matmuls
from glassformer.engine.program import Program
from glassformer.ground.sites import Watch
from tests.engine.executors import open_all, scores_of
from tests.parity import reference

pytestmark = pytest.mark.usefixtures("one_thread")


def rows_of(program: Program, group: tuple[int, ...]) -> list[str]:
    """The names of a joined matrix's parts, without those of the layer."""
    return [name.split(".")[-2] for index in group for table in program.steps[index].matrices for name in table.names]


def test_the_projections_of_a_recurrent_layer_are_one_and_activated_ones_come_last(tiny: Any) -> None:
    program = tiny("qwen3_5_text").gpu()._program("").program
    first = joined_matmuls(program)[0]
    assert rows_of(program, first) == ["in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b"]


def test_a_gate_that_is_read_after_attention_is_computed_before_it(tiny: Any) -> None:
    program = tiny("qwen3_5_text").gpu()._program("").program
    gated = [rows_of(program, group) for group in joined_matmuls(program) if "k_proj" in rows_of(program, group)]
    assert ["q_proj", "k_proj", "v_proj", "q_proj"] in gated


def test_a_step_does_not_pass_a_change_of_what_it_reads(tiny: Any) -> None:
    subject = tiny("qwen3_5_text")
    sites = Watch.of("blocks.*.attention.value", "blocks.*.attention.input", names=subject.blueprint.site_names).reads
    changed = subject.gpu()._program("", frozenset(), sites).program
    assert changed.changed_sites
    for group in joined_matmuls(changed):
        assert not any(min(group) < stop <= max(group) for stop in changed.changed_sites)


@pytest.mark.parametrize("family", ["qwen3_5_text", "lfm2"])
def test_each_weight_is_on_the_device_once(family: str, tiny: Any) -> None:
    """Also where a program joins less than the one before."""
    subject = tiny(family)
    executor = subject.gpu()
    weights = executor._weights
    before = {matrix.data.untyped_storage().data_ptr() for matrix, _ in weights._places.values()}
    executor._program("", Watch.of("*", names=subject.blueprint.site_names).reads)
    after = {matrix.data.untyped_storage().data_ptr() for matrix, _ in weights._places.values()}
    assert before == after


@pytest.mark.parametrize("family", reference.ON_GPU)
def test_the_numbers_are_those_of_each_step_by_itself(family: str, tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = tiny(family)

    def scores() -> Any:
        executor = subject.gpu()
        prompts, sources = subject.rows((6,))
        return scores_of(executor, open_all(executor, prompts, sources), prompts)[0]

    joined = scores()
    monkeypatch.setattr("glassformer.engine.gpu.steps.joined_matmuls", lambda program: [])
    assert np.allclose(joined, scores(), rtol=0, atol=1e-5 * np.abs(joined).max())
