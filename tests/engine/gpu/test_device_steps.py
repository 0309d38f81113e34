"""Texts whose tokens the GPU engine chooses: each is what its policy would have chosen, and says the same of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from glassformer.decoding import Policy, Step, StepDetail
from glassformer.decoding.loop import Loop, loop
from glassformer.decoding.prompt_lookup import BatchDrafts
from glassformer.engine.gpu import device_steps
from glassformer.engine.gpu.device_steps import knows, mode_of
from glassformer.engine.protocol import BEST, Choice
from glassformer.ground.sites import Watch
from tests.capabilities import step_by_step
from tests.decoding.oracle import recipe
from tests.engine.executors import Subject

Tiny = Callable[..., Subject]
PROMPTS = ([5, 9, 3], [7, 2], [4])
SAMPLED: list[dict[str, Any]] = [
    {"top_k": 5},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
    {"temperature": 1.7, "top_k": 0, "top_p": 0.9, "min_p": 0.02},
    {"top_k": 0},
]
SITES = frozenset(("embedding", "blocks.0.attention.heads", "blocks.1.residual"))


def policies(look: int = 0, **changes: Any) -> list[Policy]:
    settings = {"max_new_tokens": 11, **changes}
    return [
        Policy(recipe(**settings), prompt, context=64, seed=7, index=index, detail=StepDetail.of(look))
        for index, prompt in enumerate(PROMPTS)
    ]


def steps(executor: Any, texts: Sequence[Policy], watch: Watch | None = None) -> list[list[Step]]:
    written: list[list[Step]] = [[] for _ in texts]
    for number, step in loop(executor, texts, watch):
        written[number].append(replace(step, outcome=None))
    return written


@pytest.fixture
def executor(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("glassformer.decoding.loop.AHEAD_SECONDS", 1e9)
    executor = tiny("qwen3").gpu()
    executor.bursts = []
    enqueue = executor._steps.enqueue
    monkeypatch.setattr(executor._steps, "enqueue", lambda *args: executor.bursts.append(args) or enqueue(*args))
    return executor


@pytest.mark.parametrize("changes", SAMPLED, ids=str)
def test_drawn_texts_are_those_of_their_policies(executor: Any, changes: dict[str, Any]) -> None:
    ahead, single = policies(do_sample=True, **changes), policies(do_sample=True, **changes)
    assert steps(executor, ahead) == steps(step_by_step(executor), single)
    assert [len(draws[0]) for *_, draws in executor.bursts] == [1, 2, 2, 4, 1]
    for mine, theirs in zip(ahead, single, strict=True):
        assert mine.gap == pytest.approx(theirs.gap)
        assert mine.history.surprisals == pytest.approx(theirs.history.surprisals)


def test_drafts_are_for_texts_that_the_engine_does_not_choose_by_itself(executor: Any) -> None:
    class FreePositions:
        def add(self, positions: int, seconds: float) -> None: ...

        def marginal_share(self, texts: int) -> float:
            return 0.01

    prompt, texts = [5, 9, 3] * 3, []
    for changes, drafts in (
        ({"no_repeat_ngram_size": 30}, None),
        ({"no_repeat_ngram_size": 30}, BatchDrafts(cost=FreePositions())),
        ({}, BatchDrafts(cost=FreePositions())),
    ):
        batch = Loop(executor, drafts=drafts)
        batch.admit([policy := Policy(recipe(max_new_tokens=40, **changes), prompt, context=64)])
        while batch.policies:
            list(batch.step())
        texts.append(policy.chosen)
        chosen_by_policy = bool(changes) and drafts is not None
        assert (drafts is not None and drafts.drafted_tokens > 0) == chosen_by_policy
    assert texts[0] == texts[1]


@pytest.mark.parametrize("changes", [{}, *({"do_sample": True, **changes} for changes in SAMPLED)], ids=str)
@pytest.mark.parametrize("look", [1, 10])
def test_what_is_said_of_a_step_is_what_its_policy_says(executor: Any, look: int, changes: dict[str, Any]) -> None:
    watched = steps(executor, policies(look, **changes))
    assert executor.bursts
    for mine, theirs in zip(watched, steps(step_by_step(executor), policies(look, **changes)), strict=True):
        for step, other in zip(mine, theirs, strict=True):
            assert_said_the_same(step, other)


def assert_said_the_same(step: Step, other: Step) -> None:
    assert (step.id, step.finish, step.draw) == (other.id, other.finish, other.draw)
    assert step.logprob == pytest.approx(other.logprob, abs=1e-5)
    assert step.entropy == pytest.approx(other.entropy, abs=1e-5)
    assert step.candidates is not None
    assert other.candidates is not None
    assert step.candidates.ids.tolist() == other.candidates.ids.tolist()
    assert step.candidates.scores.tolist() == other.candidates.scores.tolist()
    np.testing.assert_allclose(step.candidates.probabilities, other.candidates.probabilities, rtol=1e-5)
    fall, expected = step.waterfall, other.waterfall
    assert fall is not None
    assert expected is not None
    assert (fall.stages, fall.counts, fall.ids.tolist()) == (expected.stages, expected.counts, expected.ids.tolist())
    assert fall.scores.tolist() == expected.scores.tolist()
    np.testing.assert_allclose(fall.probabilities, expected.probabilities, rtol=1e-5)
    np.testing.assert_allclose(fall.entropies, expected.entropies, atol=1e-5)


@pytest.mark.parametrize("changes", [{}, {"do_sample": True, "top_k": 5}], ids=str)
def test_watched_sites_come_with_each_step(executor: Any, changes: dict[str, Any]) -> None:
    watch = Watch(SITES)
    watched = steps(executor, policies(**changes), watch)
    assert executor.bursts
    unwatched = steps(executor, policies(**changes))
    for mine, theirs, plain in zip(
        watched, steps(step_by_step(executor), policies(**changes), watch), unwatched, strict=True
    ):
        assert [step.id for step in mine] == [step.id for step in plain]
        for step, other in zip(mine, theirs, strict=True):
            assert step.sites is not None
            assert other.sites is not None
            assert step.sites.keys() == SITES == other.sites.keys()
            for site, value in step.sites.items():
                np.testing.assert_array_equal(value, other.sites[site])


def test_texts_that_choose_differently_go_in_one_batch(executor: Any) -> None:
    def texts() -> list[Policy]:
        drawn, best, watched = (
            policies(**changes)[number]
            for number, changes in enumerate(({"do_sample": True, **SAMPLED[2]}, {}, {"look": 3}))
        )
        return [drawn, best, watched]

    mine, theirs = steps(executor, texts()), steps(step_by_step(executor), texts())
    assert [[step.id for step in text] for text in mine] == [[step.id for step in text] for text in theirs]
    assert mine[1] == theirs[1]
    assert all(len(rows) == 3 for rows, *_ in executor.bursts)


def test_many_steps_go_in_several_pieces(executor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = steps(executor, policies(10, do_sample=True, top_k=5))
    monkeypatch.setattr(device_steps, "MAX_STEPS", 3)
    for mine, theirs in zip(steps(executor, policies(10, do_sample=True, top_k=5)), whole, strict=True):
        for step, other in zip(mine, theirs, strict=True):
            assert_said_the_same(step, other)


@pytest.mark.parametrize(
    ("choice", "known"),
    [
        (BEST, True),
        (Choice(sampled=True, temperature=0.7, top_k=256, top_p=0.9, min_p=0.1, candidates=10), True),
        (Choice(sampled=True, top_k=257), False),
        (Choice(sampled=True, temperature=1e-31), False),
        (Choice(candidates=59), False),
        (Choice(sites=frozenset(("blocks.0.mlp.hidden", "blocks.1.attention.query"))), True),
        (Choice(sites=frozenset(("blocks.0.attention.pattern",))), False),
        (Choice(sites=frozenset(("blocks.0.cross.key",))), False),
        (Choice(sites=frozenset(("encoder.blocks.0.residual",))), False),
        (Choice(sites=frozenset(("scores",))), False),
    ],
)
def test_which_choices_are_known(choice: Choice, known: bool) -> None:
    assert knows(choice) is known


def test_which_kernels_a_choice_needs() -> None:
    assert mode_of([BEST, BEST]) is None
    assert mode_of([BEST, Choice(sampled=True, top_k=50)]) == (0, False, False, False)
    assert mode_of([Choice(candidates=10)]) == (16, False, True, False)
    assert mode_of([Choice(candidates=11)]) == (64, False, True, False)
    assert mode_of([Choice(sampled=True, top_k=65)]) == (0, True, False, False)
    assert mode_of([Choice(sampled=True, top_p=0.9)]) == (0, True, True, False)
    assert mode_of([Choice(sampled=True, min_p=0.9)]) == (0, True, True, True)
