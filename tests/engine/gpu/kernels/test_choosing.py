"""Tokens that kernels choose against those that a policy chooses by the same scores and draws, and their records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.decoding import Policy
from glassformer.decoding.device_tokens import STAGES
from glassformer.engine.gpu.device_steps import mode_of, rule_numbers
from glassformer.engine.gpu.kernels import advance, choose, choose_best
from glassformer.engine.gpu.kernels.choosing import read_records, record_size
from glassformer.engine.protocol import BEST, NOT_CHOSEN, Choice, ChoiceRecords
from glassformer.ground.candidates import EntropyStats, best, entropy_stats
from tests.decoding.oracle import recipe

CHAINS: list[dict[str, Any]] = [
    {"top_k": 50},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
    {"temperature": 1.9, "top_k": 200, "top_p": 0.95, "min_p": 0.05},
    {"top_k": 0, "top_p": 0.5},
    {"top_k": 0, "temperature": 0.6, "min_p": 0.1},
    {"top_k": 0, "temperature": 3.0},
    {"top_k": 1},
]
CASES = ("random", "peaked", "ties", "banned", "flat", "nearly all banned")
VOCABULARY, ROWS = 1100, 2  # two blocks


def scores_like(case: str, rows: int = ROWS, vocabulary: int = VOCABULARY) -> torch.Tensor:
    torch.manual_seed(CASES.index(case))
    scores = 3 * torch.randn(rows, vocabulary)
    if case == "peaked":
        return scores.sign() * scores.abs() ** 2
    if case == "ties":
        return scores.round()
    if case == "flat":
        scores[:] = -0.0
        scores[:, ::2] = 0.0
    if case == "banned":
        scores[:, ::3] = -torch.inf
    if case == "nearly all banned":
        scores[:, 3:] = -torch.inf
    return scores


def policies(chain: dict[str, Any], rows: int = ROWS) -> list[Policy]:
    return [Policy(recipe(do_sample=True, **chain), [1], context=10**6, seed=seed) for seed in range(rows)]


def chosen(
    scores: torch.Tensor, choices: Sequence[Choice], draws: Sequence[float], step: int = 0
) -> tuple[list[int], list[ChoiceRecords]]:
    mode = mode_of(choices)
    assert mode is not None
    tokens = torch.full((len(scores),), -7, dtype=torch.int32)
    records = torch.full((step + 1, len(scores), record_size(mode.shown)), torch.nan, dtype=torch.float64)
    rules = torch.from_numpy(rule_numbers(choices, np.full((len(scores), step + 1), 2.0)))
    rules[:, -1] = torch.tensor(draws, dtype=torch.float64)
    choose(scores, rules, torch.full_like(tokens, step), records, tokens, mode)
    return tokens.tolist(), [read_records(records[step:, row].numpy()) for row in range(len(scores))]


def assert_as_the_policies_choose(chain: dict[str, Any], case: str) -> None:
    scores, choosers = scores_like(case), policies(chain)
    choices = [chooser.choice for chooser in choosers]
    tokens, records = chosen(scores, choices, [chooser.history.draw() for chooser in choosers], step=1)  # type: ignore[arg-type]
    for row, chooser in enumerate(choosers):
        step = chooser.feed(scores[row].numpy())
        if tokens[row] == NOT_CHOSEN:
            assert is_too_long_for_a_list(chain, case)
            continue
        assert tokens[row] == step.id
        assert records[row].shares[0] == pytest.approx(2 ** -chooser.history.surprisals[0], rel=1e-9)
        assert records[row].best[0] == scores[row].max()
        assert records[row].chosen[0] == scores[row, step.id]


def is_too_long_for_a_list(chain: dict[str, Any], case: str) -> bool:
    """Whether more candidates than fit a list tie, or are needed for a probability."""
    return case in ("flat", "ties", "banned", "random") and (chain.get("top_p", 1.0) < 1 or chain["top_k"] > 0)


@pytest.mark.parametrize("chain", CHAINS, ids=str)
def test_a_draw_gives_the_policys_token(chain: dict[str, Any]) -> None:
    assert_as_the_policies_choose(chain, "peaked")


@pytest.mark.parametrize("case", CASES)
def test_ties_and_bans_and_flat_distributions(case: str) -> None:
    assert_as_the_policies_choose(CHAINS[1], case)


@pytest.mark.sweep
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("chain", CHAINS, ids=str)
def test_every_chain_over_every_kind_of_scores(chain: dict[str, Any], case: str) -> None:
    assert_as_the_policies_choose(chain, case)


def test_a_share_that_is_reached_exactly_keeps_no_more() -> None:
    scores = torch.full((2, VOCABULARY), -torch.inf)
    scores[:, [5, 900, 7, 30]] = 2.0  # a quarter each; half of it is the two lowest ids
    tokens, records = chosen(scores, [Choice(sampled=True, top_k=50, top_p=0.5, candidates=1)] * 2, [0.499, 0.501])
    assert tokens == [5, 7]
    assert [record.in_play[0].tolist() for record in records] == [[4, 4, 4, 2, 2]] * 2


def test_draws_at_the_borders() -> None:
    scores = torch.arange(-1000.0, -1000.0 - VOCABULARY, -1).repeat(2, 1)  # whose weights are 0
    scores[:, [3, 1099]] = 0.0
    for choice in (Choice(sampled=True), Choice(sampled=True, top_k=2)):
        assert chosen(scores, [choice] * 2, [0.0, 1 - 2**-53])[0] == [3, 1099]


@pytest.mark.parametrize("chain", [CHAINS[2], CHAINS[4]], ids=str)
def test_records_have_the_best_candidates_and_the_sums_of_every_stage(chain: dict[str, Any]) -> None:
    scores, choosers = scores_like("peaked"), policies(chain)
    choices = [Choice(sampled=True, candidates=10, **chain)] * ROWS
    _, records = chosen(scores, choices, [chooser.history.draw() for chooser in choosers])
    for chooser, record, raw in zip(choosers, records, scores.numpy(), strict=True):
        assert record.ids[0, :10].tolist() == best(raw, 10).tolist()
        assert record.logits[0].tolist() == raw[record.ids[0]].tolist()
        names = ["model", *(name for name, _ in chooser.recipe.rules)]
        for name, shortlist in zip(names, chooser.stages(raw), strict=True):
            column = STAGES.index(name)
            sums = EntropyStats.of(int(record.in_play[0, column]), record.totals[0, column], record.weighted[0, column])
            np.testing.assert_allclose(sums, entropy_stats(shortlist.scores), rtol=1e-5, atol=1e-6)


def test_a_vocabulary_that_fits_a_list_is_decided_whatever_is_needed() -> None:
    scores = torch.linspace(0.0, 0.01, 900).repeat(1, 1)
    (chooser,) = policies({"top_k": 0, "top_p": 0.97}, rows=1)
    choice = chooser.choice
    assert choice is not None
    assert chosen(scores, [choice], [chooser.history.draw()])[0] == [chooser.feed(scores[0].numpy()).id]


def test_rows_that_choose_differently_stand_side_by_side() -> None:
    scores = scores_like("peaked", rows=3)
    choices = [BEST, Choice(sampled=True, top_k=5), Choice(sampled=True, min_p=0.01)]
    together, _ = chosen(scores, choices, [0.0, 0.7, 0.7])
    assert together[0] == int(scores[0].argmax())
    for row in (1, 2):
        assert chosen(scores[row : row + 1], choices[row : row + 1], [0.7])[0] == together[row : row + 1]


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_scores_that_are_not_numbers_give_no_token(broken: float) -> None:
    scores = scores_like("random", rows=3)
    scores[0, 1050] = broken
    scores[2] = -torch.inf
    assert [token == NOT_CHOSEN for token in chosen(scores, [Choice(candidates=1)] * 3, [0.0] * 3)[0]] == [True, False, True]
    tokens = torch.full((3,), -7, dtype=torch.int32)
    choose_best(scores, tokens)
    assert tokens.tolist() == [NOT_CHOSEN, int(scores[1].argmax()), NOT_CHOSEN]


def test_the_best_of_equals_is_the_first() -> None:
    scores = torch.zeros(2, 9000)
    scores[0, [8999, 4500, 4097]] = 1.0
    tokens = torch.empty(2, dtype=torch.int32)
    choose_best(scores, tokens)
    assert tokens.tolist() == [4097, 0]
    assert chosen(scores[:, :VOCABULARY].contiguous(), [BEST, Choice(sampled=True, top_k=1)], [0.0, 0.5])[0][0] == NOT_CHOSEN


def test_a_token_becomes_the_next_one() -> None:
    tokens, step = torch.tensor([7, -1, 9], dtype=torch.int32), torch.tensor([2, 2, 2], dtype=torch.int32)
    chosen_ids = torch.full((4, 3), -7, dtype=torch.int32)
    ids, positions, slots, starts, ends = (torch.tensor([n, n + 1, n + 2], dtype=torch.int32) for n in range(10, 60, 10))
    advance(tokens, chosen_ids, step, ids, positions, slots, starts, ends)
    assert chosen_ids[2].tolist() == [7, -1, 9]
    assert ids.tolist() == [7, 0, 9]
    assert step.tolist() == [3, 3, 3]
    assert [part.tolist() for part in (positions, slots, starts, ends)] == [[n, n + 1, n + 2] for n in (21, 31, 41, 51)]
