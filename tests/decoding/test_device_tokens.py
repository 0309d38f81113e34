"""Executors that choose the best tokens themselves: every text is what it would be without that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from glassformer.decoding import Finish, Policy, StepDetail
from glassformer.decoding.lane import Lane
from glassformer.decoding.loop import Loop, loop
from glassformer.decoding.policy import pick
from glassformer.engine.prefix_cache import PrefixCache
from glassformer.engine.protocol import (
    BEST,
    MAX_AHEAD,
    NOT_CHOSEN,
    Capabilities,
    Choice,
    ChoiceRecords,
    ChosenTokens,
    DeviceSampler,
    Feed,
)  # fmt: skip
from glassformer.engine.wrapped_executor import ChangedExecutor, WrappedExecutor
from glassformer.ground.errors import ExecutorError, NotNumbers
from tests.capabilities import offering
from tests.decoding.oracle import Oracle, recipe
from tests.sweeps import examples

PROMPTS = ([5, 9, 3], [7, 2], [5, 9, 3, 8, 6, 1], [4])


def is_best(choice: Choice) -> bool:
    return choice == BEST


class DecodingOracle(Oracle):
    """An oracle that decodes greedily, and counts what it was asked for."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.bursts: list[tuple[int, int]] = []  # rows and tokens of each

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(sampler=DeviceSampler(is_best, self._decode))

    def _decode(self, rows: Any, tokens: Any, choices: Any, draws: Any) -> list[ChosenTokens]:
        return [ChosenTokens(ids) for ids in self.best(rows, tokens, draws.shape[1]).tolist()]

    def best(self, rows: Sequence[Any], tokens: Sequence[int], count: int) -> Any:
        self.bursts.append((len(rows), count))
        ids = np.full((len(rows), count), NOT_CHOSEN, np.int32)
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


def test_an_executor_may_refuse_to_run_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassformer.decoding.loop.AHEAD_SECONDS", 1e9)
    oracle = DecodingOracle()
    assert oracle.capabilities.sampler is not None
    assert oracle.capabilities.sampler.max_tokens == MAX_AHEAD
    written(offering(oracle, sampler=replace(oracle.capabilities.sampler, max_tokens=1)), [text([5, 6])])
    assert oracle.bursts == [(1, 1)] * 19


def test_a_slow_executor_chooses_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassformer.decoding.loop.AHEAD_SECONDS", 0.0)
    oracle = DecodingOracle()
    written(oracle, [text(PROMPTS[0], max_new_tokens=6)])
    assert oracle.bursts == [(1, 1)] * 5


class QueueingOracle(DecodingOracle):
    """An oracle that decodes greedily when its tokens are waited for, but at some lengths of a row."""

    def __init__(self, gives_up_at: frozenset[int] = frozenset(), min_prefill_tokens: int = 1, **options: Any) -> None:
        super().__init__(**options)
        self.gives_up_at, self.min_prefill_tokens = gives_up_at, min_prefill_tokens
        self.last: dict[int, int] = {}  # chosen for each row
        self.queued = 0  # steps that nobody has waited for
        self.most_queued = 0

    @property
    def capabilities(self) -> Capabilities:
        sampler = DeviceSampler(is_best, lambda *steps: self._enqueue(*steps)(), self._enqueue)
        return Capabilities(min_prefill_tokens=self.min_prefill_tokens, sampler=sampler)

    def _enqueue(self, rows: Any, tokens: Any, choices: Any, draws: Any) -> Any:
        fed = [self.last[id(row)] if token is None else token for row, token in zip(rows, tokens, strict=True)]
        lengths = [row.length for row in rows]
        texts = self.best(rows, fed, draws.shape[1])
        self.last |= zip(map(id, rows), texts[:, -1].tolist(), strict=True)
        for text, length in zip(texts, lengths, strict=True):
            for at in range(len(text)):
                if length + at in self.gives_up_at:
                    text[at:] = NOT_CHOSEN
        self.queued += 1
        self.most_queued = max(self.most_queued, self.queued)

        def wait() -> list[ChosenTokens]:
            self.queued -= 1
            return [ChosenTokens(ids) for ids in texts.tolist()]

        return wait


LIVES = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 25), st.booleans(), st.integers(0, 6)), min_size=1, max_size=6)
GIVES_UP = frozenset([9, 13])


