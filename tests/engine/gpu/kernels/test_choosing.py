"""Tokens that kernels choose against those that a policy chooses by the same scores and draws, and what it says of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from glassformer.decoding import Policy
from glassformer.engine.gpu.kernels import ChoiceMode, choose
from glassformer.engine.gpu.kernels.choosing import BEST, CHOSEN, SHARE, record_size
from tests.decoding.oracle import recipe

CHAINS: list[dict[str, Any]] = [
    {"top_k": 50},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
    {"temperature": 1.9, "top_k": 200, "top_p": 0.95, "min_p": 0.05},
    {"top_k": 0, "top_p": 0.5},
    {"top_k": 0, "temperature": 0.6, "min_p": 0.1},
    {"top_k": 0},
    {"top_k": 1},
]


def scores_like(case: str, vocabulary: int, rows: int, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    scores = 3 * torch.randn(rows, vocabulary)
    if case == "ties":
        return scores.round()
    if case == "peaked":
        return scores.sign() * scores.abs() ** 2
    if case == "banned":
        scores[:, ::3] = -torch.inf
    if case == "flat":
        scores[:] = -0.0
        scores[:, 1::2] = 0.0
    return scores


def policy(chain: dict[str, Any], seed: int) -> Policy:
    return Policy(recipe(do_sample=True, seed=seed, **chain), [1], context=10**6)


def rules_of(chain: dict[str, Any], draws: list[float]) -> list[float]:
    min_p = chain.get("min_p", 0.0)
    depth = math.log(min_p) if min_p else -math.inf
    return [chain.get("temperature", 1.0), chain["top_k"], chain.get("top_p", 1.0), depth, 1.0, *draws]


def mode_of(chain: dict[str, Any], shown: int = 0) -> ChoiceMode:
    open_list = chain["top_k"] == 0
    return ChoiceMode(
        shown, open_list or chain["top_k"] > 64, open_list or shown > 0, open_list and chain.get("top_p", 1.0) == 1
    )


def run(scores: torch.Tensor, rules: list[list[float]], mode: ChoiceMode, step: int = 0) -> tuple[list[int], torch.Tensor]:
    rows = len(scores)
    tokens = torch.full((rows,), -7, dtype=torch.int32)
    records = torch.full((step + 1, rows, record_size(mode.shown)), torch.nan, dtype=torch.float64)
    steps = torch.full((rows,), step, dtype=torch.int32)
    choose(scores, torch.tensor(rules, dtype=torch.float64), steps, records, tokens, mode)
    return tokens.tolist(), records[step]


@pytest.mark.parametrize("case", ["random", "ties", "peaked", "banned", "flat"])
@pytest.mark.parametrize("chain", CHAINS, ids=str)
def test_a_draw_gives_the_policys_token(case: str, chain: dict[str, Any]) -> None:
    vocabulary, rows = 1500, 3
    scores = scores_like(case, vocabulary, rows, len(case))
    policies = [policy(chain, seed) for seed in range(rows)]
    draws = [one.history.draw() for one in policies]
    tokens, records = run(scores, [rules_of(chain, [draw]) for draw in draws], mode_of(chain))
    for row, chooser in enumerate(policies):
        step = chooser.feed(scores[row].numpy())
        if tokens[row] == -1:  # more candidates than a list has room for
            assert case in ("flat", "ties", "banned", "random")
            continue
        assert tokens[row] == step.id
        assert records[row, SHARE.value].item() == pytest.approx(2 ** -chooser.history.surprisals[0], rel=1e-9)
        assert records[row, BEST.value].item() == scores[row].max()
        assert records[row, CHOSEN.value].item() == scores[row, step.id]
