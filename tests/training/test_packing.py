"""Packed rows: what is computed for each is the same as alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from glassformer.training.objectives.answers import ChatAnswers
from glassformer.training.packing import TrainingRow, pack_rows, windows_of
from tests.training.models import tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")
SLIDING = {"sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {}, "gpt2": {}, "gemma3_text": {**SLIDING, "head_dim": 8}, "scratch": {},
    "gpt_oss": {**SLIDING, "head_dim": 8, "num_key_value_heads": 2, "num_local_experts": 2, "num_experts_per_tok": 1},
    "gemma2": {**SLIDING, "head_dim": 8, "final_logit_softcapping": 2.0},
}  # fmt: skip


def some_rows(count: int = 7) -> list[TrainingRow]:
    draw = torch.Generator().manual_seed(1)
    lengths = [9, 4, 2, 5, 9, 3, 4][:count]
    ids = [torch.randint(1, 40, (length,), generator=draw).tolist() for length in lengths]
    return [TrainingRow(row, [place >= len(row) // 2 for place in range(len(row))]) for row in ids]


def test_the_longest_row_is_the_width_and_others_fill_up() -> None:
    assert windows_of([9, 4, 2, 5, 9, 3, 4]) == [[0], [4], [3, 1], [6, 5, 2]]
    assert windows_of([9, 4], pack=False) == [[0], [1]]
    packed = pack_rows(some_rows())
    assert packed.inputs["input_ids"].shape == (4, 9)
    assert packed.inputs["position_ids"][2].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3]
    assert packed.inputs["sequence_ids"][2].tolist() == [1, 1, 1, 1, 1, 2, 2, 2, 2]
    assert packed.row_indices[2].tolist() == [3, 3, 3, 3, 3, 1, 1, 1, 1]
    rows = some_rows()
    assert packed.targets[2].tolist() == [-100, *rows[3].ids[2:], -100, -100, *rows[1].ids[2:], -100]
    assert "sequence_ids" not in pack_rows(rows[:1]).inputs


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_gradients_are_those_of_rows_that_stand_alone(family: str) -> None:
    rows = some_rows()
    results = []
    for pack, size in ((True, len(rows)), (False, len(rows)), (False, 1)):
        model = tiny_model(family, **FAMILIES[family]).double().eval()  # without dropout
        objective = ChatAnswers(rows, [], "test", pack)
        batches = [objective.batch(range(start, start + size)) for start in range(0, len(rows), size)]
        total = sum(objective.loss(model, batch) for batch in batches)
        total.backward()
        gradients = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
        results.append((total.detach(), gradients, sum(batch.count for batch in batches)))
    for total, gradients, count in results[:2]:
        assert count == results[2][2]
        torch.testing.assert_close(total, results[2][0], rtol=1e-12, atol=1e-12)
        assert gradients.keys() == results[2][1].keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, results[2][1][name], rtol=1e-9, atol=1e-11)


def test_the_loss_is_the_mean_cross_entropy_of_the_answers() -> None:
    """One by row, by the plain definition."""
    rows, model = some_rows(), tiny_model().double()
    expected = torch.zeros((), dtype=torch.float64)
    for row in rows:
        logs = model(torch.tensor([row.ids])).logits[0].log_softmax(-1)
        for place in range(1, len(row.ids)):
            if row.predicted[place]:
                expected = expected - logs[place - 1, row.ids[place]]
    objective = ChatAnswers(rows, [], "test")
    torch.testing.assert_close(objective.loss(model, objective.batch(range(len(rows)))), expected)


def test_a_watched_pass_of_packed_rows_has_every_site() -> None:
    objective, model = ChatAnswers(some_rows(), [], "test"), tiny_model()
    sites = objective.run_base(model, objective.batch([0, 1, 2]), watch="blocks.*.residual").sites
    assert list(sites) == ["blocks.0.residual", "blocks.1.residual"]