@pytest.mark.parametrize(
    "make",
    [
        DecodingOracle,
        QueueingOracle,
        lambda: QueueingOracle(min_prefill_tokens=2),
        lambda: QueueingOracle(GIVES_UP),
        lambda: PrefixCache(QueueingOracle(GIVES_UP)),
    ],
    ids=["waiting", "queueing", "prompts apart", "giving up", "with a prefix cache"],
)
@effort(max_examples=examples(10, 40), deadline=None)
@given(lives=LIVES)
def test_texts_join_and_leave_while_others_are_ahead(
    make: Callable[[], Any], lives: list[tuple[int, int, bool, int]]
) -> None:
    oracle = make()
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
    if isinstance(oracle, PrefixCache):
        oracle.clear()
        oracle = oracle.executor
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
    assert [rows for rows, _ in oracle.bursts] == [1, 1, 1, 1, 2, 2]


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
    policy = Policy(recipe(max_new_tokens=4), [5], context=64, detail=StepDetail.of(3))
    steps = [step for _, step in loop(oracle, [policy])]
    assert all(step.candidates is not None for step in steps)
    assert not oracle.bursts


def test_the_next_tokens_are_queued_before_these_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassformer.decoding.loop.AHEAD_SECONDS", 1e9)
    oracle = QueueingOracle()
    batch = Loop(oracle)
    batch.admit([text([5, 6]), text([7, 2])])
    queued = []
    while batch.policies:
        queued += [oracle.queued for _ in batch.step()][:1]
    assert oracle.bursts == [(2, 1), (2, 2), (2, 2), (2, 4), (2, 8), (2, 2)]  # after the token by the prompt's scores
    assert queued == [0, *[1] * 17, *[0] * 2]
    assert oracle.queued == 0


def test_a_prompt_of_one_token_that_joins_is_read_once() -> None:
    """Where prompts run apart from steps, it is a prompt, and is not queued with the steps beside it."""
    oracle = QueueingOracle(min_prefill_tokens=2)
    batch, first, second = Loop(oracle), text(PROMPTS[0]), text([4])
    batch.admit([first])
    list(batch.step())
    batch.admit([second])
    while batch.policies:
        list(batch.step())
    for policy in (first, second):
        ((whole, _),) = written(Oracle(), [text(policy.prompt)])
        assert policy.chosen == whole


def test_where_nothing_can_be_queued_texts_go_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(QueueingOracle):
        def _enqueue(self, rows: Any, tokens: Any, choices: Any, draws: Any) -> Any:
            if None in tokens:
                raise ExecutorError("no memory")
            return super()._enqueue(rows, tokens, choices, draws)

    monkeypatch.setattr("glassformer.decoding.loop.AHEAD_SECONDS", 1e9)
    assert written(Full(), [text([5, 6])]) == written(Oracle(), [text([5, 6])])


class DrawingOracle(Oracle):
    """An oracle that chooses as texts ask it to, but at some lengths of a row; its policies are of the same settings."""

    def __init__(self, settings: dict[str, Any], gives_up_at: frozenset[int] = frozenset()) -> None:
        super().__init__()
        self.settings, self.gives_up_at = settings, gives_up_at
        self.bursts: list[int] = []

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(sampler=DeviceSampler(lambda choice: True, self._decode))

    def _decode(self, rows: Any, tokens: Any, choices: Any, draws: Any) -> list[ChosenTokens]:
        self.bursts.append(draws.shape[1])
        return [self._text(*row) for row in zip(rows, tokens, draws, strict=True)]

    def _text(self, row: Any, token: int, draws: Any) -> ChosenTokens:
        ids, gaps, shares = [], [], []
        for draw in draws:
            scores = self._one(Feed(row, (token,))).host()
            weights = np.exp(scores.astype(np.float64) - scores.max())
            token = pick(weights / weights.sum(), draw)
            ids.append(NOT_CHOSEN if NOT_CHOSEN in ids or row.length in self.gives_up_at else token)
            gaps.append(scores.max() - scores[token])
            shares.append(weights[token] / weights.sum())
        none, zeros = np.empty((len(ids), 0)), np.zeros(len(ids))
        return ChosenTokens(ids, ChoiceRecords(np.array(shares), np.array(gaps), zeros, *[none] * 5))


def test_drawn_texts_are_those_of_single_steps() -> None:
    settings = {"do_sample": True, "top_k": 0, "seed": 3}
    oracle = DrawingOracle(settings)
    mine, theirs = ([text(prompt, **settings) for prompt in PROMPTS] for _ in range(2))
    assert written(oracle, mine) == written(Oracle(), theirs)
    assert oracle.bursts
    for policy, other in zip(mine, theirs, strict=True):
        assert policy.gap == pytest.approx(other.gap)
        assert policy.history.surprisals == pytest.approx(other.history.surprisals)


