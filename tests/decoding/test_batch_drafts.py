"""Drafts for the texts of a batch: the texts are those without drafts, and repetitive ones take fewer passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from glassformer.decoding import Policy, Step, StepDetail
from glassformer.decoding.loop import Loop
from glassformer.decoding.prompt_lookup import BatchDrafts, LookupForecast, MeasuredCost, worthwhile_length
from glassformer.decoding.token_history import TokenHistory
from glassformer.engine.prefix_cache import PrefixCache
from glassformer.ground.errors import NotNumbers
from tests.capabilities import offering
from tests.decoding.oracle import Oracle, recipe
from tests.see.models import both
from tests.sweeps import examples

PHRASE = (3, 7, 1, 8, 2)
SETTINGS: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "temperature": 0.3, "seed": 5},
    {"do_sample": True, "top_k": 0, "mirostat": 2, "mirostat_tau": 2.0, "seed": 1},
    {"repetition_penalty": 1.05},
    {"guidance_scale": 1.5},
    {"eos_token_id": 8},
]


class FixedCost:
    """A position costs so much of a token, however many texts there are."""

    def __init__(self, share: float = 0.1) -> None:
        self.share = share

    def add(self, positions: int, seconds: float) -> None: ...

    def marginal_share(self, texts: int) -> float:
        return self.share


def repetitive(source: tuple[int, ...], ids: tuple[int, ...]) -> Any:
    """Scores that mostly go on with the phrase, and depend on all of the ids."""
    draw = np.random.default_rng([len(ids), *ids])
    scores = draw.standard_normal(12).astype(np.float32)
    scores[PHRASE[len(ids) % len(PHRASE)]] += 6 if draw.random() < 0.9 else 0
    return scores


def text(prompt: Sequence[int], **changes: Any) -> Policy:
    return Policy(recipe(**{"max_new_tokens": 40, **changes}), prompt, context=64)


def write(
    policies: Sequence[Policy], drafts: BatchDrafts | None, oracle: Any, joins: Sequence[int] = (), leaves: int | None = None
) -> dict[int, list[Step]]:
    """Each text's steps; text n joins before pass joins[n], and one leaves in the middle."""
    batch = Loop(oracle, drafts=drafts)
    steps: dict[int, list[Step]] = {number: [] for number in range(len(policies))}
    numbers = {id(policy): number for number, policy in enumerate(policies)}
    waiting = dict(enumerate([*joins, *[0] * (len(policies) - len(joins))]))
    for count in range(400):
        for number in [number for number, join in waiting.items() if join <= count]:
            del waiting[number]
            batch.admit([policies[number]])
        if leaves is not None and len(steps[leaves]) > 9 and policies[leaves] in batch.policies:
            batch.remove(policies[leaves])
        for policy, step in batch.step():
            assert isinstance(step, Step)
            steps[numbers[id(policy)]].append(step)
        if not batch.policies and not waiting:
            break
    batch.close()
    return steps


def ids(steps: Sequence[Step]) -> list[int]:
    return [step.id for step in steps]


@effort(max_examples=examples(7, 30), deadline=None)
@given(st.integers(0, 2**31), st.lists(st.sampled_from(SETTINGS), min_size=1, max_size=4), st.data())
def test_texts_are_the_same_with_and_without_drafts(seed: int, ways: list[dict[str, Any]], data: Any) -> None:
    """Whoever joins and leaves in between."""
    joins = data.draw(st.lists(st.integers(0, 12), min_size=len(ways), max_size=len(ways)))
    leaves = data.draw(st.none() | st.integers(0, len(ways) - 1))
    draw = np.random.default_rng(seed)
    prompts = [draw.integers(0, 12, size=draw.integers(1, 12)).tolist() for _ in ways]
    texts = [[text(prompt, **way) for prompt, way in zip(prompts, ways, strict=True)] for _ in range(2)]
    plain = write(texts[0], None, Oracle(scores=repetitive), joins)
    oracle = Oracle(scores=repetitive)
    drafted = write(texts[1], drafts := BatchDrafts(cost=FixedCost()), oracle, joins, leaves)
    assert not oracle.rows
    for number, steps in drafted.items():
        assert ids(steps) == ids(plain[number])[: len(steps)]
        assert number == leaves or len(steps) == len(plain[number])
    assert drafts.accepted_tokens == sum(step.drafted for steps in drafted.values() for step in steps)
    assert not drafts._forecasts


