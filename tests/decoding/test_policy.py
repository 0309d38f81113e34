"""Settings, rules, draws and the loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from glassformer.decoding import Finish, GenerationConfig, Policy, Recipe, StepDetail
from glassformer.decoding.loop import loop
from glassformer.decoding.policy import pick
from glassformer.engine.protocol import NO_EXTRAS
from glassformer.ground.errors import ExecutorError
from tests.sweeps import examples


def sampled(**changes: Any) -> Recipe:
    return Recipe.of(GenerationConfig().merged({"do_sample": True, **changes}))


def greedy(**settings: Any) -> Recipe:
    return Recipe.of(GenerationConfig(**settings))


DRAWS = 100_000


def surprising(counts: Any, expected: Any) -> bool:
    """Whether counts are as far from what was expected as happens by chance once in a thousand times (chi-square)."""
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = len(counts) - 1
    limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * np.sqrt(2 / (9 * freedom))) ** 3  # Wilson and Hilferty's approximation
    return bool(statistic > limit)


SWEEP = [{"top_k": 4}, {"top_k": 0}, {"temperature": 1.7, "top_p": 0.8}, {"min_p": 0.3}, {"typical_p": 0.7}]


@pytest.mark.parametrize(
    ("settings", "draws"),
    [({"top_k": 4}, DRAWS // 5), *(pytest.param(one, DRAWS, marks=pytest.mark.sweep) for one in SWEEP)],
)
def test_draws_follow_the_distribution(settings: dict[str, Any], draws: int) -> None:
    """Counted draws, half of them the steps of one text, half of them the first of many texts."""
    scores = np.log(np.array([0.3, 0.02, 0.2, 0.25, 0.08, 0.15], np.float32))
    recipe = sampled(**settings)
    long = Policy(recipe, [1], context=draws, seed=5)
    field = long.shape(scores)
    expected = torch.tensor(field.full_scores(6)).softmax(-1).numpy() * draws / 2
    long.history.room = draws
    steps = np.bincount([long.feed(scores).id for _ in range(draws // 2)], minlength=6)
    first = Policy(recipe, [1], context=10, seed=6)
    texts = np.bincount([first.fork(index).feed(scores).id for index in range(draws // 2)], minlength=6)
    for counts in (steps, texts):
        assert counts[expected == 0].sum() == 0
        assert not surprising(counts[expected > 0], expected[expected > 0])
    assert surprising(steps[expected > 0] * np.linspace(0.9, 1.1, (expected > 0).sum()), expected[expected > 0])


def test_draws_depend_on_seed_index_and_step_alone() -> None:
    scores = np.zeros(1000, np.float32)

    def draws(seed: int, index: int) -> list[int]:
        policy = Policy(sampled(), [1], context=99, seed=seed, index=index)
        return [policy.feed(scores).id for _ in range(8)]

    assert draws(1, 0) == draws(1, 0)
    assert len({tuple(draws(seed, index)) for seed in range(3) for index in range(3)}) == 9
    policy = Policy(sampled(), [1], context=99, seed=1)
    policy.accept(draws(1, 0)[0])
    assert policy.feed(scores).id == draws(1, 0)[1]
    fork = policy.fork()
    assert fork.feed(scores).id == policy.feed(scores).id
    assert fork.chosen is not policy.chosen


def test_without_a_seed_one_is_drawn() -> None:
    seeds = {Policy(sampled(), [1], context=9).seed for _ in range(5)}
    assert len(seeds) == 5
    assert Policy(greedy(), [1], context=9).seed is None


def test_steps_explain_themselves_when_asked() -> None:
    scores = np.array([0.0, 2.0, 1.0, -1.0], np.float32)
    step = Policy(greedy(), [1], context=9, detail=StepDetail(2)).feed(scores)
    assert step.candidates is not None
    assert step.candidates.ids.tolist() == [1, 2]
    assert step.logprob == pytest.approx(float(torch.tensor(scores).log_softmax(-1)[1]), abs=1e-6)
    assert step.draw is None
    quiet = Policy(greedy(), [1], context=9).feed(scores)
    assert quiet.candidates is None
    assert quiet.logprob is None


def test_candidates_iterate_as_rows() -> None:
    step = Policy(greedy(), [1], context=9, detail=StepDetail(4)).feed(np.array([0.0, 2.0, 1.0, -1.0], np.float32))
    assert step.candidates is not None
    assert len(step.candidates) == 4
    assert [row[0] for row in step.candidates] == [1, 2, 0, 3]
    assert repr(step.candidates) == "Candidates(1: 64.4%, 2: 23.7%, 0: 8.7%, …)"


def test_a_policy_finishes_at_eos_and_at_its_limit() -> None:
    scores = np.array([0.0, 2.0, 1.0], np.float32)
    ends = Policy(greedy(eos_token_id=[1, 2]), [1], context=9)
    assert ends.feed(scores).finish is Finish.EOS
    short = Policy(greedy(max_new_tokens=2), [1], context=9)
    assert [short.feed(scores).finish for _ in range(2)] == [None, Finish.LENGTH]
    crowded = Policy(greedy(), [1] * 7, context=9)
    assert [crowded.feed(scores).finish for _ in range(2)] == [None, Finish.LENGTH]
    assert Policy(greedy(max_length=5), [1, 1], context=9).room == 3


def test_nan_scores_are_no_choice() -> None:
    bad = np.array([0.0, np.nan, 1.0], np.float32)
    with pytest.raises(ExecutorError, match="step 0"):
        Policy(greedy(), [1], context=9).feed(bad)
    with pytest.raises(ExecutorError, match="not numbers"):
        Policy(sampled(top_k=None), [1], context=9).feed(bad)


@effort(max_examples=examples(25, 100), deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0, 1, exclude_max=True))
def test_pick_is_inside_its_share(seed: int, draw: float) -> None:
    shares = np.random.default_rng(seed).dirichlet(np.ones(9))
    index = pick(shares, draw)
    upto = np.cumsum(shares)
    assert (upto[index - 1] if index else 0.0) <= draw * upto[-1] + 1e-12
    assert draw * upto[-1] <= upto[index] + 1e-12


class Counting:
    """An executor that scores the next number highest, and remembers what is open."""

    capabilities = NO_EXTRAS

    def __init__(self) -> None:
        self.open_rows: set[int] = set()
        self.passes: list[int] = []

    def open(self, source: Any = None) -> int:
        self.open_rows.add(len(self.open_rows) + 100 * len(self.passes))
        return max(self.open_rows)

    def run(self, feeds: Any) -> list[Any]:
        self.passes.append(len(feeds))

        class One:
            def __init__(self, last: int) -> None:
                self.last = last
                self.sites: dict[str, Any] = {}

            def host(self, index: int = -1) -> Any:
                return np.eye(50, dtype=np.float32)[self.last + 1]

        return [One(feed.ids[-1]) for feed in feeds]

    def close(self, row: int) -> None:
        self.open_rows.remove(row)


def test_the_loop_runs_rows_together_and_lets_each_leave() -> None:
    executor = Counting()
    policies = [Policy(greedy(eos_token_id=end), [start], context=50) for start, end in ((1, 4), (10, 11), (20, 26))]
    list(loop(executor, policies))  # type: ignore[arg-type]
    assert [policy.chosen for policy in policies] == [[2, 3, 4], [11], [21, 22, 23, 24, 25, 26]]
    assert executor.passes == [3, 2, 2, 1, 1, 1]
    assert not executor.open_rows


def test_leaving_the_loop_early_closes_all_rows() -> None:
    executor = Counting()
    steps = loop(executor, [Policy(greedy(), [n], context=50) for n in (1, 2)])  # type: ignore[arg-type]
    assert next(steps)[1].id == 2
    assert executor.open_rows
    steps.close()  # type: ignore[attr-defined]
    assert not executor.open_rows