def test_where_an_executor_cannot_choose_policies_do_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassformer.decoding.loop.AHEAD_SECONDS", 1e9)
    monkeypatch.setattr("glassformer.decoding.loop.PAUSE", 5)
    settings = {"do_sample": True, "top_k": 0, "seed": 3, "max_new_tokens": 16}
    oracle = DrawingOracle(settings, gives_up_at=frozenset([5]))
    assert written(oracle, [text([5, 6], **settings)]) == written(Oracle(), [text([5, 6], **settings)])
    assert oracle.bursts == [1, 2, 1, 2, 4]  # the second token of the second burst is none
    assert not oracle.rows


def test_the_draws_of_the_next_tokens_are_those_of_each_step() -> None:
    history = text([5], do_sample=True, seed=11).history
    ahead = history.next_draws(5).tolist()
    for draw in ahead:
        assert history.draw() == draw
        history.add(3)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_beams": 3, "do_sample": True, "eos_token_id": 1},
        {"do_sample": True, "rules": ["temperature", "top_k"], "temperature": 0.5},
        {"do_sample": True, "logits_processor": [lambda ids, scores: scores]},
        {"do_sample": True, "typical_p": 0.9},
        {"do_sample": True, "mirostat": 2},
    ],
    ids=" ".join,
)
def test_what_no_executor_may_choose(changes: dict[str, Any]) -> None:
    assert text([5], **changes).choice is None


def test_a_choice_is_the_settings_that_are_in_force() -> None:
    assert text([5]).choice == BEST
    settings = {"do_sample": True, "temperature": 0.7, "top_k": 9, "top_p": 0.8, "min_p": 0.1}
    policy = Policy(recipe(**settings), [5], context=64, detail=StepDetail.of(3))
    assert policy.choice == Choice(sampled=True, temperature=0.7, top_k=9, top_p=0.8, min_p=0.1, candidates=3)
    assert text([5], do_sample=True, top_k=0).choice == Choice(sampled=True)
    for detail in (StepDetail(raw=True), StepDetail(scores=True), StepDetail.of("all")):
        assert Policy(recipe(), [5], context=64, detail=detail).choice is None


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
    assert WrappedExecutor(oracle).capabilities == oracle.capabilities
    assert ChangedExecutor(oracle, {}).capabilities.sampler is None
    assert PrefixCache(oracle).capabilities.sampler is not None
    assert PrefixCache(Oracle()).capabilities.sampler is None


def test_a_prefix_cache_knows_what_was_decoded() -> None:
    oracle = DecodingOracle()
    cache = PrefixCache(oracle)
    ((chosen, _),) = written(cache, [text(PROMPTS[0], max_new_tokens=8)])
    assert oracle.bursts
    longer = [*PROMPTS[0], *chosen, 2, 3]
    assert written(cache, [text(longer, max_new_tokens=8)]) == written(Oracle(), [text(longer, max_new_tokens=8)])
    assert cache.reused_tokens == len(PROMPTS[0]) + len(chosen) - 1


def test_texts_that_share_a_prompt_of_one_token_are_written_together() -> None:
    """They wait for its scores, which an executor that chooses by itself would not give."""
    oracle = DecodingOracle()
    policies = [text([5]), text([5]), text([5])]
    batch = Loop(oracle)
    batch.admit(policies)
    assert [policy for policy, _ in batch.step()] == policies
    assert oracle.passes == [[1]]
    while batch.policies:
        list(batch.step())
    assert {rows for rows, _ in oracle.bursts} == {3}
    assert not oracle.rows


def test_texts_go_on_ahead_while_a_prompt_is_read_where_prompts_are_computed_apart() -> None:
    oracle = DecodingOracle()
    batch = Loop(offering(oracle, min_prefill_tokens=2), prompt_chunk=2)
    first, second = text(PROMPTS[0]), text(PROMPTS[1])
    batch.admit([first])
    list(batch.step())
    oracle.passes.clear()
    batch.admit([second])
    list(batch.step())
    assert oracle.bursts == [(1, 1)]
    assert oracle.passes == [[2]]
    while batch.policies:
        list(batch.step())
    assert [first.chosen, second.chosen] == [ids for ids, _ in written(Oracle(), [text(PROMPTS[0]), text(PROMPTS[1])])]


def test_a_prompt_of_one_vector_is_read_before_the_executor_chooses() -> None:
    policy = Policy(recipe(), [], context=9, vectors=np.zeros((1, 4), np.float32))
    assert policy.choice is not None
    assert Lane(Oracle(9), policy).choice is None