def test_a_repetitive_text_takes_fewer_passes_than_it_has_tokens() -> None:
    oracle = Oracle(scores=lambda source, ids: np.eye(12, dtype=np.float32)[PHRASE[len(ids) % len(PHRASE)]])
    drafts = BatchDrafts(cost=FixedCost())
    steps = write([text([1, 2])], drafts, oracle)[0]
    assert len(steps) == 40
    assert len(oracle.passes) < 20
    assert drafts.accepted_tokens == sum(step.drafted for step in steps) > 25
    assert drafts.accepted_tokens <= drafts.drafted_tokens


def test_a_text_without_repetitions_takes_the_same_passes() -> None:
    policies = [text([1, 2], max_new_tokens=30) for _ in range(2)]
    plain, drafting = (Oracle(size=5000, context=64) for _ in range(2))
    write(policies[:1], None, plain)
    write(policies[1:], drafts := BatchDrafts(cost=FixedCost(0.5)), drafting)
    assert drafting.passes == plain.passes
    assert drafts.drafted_tokens == 0


def test_a_draft_never_exceeds_its_limit_the_text_or_the_context() -> None:
    oracle = Oracle(context=48, scores=lambda source, ids: np.eye(12, dtype=np.float32)[4])
    drafts = BatchDrafts(30, FixedCost(0.01))
    write([Policy(recipe(max_new_tokens=100), [4] * 10, context=48)], drafts, offering(oracle, min_prefill_tokens=9))
    assert max(max(feeds) for feeds in oracle.passes[1:]) == 8
    longest = Oracle(scores=lambda source, ids: np.eye(12, dtype=np.float32)[4])
    write([text([4, 4, 4])], BatchDrafts(5, FixedCost(0.01)), longest)
    assert max(max(feeds) for feeds in longest.passes[1:]) == 6


def test_what_each_step_carries_is_the_same() -> None:
    detail = StepDetail(candidates=3, waterfall=True)
    texts = [Policy(recipe(max_new_tokens=30), [5, 6], context=64, detail=detail) for _ in range(2)]
    plain = write(texts[:1], None, Oracle(scores=repetitive))[0]
    drafted = write(texts[1:], BatchDrafts(cost=FixedCost()), Oracle(scores=repetitive))[0]
    assert any(step.drafted for step in drafted)
    assert [(step.logprob, step.entropy) for step in drafted] == [(step.logprob, step.entropy) for step in plain]


def test_scores_that_are_not_numbers_end_a_drafted_text_with_the_same_error() -> None:
    def broken(source: tuple[int, ...], ids: tuple[int, ...]) -> Any:
        scores = np.eye(12, dtype=np.float32)[4]
        return scores if len(ids) < 25 else scores * np.nan

    batch = Loop(oracle := Oracle(scores=broken), drafts=BatchDrafts(cost=FixedCost()))
    batch.admit([policy := text([4, 4])])
    steps = [step for _ in range(40) if batch.policies for _, step in batch.step()]
    assert isinstance(steps[-1], NotNumbers)
    assert "at step 23 " in str(steps[-1])
    assert policy.chosen == [4] * 23
    assert not oracle.rows


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("executor", ["plain", "cpu"])
@pytest.mark.parametrize("changes", [{}, {"do_sample": True, "temperature": 0.7, "seed": 2}], ids=["greedy", "sampled"])
def test_a_model_writes_the_same_texts(executor: str, changes: dict[str, Any]) -> None:
    model = both("llama", executor).model
    prompts = ["the cat sat on the mat the cat sat on the mat", "the dog the dog the dog", "a mat"]
    texts: list[list[list[int]]] = []
    for drafts in (None, BatchDrafts(cost=FixedCost(0.01))):
        runs = [model.start(prompt, raw=True, max_new_tokens=48, **changes) for prompt in prompts]
        policies = [model.policies(run.recipe, run.prompt_ids, seed=run.seed)[0] for run in runs]
        cache = PrefixCache(model.executor)
        texts.append([ids(steps) for steps in write(policies, drafts, cache, joins=[0, 3, 9]).values()])
        cache.clear()
    assert texts[0] == texts[1]
    if not changes:
        assert drafts is not None
        assert drafts.accepted_tokens > 0


