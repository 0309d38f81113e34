"""Drafts: whoever makes them, the text is the one that comes without them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from glassformer.decoding import Finish, Policy, Step, StepDetail
from glassformer.decoding.loop import loop
from glassformer.decoding.prompt_lookup import lookup_continuation
from glassformer.decoding.rules import NamedRule
from glassformer.decoding.shortlist import Shortlist
from glassformer.decoding.speculative import LookupDrafter, ModelDrafter, speculate
from glassformer.ground.errors import ExecutorError, SettingError
from tests.decoding.oracle import Oracle, group, only, recipe
from tests.decoding.test_beams import guided
from tests.sweeps import examples

END = 0
PROMPTS = ([5], [2, 7, 7, 2], [9, 4, 9], [5])


class Wild:
    """Drafts by chance, or not at all, and remembers for whom."""

    def __init__(self, size: int, seed: int = 0) -> None:
        self.size, self.draws = size, np.random.default_rng(seed)
        self.known: set[Policy] = set()

    def draft(self, room: Mapping[Policy, int]) -> Mapping[Policy, Sequence[int]]:
        self.known.update(room)
        return {
            policy: self.draws.integers(self.size, size=min(most, int(self.draws.integers(4)))).tolist()
            for policy, most in room.items()
            if self.draws.random() < 0.8
        }

    def close(self, policy: Policy) -> None:
        self.known.discard(policy)


def written(oracle: Any, policies: list[Policy], drafter: Any = None) -> list[list[Step]]:
    """Each policy's steps; all rows must have been given back."""
    steps: list[list[Step]] = [[] for _ in policies]
    for number, step in loop(oracle, policies) if drafter is None else speculate(oracle, policies, drafter):
        steps[number].append(step)
    assert [[step.id for step in row] for row in steps] == [policy.chosen for policy in policies]
    assert not oracle.rows
    return steps


def plain(steps: list[list[Step]]) -> list[list[Step]]:
    return [[replace(step, drafted=False) for step in row] for row in steps]


SETTINGS: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "top_k": 0, "num_return_sequences": 2},
    {"do_sample": True, "temperature": 0.4, "top_p": 0.9, "repetition_penalty": 1.2, "no_repeat_ngram_size": 3},
    {"do_sample": True, "top_k": 0, "mirostat": 2, "mirostat_tau": 2.0},
    {"do_sample": True, "xtc_probability": 0.5, "min_new_tokens": 6},
    {"stop_when": lambda ids: ids[-2:].tolist() in ([3, 3], [4, 5], [7, 8])},
]


@effort(max_examples=examples(15, 60), deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(SETTINGS), st.integers(0, 3))
def test_the_text_is_the_same_whoever_drafts(seed: int, changes: dict[str, Any], who: int) -> None:
    """By chance, by looking, by a model that agrees often, and by the model itself."""
    drafters = (
        Wild(9, seed),
        LookupDrafter(2),
        ModelDrafter(helper := Oracle(9, seed, noise=0.3)),
        ModelDrafter(mirror := Oracle(9, seed)),
    )
    made = recipe(eos_token_id=END, max_new_tokens=14, seed=seed, prompt_lookup_num_tokens=3, **changes)
    wanted = written(Oracle(9, seed), [policy for prompt in PROMPTS for policy in group(prompt, made)])
    found = written(Oracle(9, seed), [policy for prompt in PROMPTS for policy in group(prompt, made)], drafters[who])
    assert plain(found) == wanted
    assert not helper.rows
    assert not mirror.rows
    if who == 3:
        guessed = [step for row in found for step in row[1:] if step.finish is None or step.finish is Finish.CRITERION]
        assert sum(step.drafted for step in guessed) >= 0.8 * len(guessed) - len(found)


def test_drafted_tokens_that_are_accepted_are_marked() -> None:
    class Known:
        """Knows the text, but for every third token."""

        def draft(self, room: Mapping[Policy, int]) -> Mapping[Policy, Sequence[int]]:
            return {policy: self._one(policy.history.step, min(most, 2)) for policy, most in room.items()}

        def _one(self, step: int, count: int) -> list[int]:
            return [text[place] if place % 3 else (text[place] + 1) % 9 for place in range(step, step + count)]

        def close(self, policy: Policy) -> None: ...

    text = [step.id for step in written(Oracle(9), group([5], max_new_tokens=12))[0]]
    (steps,) = written(oracle := Oracle(9), group([5], max_new_tokens=12), Known())
    assert [step.id for step in steps] == text
    assert [step.drafted for step in steps] == [n > 0 and n % 3 > 0 and n != 11 for n in range(12)]
    assert len(oracle.passes) < 12


