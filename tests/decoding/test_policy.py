"""Settings, rules, draws and the loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st
from transformers.generation import logits_process as theirs

from glassformer.decoding import Finish, GenerationConfig, Policy, loop, rules
from glassformer.decoding.policy import pick
from glassformer.decoding.rules import Shortlist
from glassformer.errors import ExecutorError, SettingError, UnknownArgument

scores_strategy = st.integers(0, 2**32 - 1).map(
    lambda seed: (np.random.default_rng(seed).standard_normal(57) * 4).astype(np.float32)
)


def spread(field: Shortlist, size: int) -> torch.Tensor:
    """A shortlist as the reference writes it: the whole vocabulary, minus infinity for what is out."""
    whole = np.full(size, -np.inf, np.float32)
    whole[slice(None) if field.ids is None else field.ids] = field.scores
    return torch.tensor(whole)


@effort(max_examples=150, deadline=None)
@given(scores_strategy, st.floats(0.1, 3.0), st.integers(1, 70), st.floats(0.01, 0.999))
def test_rules_equal_the_references(scores: Any, temperature: float, k: int, p: float) -> None:
    none = torch.zeros(1, 1, dtype=torch.long)
    whole = torch.tensor(scores)[None]
    for ours, reference in (
        (rules.temperature(temperature), theirs.TemperatureLogitsWarper(temperature)),
        (rules.top_k(k), theirs.TopKLogitsWarper(k)),
        (rules.top_p(p), theirs.TopPLogitsWarper(p)),
    ):
        assert torch.allclose(spread(ours(Shortlist(scores)), 57), reference(none, whole)[0], atol=1e-5)


@effort(max_examples=50, deadline=None)
@given(scores_strategy)
def test_a_rule_that_removes_nothing_changes_nothing(scores: Any) -> None:
    field = Shortlist(scores)
    assert rules.top_k(57)(field) is field
    assert rules.top_p(1.0 - 1e-12)(rules.top_k(1)(field)).scores.size == 1


def test_ties_with_the_kth_stay() -> None:
    field = rules.top_k(2)(Shortlist(np.array([1, 3, 2, 2, 0], np.float32)))
    assert field.ids is not None
    assert field.ids.tolist() == [1, 2, 3]


def sampled(**changes: Any) -> GenerationConfig:
    return GenerationConfig().merged({"do_sample": True, **changes})


def test_draws_follow_the_distribution() -> None:
    """Chi-square over 20,000 counted draws, with top-k leaving four candidates."""
    scores = np.log(np.array([0.4, 0.3, 0.2, 0.1, 0.0001, 0.0001], np.float32))
    counts = np.zeros(6)
    for index in range(20_000):
        counts[Policy(sampled(top_k=4), [1], context=10, seed=5, index=index).feed(scores).id] += 1
    expected = np.array([0.4, 0.3, 0.2, 0.1]) * 20_000
    assert counts[4:].sum() == 0
    assert ((counts[:4] - expected) ** 2 / expected).sum() < 16.3  # p = 0.001 at three degrees of freedom


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
    assert Policy(GenerationConfig(), [1], context=9).seed is None


def test_steps_explain_themselves_when_asked() -> None:
    scores = np.array([0.0, 2.0, 1.0, -1.0], np.float32)
    step = Policy(GenerationConfig(), [1], context=9, look=2).feed(scores)
    assert step.candidates is not None
    assert step.candidates.ids.tolist() == [1, 2]
    assert step.logprob == pytest.approx(float(torch.tensor(scores).log_softmax(-1)[1]), abs=1e-6)
    assert step.draw is None
    quiet = Policy(GenerationConfig(), [1], context=9).feed(scores)
    assert quiet.candidates is None
    assert quiet.logprob is None


def test_candidates_read_as_rows() -> None:
    step = Policy(GenerationConfig(), [1], context=9, look=4).feed(np.array([0.0, 2.0, 1.0, -1.0], np.float32))
    assert step.candidates is not None
    assert len(step.candidates) == 4
    assert [row[0] for row in step.candidates] == [1, 2, 0, 3]
    assert repr(step.candidates) == "Candidates(1: 64.4%, 2: 23.7%, 0: 8.7%, …)"


def test_finishing() -> None:
    scores = np.array([0.0, 2.0, 1.0], np.float32)
    ends = Policy(GenerationConfig(eos_token_id=[1, 2]), [1], context=9)
    assert ends.feed(scores).finish is Finish.EOS
    short = Policy(GenerationConfig(max_new_tokens=2), [1], context=9)
    assert [short.feed(scores).finish for _ in range(2)] == [None, Finish.LENGTH]
    crowded = Policy(GenerationConfig(), [1] * 7, context=9)
    assert [crowded.feed(scores).finish for _ in range(2)] == [None, Finish.LENGTH]
    assert Policy(GenerationConfig(max_length=5), [1, 1], context=9).room == 3


def test_nan_scores_are_no_choice() -> None:
    bad = np.array([0.0, np.nan, 1.0], np.float32)
    with pytest.raises(ExecutorError, match="step 0 are not numbers"):
        Policy(GenerationConfig(), [1], context=9).feed(bad)
    with pytest.raises(ExecutorError, match="not numbers"):
        Policy(sampled(top_k=None), [1], context=9).feed(bad)


@effort(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0, 1, exclude_max=True))
def test_pick_is_inside_its_share(seed: int, draw: float) -> None:
    shares = np.random.default_rng(seed).dirichlet(np.ones(9))
    index = pick(shares, draw)
    upto = np.cumsum(shares)
    assert (upto[index - 1] if index else 0.0) <= draw * upto[-1] + 1e-12
    assert draw * upto[-1] <= upto[index] + 1e-12


class Counting:
    """An executor that scores the next number highest, and remembers what is open."""

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

            def host(self, index: int = -1) -> Any:
                return np.eye(50, dtype=np.float32)[self.last + 1]

        return [One(feed.ids[-1]) for feed in feeds]

    def close(self, row: int) -> None:
        self.open_rows.remove(row)


def test_the_loop_runs_rows_together_and_lets_each_leave() -> None:
    executor = Counting()
    policies = [
        Policy(GenerationConfig(eos_token_id=end), [start], context=50) for start, end in ((1, 4), (10, 11), (20, 26))
    ]
    list(loop(executor, policies))  # type: ignore[arg-type]
    assert [policy.chosen for policy in policies] == [[2, 3, 4], [11], [21, 22, 23, 24, 25, 26]]
    assert executor.passes == [3, 2, 2, 1, 1, 1]
    assert not executor.open_rows


def test_leaving_the_loop_early_closes_all_rows() -> None:
    executor = Counting()
    steps = loop(executor, [Policy(GenerationConfig(), [n], context=50) for n in (1, 2)])  # type: ignore[arg-type]
    assert next(steps)[1].id == 2
    assert executor.open_rows
    steps.close()  # type: ignore[attr-defined]
    assert not executor.open_rows


class TestSettings:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"max_new_tokens": 0}, "max_new_tokens is 0; it must be a whole number of at least 1"),
            ({"max_new_tokens": 2.5}, "whole number"),
            ({"max_new_tokens": True}, "whole number"),
            ({"max_length": -3}, "max_length is -3"),
            ({"do_sample": True, "temperature": 0.0}, "temperature is 0.0; it must be above 0"),
            ({"do_sample": True, "temperature": "hot"}, "temperature is 'hot'"),
            ({"do_sample": True, "top_k": -1}, "top_k is -1"),
            ({"do_sample": True, "top_p": 1.5}, "top_p is 1.5; it must be above 0 and at most 1"),
            ({"do_sample": True, "top_p": 0}, "top_p is 0"),
            ({"do_sample": True, "seed": -1}, "seed is -1"),
            ({"temperature": 0.5}, "temperature=0.5 has no effect without sampling. Pass do_sample=True"),
            ({"top_k": 5}, "top_k=5 has no effect"),
        ],
    )
    def test_values_that_mean_nothing(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(SettingError, match=message):
            GenerationConfig().merged(changes)

    def test_unknown(self) -> None:
        with pytest.raises(UnknownArgument, match="no setting 'max_new_token'. Did you mean 'max_new_tokens'"):
            GenerationConfig().merged({"max_new_token": 5})
        with pytest.raises(AttributeError):
            GenerationConfig().max_new_token = 5  # type: ignore[attr-defined]

    def test_no_room(self) -> None:
        with pytest.raises(SettingError, match="max_length=3 leaves no room after a prompt of 4"):
            Policy(GenerationConfig(max_length=3), [1, 2, 3, 4], context=9)

    def test_a_calls_max_length_outranks_the_models_max_new_tokens(self) -> None:
        found = GenerationConfig(max_new_tokens=100).merged({"max_length": 6})
        assert found.room(4, 50) == 2

    def test_files(self) -> None:
        raw = {
            "do_sample": True,
            "temperature": 0.6,
            "top_k": 20,
            "top_p": 0.95,
            "eos_token_id": [3, 4],
            "odd": 1,
            "seed": None,
        }
        found = GenerationConfig.read(raw)
        assert found.eos == {3, 4}
        assert found.extra == {"odd": 1}
        assert found.to_dict().items() >= {"odd": 1, "top_k": 20, "eos_token_id": [3, 4]}.items()
        with pytest.raises(SettingError, match=r"generation_config.json: top_p is 7"):
            GenerationConfig.read({"top_p": 7})