class TestForecast:
    def test_what_came_before_is_expected_again(self) -> None:
        forecast = LookupForecast(TokenHistory([1, 2, 3, 4, 1, 2], 50))
        forecast.update()
        assert forecast.draft(3) == [3, 4, 1]

    def test_a_repetition_is_expected_to_go_on(self) -> None:
        forecast = LookupForecast(TokenHistory([7, 1, 2, 1, 2], 50))
        forecast.update()
        assert forecast.draft(5) == [1, 2, 1, 2, 1]

    def test_nothing_is_expected_after_what_never_came(self) -> None:
        forecast = LookupForecast(TokenHistory([1, 2, 3], 50))
        forecast.update()
        assert forecast.draft(5) == []

    def test_its_accuracy_follows_the_text(self) -> None:
        history = TokenHistory([1, 2, 3, 4, 5, 6, 7, 8, 1], 50)
        forecast = LookupForecast(history)
        accuracies = []
        for token in (2, 3, 4, 5, 9, 9, 9):
            forecast.update()
            accuracies.append(forecast.accuracy)
            history.add(token)
        assert accuracies[0] == 0
        assert accuracies[:5] == sorted(accuracies[:5])
        assert accuracies[4] > 0.6
        assert accuracies[5] < accuracies[4]


class TestCost:
    def test_the_line_through_the_passes_is_found(self) -> None:
        cost = MeasuredCost()
        for _ in range(50):
            for positions in (1, 4, 9, 16):
                cost.add(positions, 0.010 + 0.001 * positions)
        assert cost.marginal_share(1) == pytest.approx(1 / 11, rel=0.1)
        assert cost.marginal_share(16) == pytest.approx(16 / 26, rel=0.1)

    def test_without_passes_of_several_sizes_a_position_costs_as_much_as_the_rest(self) -> None:
        cost = MeasuredCost()
        assert cost.marginal_share(1) == 0.5
        for _ in range(10):
            cost.add(4, 0.02)
        assert cost.marginal_share(4) == pytest.approx(0.8)
        assert cost.marginal_share(64) > 0.98

    def test_a_slow_moment_is_forgotten(self) -> None:
        cost = MeasuredCost()
        for positions, seconds in ((1, 0.01), (6, 5.0)):
            cost.add(positions, seconds)
        assert cost.marginal_share(1) > 0.9
        for _ in range(300):
            cost.add(1, 0.01)
        assert cost.marginal_share(1) == pytest.approx(0.5, abs=0.01)

    def test_positions_that_cost_nothing_are_always_worth_it(self) -> None:
        cost = MeasuredCost()
        for _ in range(400):
            for positions in (1, 16):
                cost.add(positions, 0.01)
        assert cost.marginal_share(1) < 0.02

    @pytest.mark.parametrize(("accuracy", "share", "length"), [(1.0, 0.0, 1025), (0.5, 0.5, 0), (0.8, 0.1, 10)])
    def test_drafts_are_as_long_as_their_last_token_is_worth(self, accuracy: float, share: float, length: int) -> None:
        assert worthwhile_length(accuracy, share) == length