def test_a_model_that_is_right_drafts_more_and_saves_passes() -> None:
    oracle, mirror = Oracle(9, context=200), Oracle(9, context=200)
    policies = [Policy(recipe(max_new_tokens=100), [5], context=200)]
    (steps,) = written(oracle, policies, ModelDrafter(mirror))
    assert [sum(feeds) for feeds in oracle.passes] == [1, 6, 8, 10, 12, 14, 16, 18, 15]
    assert all(step.drafted == (n not in (0, 6, 14, 24, 36, 50, 66, 84, 99)) for n, step in enumerate(steps))
    assert mirror.passes[0] == [1]
    assert all(sum(feeds) <= 2 for feeds in mirror.passes)


def test_a_model_that_is_wrong_drafts_less_and_then_rests() -> None:
    oracle = Oracle(9, scores=lambda source, ids: np.eye(9)[3].astype(np.float32), context=200)
    other = Oracle(9, scores=lambda source, ids: np.eye(9)[4].astype(np.float32), context=200)
    (steps,) = written(oracle, group([5], max_new_tokens=12), ModelDrafter(other))
    assert [sum(feeds) for feeds in oracle.passes] == [1, 6, 5, 4, 1, 1, 3, 1, 1, 1, 1, 1]
    assert not any(step.drafted for step in steps)
    oracle.passes.clear()
    written(oracle, [Policy(recipe(max_new_tokens=180), [5], context=200)], ModelDrafter(other))
    drafting = [place for place, feeds in enumerate(oracle.passes) if sum(feeds) > 1]
    assert [after - before for before, after in itertools.pairwise(drafting)] == [1, 1, 3, 5, 9, 17, 33, 33, 33, 33]


def test_a_model_that_is_right_again_drafts_again() -> None:
    oracle = Oracle(9, scores=lambda source, ids: np.eye(9)[3].astype(np.float32), context=200)
    other = Oracle(9, scores=lambda source, ids: np.eye(9)[3 if len(ids) > 20 else 4].astype(np.float32), context=200)
    (steps,) = written(oracle, [Policy(recipe(max_new_tokens=100), [5], context=200)], ModelDrafter(other))
    assert [step.id for step in steps] == [3] * 100
    assert not any(step.drafted for step in steps[:20])
    assert sum(step.drafted for step in steps[40:]) > 45


def test_num_assistant_tokens_sets_the_first_draft() -> None:
    oracle = Oracle(9, context=200)
    made = replace(recipe(max_new_tokens=60), settings=replace(recipe(max_new_tokens=60).settings, num_assistant_tokens=30))
    written(oracle, [Policy(made, [5], context=200)], ModelDrafter(Oracle(9, context=200)))
    assert [sum(feeds) for feeds in oracle.passes] == [1, 31, 28]


def test_drafts_of_several_texts_share_their_passes() -> None:
    oracle, mirror = Oracle(9), Oracle(9)
    made = recipe(max_new_tokens=13, do_sample=True, num_return_sequences=2, seed=1)
    written(oracle, [*group([5, 6, 7], made), *group([8], made)], ModelDrafter(mirror))
    assert oracle.passes[:2] == [[1, 3], [6, 6, 6, 6]]
    assert mirror.passes[:3] == [[3, 1], [1, 1, 1, 1], [1, 1, 1, 1]]


def test_a_draft_stays_within_the_room_and_both_contexts() -> None:
    """The oracles refuse what does not fit; the small one falls silent when its context is full."""
    oracle, small = Oracle(9, context=24), Oracle(9, context=12)
    policies = [Policy(recipe(), [5, 6, 7], context=24), Policy(recipe(), list(range(8)) * 2, context=24)]
    steps = written(oracle, policies, ModelDrafter(small))
    assert [len(row) for row in steps] == [21, 8]
    assert max(len(row) for row in small.passes) == 1
    drafted = [[step.drafted for step in row] for row in steps]
    assert any(drafted[0])
    assert not any(drafted[0][11:])
    assert not any(drafted[1])


