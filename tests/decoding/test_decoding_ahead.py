"""Executors that choose the best tokens themselves: every text is what it would be without that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from glassformer.decoding import Finish, Look, Policy
from glassformer.decoding.loop import MAX_AHEAD, Loop, loop
from glassformer.engine.changed_executor import ChangedExecutor
from glassformer.engine.prefix_cache import PrefixCache
from glassformer.engine.protocol import NOT_NUMBERS, BestAhead, Feed, ahead_decoder
from glassformer.engine.wrapped_executor import WrappedExecutor
from glassformer.errors import NotNumbers
from tests.decoding.oracle import Oracle, recipe

PROMPTS = ([5, 9, 3], [7, 2], [5, 9, 3, 8, 6, 1], [4])


class DecodingOracle(Oracle):
    """An oracle that decodes greedily, and counts what it was asked for."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.bursts: list[tuple[int, int]] = []  # rows and tokens of each

    def decode_greedily(self, rows: Sequence[Any], tokens: Sequence[int], count: int) -> Any:
        self.bursts.append((len(rows), count))
        ids = np.full((len(rows), count), NOT_NUMBERS, np.int32)
        for number, (row, token) in enumerate(zip(rows, tokens, strict=True)):
            for at in range(count):
                scores = self._one(Feed(row, (int(token),))).host()
                token = scores.argmax()
                if not np.isfinite(scores[token]):
                    row.ids = (*row.ids, *[0] * (count - at - 1))
                    break
                ids[number, at] = token
        return ids


def text(prompt: Sequence[int], **changes: Any) -> Policy:
    return Policy(recipe(**{"max_new_tokens": 20, **changes}), prompt, context=64)


def written(executor: Any, policies: Sequence[Policy]) -> list[tuple[list[int], Finish | None]]:
    finishes: dict[int, Finish | None] = {}
    for number, step in loop(executor, policies):
        finishes[number] = step.finish
    return [(policy.chosen, finishes[number]) for number, policy in enumerate(policies)]


@pytest.mark.parametrize("changes", [{}, {"eos_token_id": [1, 4]}, {"max_new_tokens": 1}, {"max_new_tokens": 37}], ids=str)
def test_texts_are_those_of_single_steps(changes: dict[str, Any]) -> None:
    ahead, plain = DecodingOracle(), Oracle()
    assert written(ahead, [text(prompt, **changes) for prompt in PROMPTS]) == written(
        plain, [text(prompt, **changes) for prompt in PROMPTS]
    )
    assert not ahead.rows
    assert len(ahead.passes) == 1  # the prompts
    assert bool(ahead.bursts) is (changes.get("max_new_tokens") != 1)


def test_a_text_begins_with_few_tokens_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassformer.decoding.loop.AHEAD_SECONDS", 1e9)
    oracle = DecodingOracle(context=200)
    policy = Policy(recipe(max_new_tokens=120), [5, 6], context=200)
    written(oracle, [policy])
    counts = [count for _, count in oracle.bursts]
    assert counts[:6] == [1, 2, 4, 8, 16, 32]
    assert max(counts) == MAX_AHEAD
    assert sum(counts) == 119  # nothing is computed for nothing where only the length ends a text


def test_a_slow_executor_chooses_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassformer.decoding.loop.AHEAD_SECONDS", 0.0)
    oracle = DecodingOracle()
    written(oracle, [text(PROMPTS[0], max_new_tokens=6)])
    assert oracle.bursts == [(1, 1)] * 5


@effort(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 25), st.booleans(), st.integers(0, 6)), min_size=1, max_size=6))
def test_texts_join_and_leave_while_others_are_ahead(lives: list[tuple[int, int, bool, int]]) -> None:
    oracle = DecodingOracle()
    batch, kept, removed = Loop(oracle), [], []
    for which, length, stays, steps in lives:
        policy = text(PROMPTS[which], max_new_tokens=length, eos_token_id=[1])
        batch.admit([policy])
        (kept if stays else removed).append(policy)
        for _ in range(steps):
            list(batch.step())
        if not stays and policy in batch.policies:
            batch.remove(policy)
    while batch.policies:
        list(batch.step())
    assert not oracle.rows
    for policy in (*kept, *removed):
        ((whole, _),) = written(Oracle(), [Policy(policy.recipe, policy.prompt, context=64)])
        assert policy.chosen == whole[: len(policy.chosen)]
        assert policy in removed or policy.chosen == whole


def test_rows_that_joined_later_go_on_in_one_batch_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassformer.decoding.loop.AHEAD_SECONDS", 1e9)
    oracle = DecodingOracle()
    batch = Loop(oracle)
    batch.admit([text(PROMPTS[0], max_new_tokens=50)])
    for _ in range(6):
        list(batch.step())
    batch.admit([text(PROMPTS[1], max_new_tokens=50)])
    while batch.policies:
        list(batch.step())
    assert [rows for rows, _ in oracle.bursts] == [1, 1, 1, 1, 2, 2, 1]  # the first is done before the second


@pytest.mark.parametrize(
    "changes",
    [{"do_sample": True, "seed": 1}, {"repetition_penalty": 1.2}, {"guidance_scale": 2.0}, {"suppress_tokens": [3]}],
    ids=lambda changes: next(iter(changes)),
)
def test_what_is_more_than_taking_the_best_stays_with_the_policy(changes: dict[str, Any]) -> None:
    ahead = DecodingOracle()
    assert written(ahead, [text([5, 9], **changes)]) == written(Oracle(), [text([5, 9], **changes)])
    assert not ahead.bursts


def test_a_watched_text_stays_with_the_policy() -> None:
    oracle = DecodingOracle()
    policy = Policy(recipe(max_new_tokens=4), [5], context=64, look=Look.of(3))
    steps = [step for _, step in loop(oracle, [policy])]
    assert all(step.candidates is not None for step in steps)
    assert not oracle.bursts


def test_scores_that_are_not_numbers_are_said_as_without_it() -> None:
    def scores(source: tuple[int, ...], ids: tuple[int, ...]) -> Any:
        return np.full(12, np.nan, np.float32) if len(ids) == 9 else np.arange(12, dtype=np.float32)

    messages = []
    for kind in (Oracle, DecodingOracle):
        oracle = kind(scores=scores)
        policy = text([5, 9])
        with pytest.raises(NotNumbers) as error:
            written(oracle, [policy])
        messages.append((str(error.value), policy.chosen))
        assert not oracle.rows
    assert messages[0] == messages[1]
    assert "at step 7" in messages[0][0]


def test_executors_around_another_pass_it_on_unless_they_change_passes() -> None:
    oracle = DecodingOracle()
    assert ahead_decoder(WrappedExecutor(oracle)) == BestAhead(oracle.decode_greedily)
    assert ahead_decoder(ChangedExecutor(oracle, {})) is None
    assert ahead_decoder(PrefixCache(Oracle())) is None


def test_a_prefix_cache_knows_what_was_decoded() -> None:
    oracle = DecodingOracle()
    cache = PrefixCache(oracle)
    ((chosen, _),) = written(cache, [text(PROMPTS[0], max_new_tokens=8)])
    assert oracle.bursts
    longer = [*PROMPTS[0], *chosen, 2, 3]
    assert written(cache, [text(longer, max_new_tokens=8)]) == written(Oracle(), [text(longer, max_new_tokens=8)])
    assert cache.reused_tokens == len(PROMPTS[0]) + len(chosen) - 1
