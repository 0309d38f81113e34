"""Programs: what holds of them whatever engine runs them."""

from __future__ import annotations

from typing import Any

import pytest

from glassformer.blueprints import blueprint, read_config
from glassformer.engine.lowering import Lowering, required_matrices
from glassformer.engine.program import Epilogue, MatrixRef, Program, RowRuns, StepKind, TokenScope
from tests.parity.configs import TINY

CONFIG: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "intermediate_size": 48,
}  # fmt: skip


def lowered(reads: tuple[str, ...] = (), changes: tuple[str, ...] = ()) -> Program:
    config = read_config(CONFIG)
    return Lowering(blueprint(config), "", frozenset(reads), frozenset(changes), config).lower()


def test_scores_share_no_buffer_with_other_results() -> None:
    """They have fewer rows, and may be as wide as something else: here as queries, keys and values together."""
    program = lowered()
    widths = [buffer.columns for buffer in program.buffers]
    assert widths.count(64) == 2
    assert [step.output for step in program.steps].count(program.scores) == 1


def test_steps_after_the_last_store_are_for_scored_tokens_only() -> None:
    steps = lowered().steps
    (*_, last) = (number for number, step in enumerate(steps) if step.kind is StepKind.ROPE_KV_STORE)
    assert {step.scope for step in steps[: last + 1]} == {TokenScope.ALL}
    assert {step.scope for step in steps[last + 1 : -1]} == {TokenScope.SCORED}
    assert steps[-1].scope is TokenScope.GATHERED
    assert [step.after_cache for step in steps] == [number > last for number in range(len(steps))]


@pytest.mark.parametrize("site", ["blocks.1.residual", "blocks.1.attention.heads", "final"])
def test_a_watched_site_after_the_last_store_is_computed_for_all_tokens(site: str) -> None:
    program = lowered((site,))
    written = [number for number, step in enumerate(program.steps) if step.output == program.sites[site].buffer]
    assert {step.scope for step in program.steps[: written[-1] + 1]} == {TokenScope.ALL}
    assert {step.scope for step in program.steps[written[-1] + 1 : -1]} <= {TokenScope.SCORED}
    assert [step.after_cache for step in program.steps] == sorted(step.after_cache for step in program.steps)
    assert program.steps[-2].after_cache
    assert set(program.sites) == {site}


def test_a_change_between_rope_and_the_cache_splits_the_step() -> None:
    kinds = [step.kind for step in lowered(changes=("blocks.0.attention.key",)).steps]
    assert kinds.count(StepKind.ROPE) == kinds.count(StepKind.KV_STORE) == kinds.count(StepKind.ROPE_KV_STORE) == 1


def lowered_family(family: str) -> Program:
    config = read_config({"model_type": family, **TINY[family]})
    return Lowering(blueprint(config), "", frozenset(), frozenset(), config).lower()


def test_a_fused_gate_reads_the_two_halves_of_its_matrix() -> None:
    step = next(step for step in lowered_family("phi3").steps if step.epilogue is Epilogue.GATE)
    gates, ups = (matrix for matrix in step.matrices if isinstance(matrix, MatrixRef))
    assert gates.names == ups.names == ("model.layers.0.mlp.gate_up_proj.weight",)
    assert gates.shape == ups.shape == (80, 48)
    assert (gates.part, ups.part) == (RowRuns(80, 0, 80, 1), RowRuns(80, 80, 80, 1))


def test_heads_that_take_turns_in_a_projection_are_three_matrices() -> None:
    step = next(step for step in lowered_family("gpt_neox").steps if len(step.matrices) == 3)
    parts = [matrix.part for matrix in step.matrices if isinstance(matrix, MatrixRef)]
    assert parts == [RowRuns(12, 12 * first, 36, 4) for first in range(3)]
    rows = [part.rows.tolist() for part in parts if part is not None]
    assert rows[1][:13] == [*range(12, 24), 48]
    assert sorted(row for part in rows for row in part) == list(range(3 * 48))


@pytest.mark.parametrize("family", ["olmo2", "olmoe"])
def test_a_norm_of_all_heads_is_a_step_over_some_columns(family: str) -> None:
    norms = [step for step in lowered_family(family).steps if step.kind is StepKind.NORM and step.width]
    assert [(step.column, step.width) for step in norms[:2]] == [(0, 48), (48, 24)]
    assert all(step.input == step.output for step in norms)


@pytest.mark.parametrize("family", ["phi3", "gpt_neox", "gpt2", "llama", "qwen3_moe", "gpt_oss"])
def test_required_matrices_are_those_that_the_steps_read(family: str) -> None:
    config = read_config({"model_type": family, **TINY[family]})
    read = {
        matrix._replace(biases=())
        for step in lowered_family(family).steps
        for matrix in (*step.matrices, *(matrix for expert in step.experts for matrix in expert))
        if isinstance(matrix, MatrixRef)
    }
    assert read == set(required_matrices(blueprint(config)))
