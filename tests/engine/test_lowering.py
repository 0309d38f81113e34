"""Programs: what holds of them whatever engine runs them."""

from __future__ import annotations

from typing import Any

import pytest

from glassformer.blueprints import blueprint, read_config
from glassformer.engine.lowering import Lowering
from glassformer.engine.program import Program, StepKind, TokenScope

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
    assert {step.scope for step in program.steps[:-1]} == {TokenScope.ALL}
    assert [step.after_cache for step in program.steps] == sorted(step.after_cache for step in program.steps)
    assert program.steps[-2].after_cache
    assert set(program.sites) == {site}


def test_a_change_between_rope_and_the_cache_splits_the_step() -> None:
    kinds = [step.kind for step in lowered(changes=("blocks.0.attention.key",)).steps]
    assert kinds.count(StepKind.ROPE) == kinds.count(StepKind.KV_STORE) == kinds.count(StepKind.ROPE_KV_STORE) == 1