def test_a_source_goes_to_both_models() -> None:
    def policies() -> list[Policy]:
        return [Policy(recipe(max_new_tokens=12), [1], context=64, source=source) for source in ([5, 6], [7])]

    wanted = written(Oracle(9), policies())
    found = written(Oracle(9), policies(), ModelDrafter(Oracle(9)))
    assert plain(found) == wanted
    assert sum(step.drafted for row in found for step in row) > 12


def test_the_prompts_logprobs_are_the_models_own() -> None:
    mirror = Oracle(9, seed=4)
    assisted, unassisted = (
        written(Oracle(9), group([5, 6, 7], max_new_tokens=6, prompt_logprobs=0), drafter)[0][-1].outcome
        for drafter in (ModelDrafter(mirror), None)
    )
    assert assisted is not None
    assert unassisted is not None
    assert assisted.prompt_steps == unassisted.prompt_steps
    assert len(unassisted.prompt_steps) == 3
    assert mirror.passes[0] == [3]


def test_prompt_lookup_searches_the_source_too() -> None:
    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    policy = Policy(recipe(prompt_lookup_num_tokens=3, max_new_tokens=9), [0, 4, 1], context=64, source=ids)
    assert LookupDrafter(2).draft({policy: 9}) == {policy: [5, 9, 2]}
    assert LookupDrafter(2).draft({policy: 1}) == {policy: [5]}
    without = Policy(recipe(prompt_lookup_num_tokens=3, max_new_tokens=9), [0, 4, 1], context=64)
    assert LookupDrafter(2).draft({without: 9}) == {without: []}


def test_an_eos_token_is_not_drafted() -> None:
    policy = Policy(recipe(prompt_lookup_num_tokens=4, eos_token_id=[8, 9]), [4, 1, 5, 9, 2, 4, 1], context=64)
    assert LookupDrafter(2).draft({policy: 9}) == {policy: [5]}
    ends = Oracle(9, scores=lambda source, ids: np.eye(9)[END if len(ids) == 4 else 3].astype(np.float32))
    mirror = Oracle(9, scores=lambda source, ids: ends.after(ids))
    (steps,) = written(ends, group([5], eos_token_id=END, max_new_tokens=9), ModelDrafter(mirror))
    assert [(step.id, step.drafted) for step in steps] == [(3, False), (3, True), (3, True), (END, False)]
    assert len(mirror.passes) == 4


@effort(max_examples=examples(5, 20), deadline=None)
@given(st.integers(0, 2**31))
def test_a_draft_follows_the_grammar(seed: int) -> None:
    texts = ([1, 2, 3, 4, 5, 6], [1, 2, 3, 8], [7, 2])
    made = guided(*texts, do_sample=True, seed=seed, top_k=0)
    (wanted,) = written(Oracle(9, seed), group([5], made))
    for drafter in (Wild(9, seed), ModelDrafter(Oracle(9, seed, noise=0.5))):
        (found,) = written(Oracle(9, seed), group([5], made), drafter)
        assert plain([found]) == [wanted]
    assert [step.id for step in wanted] in list(texts)


def test_steps_are_explained_as_without_a_draft() -> None:
    detail = StepDetail(candidates=2, waterfall=True, scores=True)
    (found,) = written(Oracle(9), group([5], detail=detail, max_new_tokens=8, suppress_tokens=[4]), ModelDrafter(Oracle(9)))
    (wanted,) = written(Oracle(9), group([5], detail=detail, max_new_tokens=8, suppress_tokens=[4]))
    for one, other in zip(found, wanted, strict=True):
        assert (one.id, one.logprob, one.entropy) == (other.id, other.logprob, other.entropy)
        assert np.array_equal(np.asarray(one.scores), np.asarray(other.scores))
    assert sum(step.drafted for step in found) == 5


def test_stopping_criteria_are_not_called_for_drafts() -> None:
    asked: list[int] = []
    made = recipe(max_new_tokens=12, stop_when=lambda ids: asked.append(len(ids)))
    written(Oracle(9), group([5], made), ModelDrafter(Oracle(9, noise=0.5)))
    assert asked == list(range(2, 14))


def test_a_draft_may_run_into_a_dead_end() -> None:
    """What the helper would write leaves no token; the model goes another way, and nothing is wrong."""

    def rule(field: Shortlist, history: Any) -> Shortlist:
        return only(field, [] if 4 in history.chosen else [3, 4])

    made = replace(recipe(max_new_tokens=5), rules=(NamedRule("own", rule),))
    oracle = Oracle(9, scores=lambda source, ids: np.eye(9)[3].astype(np.float32))
    other = Oracle(9, scores=lambda source, ids: np.eye(9)[4].astype(np.float32))
    (steps,) = written(oracle, group([5], made), ModelDrafter(other))
    assert [step.id for step in steps] == [3] * 5
    with pytest.raises(SettingError, match="step 1: own"):
        written(other, group([5], made), ModelDrafter(other))


@pytest.mark.parametrize("which", ["model", "helper"])
def test_nan_scores_of_the_drafting_model_are_an_error(which: str) -> None:
    good = Oracle(9)
    bad = Oracle(9, scores=lambda source, ids: good.after(ids) if len(ids) < 4 else np.full(9, np.nan, np.float32))
    oracle, helper = (bad, good) if which == "model" else (good, bad)
    message = f"^{'in the model that drafts: ' if which == 'helper' else ''}the model's scores at step 3 are not numbers"
    with pytest.raises(ExecutorError, match=message):
        list(speculate(oracle, group([5], max_new_tokens=9), ModelDrafter(helper)))
    assert not good.rows
    assert not bad.rows


def test_closing_assist_early_closes_all_rows() -> None:
    oracle, mirror = Oracle(9), Oracle(9)
    steps = speculate(oracle, [*group([5]), *group([6])], ModelDrafter(mirror))
    for _ in range(5):
        next(steps)
    assert len(oracle.rows) == len(mirror.rows) == 2
    steps.close()  # type: ignore[attr-defined]
    assert not oracle.rows
    assert not mirror.rows


def test_a_drafter_is_closed_for_every_policy_that_ends() -> None:
    oracle, wild = Oracle(9), Wild(9)
    policies = [*group([5], max_new_tokens=2), *group([6], max_new_tokens=9)]
    for number, step in speculate(oracle, policies, wild):
        if number == 0 and step.finish:
            assert policies[0] not in wild.known
    assert not wild.known


def test_an_executor_may_rewind_further_than_asked() -> None:
    class Coarse(Oracle):
        """Keeps whole blocks of four alone."""

        def rewind(self, row: Any, length: int) -> int:
            return super().rewind(row, length if length == row.length else length // 4 * 4)

    policies = group([5, 6, 7], max_new_tokens=20)
    (wanted,) = written(Oracle(9), group([5, 6, 7], max_new_tokens=20))
    (found,) = written(Coarse(9), policies, ModelDrafter(Coarse(9, noise=0.4)))
    assert plain([found]) == [wanted]


class TestLookupContinuation:
    @pytest.mark.parametrize(
        ("ids", "size", "count", "found"),
        [
            ([1, 2, 3, 4, 1, 2], 2, 2, [3, 4]),
            ([1, 2, 3, 4, 1, 2], 2, 9, [3, 4, 1, 2]),
            ([1, 2, 3, 9, 2, 5, 1, 2], 2, 1, [3]),  # the longer match, though the shorter is nearer
            ([1, 2, 3, 9, 2, 5, 1, 2], 1, 1, [5]),
            ([1, 2, 3, 4, 1, 2, 7, 8, 1, 2], 2, 2, [7, 8]),  # the latest with enough behind it
            ([1, 2, 3, 4, 5, 1, 2, 7, 1, 2], 2, 4, [3, 4, 5, 1]),
            ([6, 6, 6, 6, 6], 2, 3, [6, 6, 6]),
            ([6, 6], 2, 3, [6]),
            ([1, 2, 3], 2, 3, []),
            ([1], 2, 3, []),
            ([1, 1, 1], 5, 0, []),
        ],
    )
    def test_the_latest_of_the_longest_matches_is_taken(
        self, ids: list[int], size: int, count: int, found: list[int]
    ) -> None:
        assert lookup_continuation(np.array(ids), size, count) == found

    @effort(max_examples=examples(50, 200), deadline=None)
    @given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 5), st.integers(1, 6))
    def test_what_is_drafted_did_follow_the_match(self, ids: list[int], size: int, count: int) -> None:
        found = lookup_continuation(np.array(ids), size, count)
        longest = max(
            (n for n in range(1, size + 1) if any(ids[at : at + n] == ids[-n:] for at in range(len(ids) - n))), default=0
        )
        assert bool(found) == (longest > 0)
        if found:
            whole = ids[-longest:] + found
            assert any(ids[at : at + len(whole)] == whole for at in range(len(ids)))
            assert len(found) <= count
