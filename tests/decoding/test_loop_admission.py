"""Texts that join and leave a running loop: each is written as it would be alone, and every row is given back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

import glassformer
from glassformer.decoding import Finish, Policy, Step
from glassformer.decoding.loop import Loop, loop
from glassformer.ground.errors import ExecutorError, SettingError
from tests.decoding.oracle import CountedExecutor, Oracle, group, recipe
from tests.parity import reference
from tests.sweeps import examples

PROMPTS = ([5, 9, 3], [7, 2], [5, 9, 3, 8, 6, 1], [4])
SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": 1.3, "seed": 3}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("llama")
    reference.write(folder, "llama")
    return glassformer.AutoModelForCausalLM.from_pretrained(folder).eval()


def text(prompt: list[int], index: int = 0, **changes: Any) -> Policy:
    return Policy(recipe(**{"max_new_tokens": 6, **changes}), prompt, context=64, index=index)


def alone(policy: Policy, executor: Any) -> list[int]:
    """What a policy like this one, of its own, chooses."""
    fresh = Policy(policy.recipe, policy.prompt, context=64, index=policy.history.index, negative=policy.negative)
    return [step.id for _, step in loop(executor, [fresh])]


def finish(batch: Loop) -> None:
    while batch.policies:
        for _ in batch.step():
            pass


def passes(batch: Loop, count: int) -> list[list[tuple[Policy, Any]]]:
    return [list(batch.step()) for _ in range(count)]


class TestAdmission:
    @pytest.mark.parametrize("changes", [{}, SAMPLED, {"guidance_scale": 2.0}], ids=["greedy", "sampled", "guided"])
    def test_a_text_that_joins_later_is_written_as_alone_on_a_model(self, llama: Any, changes: dict[str, Any]) -> None:
        executor = CountedExecutor(llama)
        batch = Loop(executor)
        policies = [text(prompt, index, **changes) for index, prompt in enumerate(PROMPTS)]
        for policy in policies:
            batch.admit([policy])
            passes(batch, 2)
        finish(batch)
        assert not executor.rows
        assert [policy.chosen for policy in policies] == [alone(policy, CountedExecutor(llama)) for policy in policies]

    def test_a_text_that_leaves_and_joins_again_within_a_pass_waits_for_the_next(self) -> None:
        """Texts are known by identity, which another may have as soon as one has left."""
        batch = Loop(Oracle())
        first, second = text(PROMPTS[0]), text(PROMPTS[1])
        batch.admit([first, second])
        steps = batch.step()
        assert next(steps)[0] is first
        batch.remove(second)
        batch.admit([second])
        assert list(steps) == []
        finish(batch)
        assert second.chosen == alone(second, Oracle())

    def test_a_prompt_is_read_in_the_pass_in_which_the_others_go_on(self) -> None:
        oracle = Oracle()
        batch = Loop(oracle)
        batch.admit([text(PROMPTS[0])])
        passes(batch, 2)
        batch.admit([text(PROMPTS[1])])
        passes(batch, 2)
        assert oracle.passes == [[3], [1], [1, 2], [1, 1]]

    def test_texts_that_share_a_prompt_join_while_others_share_another(self) -> None:
        oracle = Oracle()
        batch = Loop(oracle)
        first = group(PROMPTS[0], num_return_sequences=2, max_new_tokens=5, **SAMPLED)
        second = group(PROMPTS[1], num_return_sequences=3, max_new_tokens=5, **SAMPLED)
        batch.admit(first)
        batch.admit(second)
        passes(batch, 1)
        late = group(PROMPTS[0], num_return_sequences=2, max_new_tokens=5, **SAMPLED)
        batch.admit(late)
        assert batch.policies == [*first, *second, *late]
        finish(batch)
        assert oracle.passes[:3] == [[3, 2], [1] * 5 + [3], [1] * 7]
        assert [policy.chosen for policy in late] == [policy.chosen for policy in first]
        assert all(policy.chosen == alone(policy, Oracle()) for policy in (*first, *second, *late))
        assert not oracle.rows

    def test_a_text_that_joins_in_the_middle_of_a_pass_waits_for_the_next(self) -> None:
        oracle = Oracle()
        batch = Loop(oracle)
        first, second, late = text(PROMPTS[0]), text(PROMPTS[1]), text(PROMPTS[2])
        batch.admit([first, second])
        steps = batch.step()
        next(steps)
        batch.admit([late])
        assert [policy for policy, _ in steps] == [second]
        assert [policy for policy, _ in batch.step()] == [first, second, late]
        finish(batch)
        assert late.chosen == alone(late, Oracle())

    def test_texts_that_cannot_all_begin_do_not_join_at_all(self) -> None:
        class Narrow(Oracle):
            def open(self, source: Any = None) -> Any:
                if len(self.rows) == 2:
                    raise ExecutorError("no more rows.")
                return super().open(source)

        oracle = Narrow()
        batch = Loop(oracle)
        first = text(PROMPTS[0])
        batch.admit([first])
        passes(batch, 1)
        with pytest.raises(ExecutorError, match="no more rows"):
            batch.admit([text(PROMPTS[1]), text(PROMPTS[2])])
        assert batch.policies == [first]
        assert len(oracle.rows) == 1
        finish(batch)
        assert first.chosen == alone(first, Oracle())


class TestRemoval:
    def test_the_rows_come_back_and_the_others_go_on_unchanged_on_a_model(self, llama: Any) -> None:
        executor = CountedExecutor(llama)
        batch = Loop(executor)
        policies = [text(prompt, index, **SAMPLED) for index, prompt in enumerate(PROMPTS)]
        batch.admit(policies)
        passes(batch, 2)
        batch.remove(policies[1])
        assert len(executor.rows) == 3
        finish(batch)
        assert len(policies[1].chosen) == 2
        for policy in policies:
            expected = alone(policy, CountedExecutor(llama))
            assert policy.chosen == (expected[:2] if policy is policies[1] else expected)

    def test_both_rows_of_a_guided_text_come_back(self) -> None:
        oracle = Oracle()
        batch = Loop(oracle)
        guided, plain = text(PROMPTS[0], guidance_scale=2.0), text(PROMPTS[1])
        batch.admit([guided, plain])
        passes(batch, 1)
        assert len(oracle.rows) == 3
        batch.remove(guided)
        assert len(oracle.rows) == 1

    def test_of_the_text_whose_prompt_others_wait_for(self) -> None:
        """The next of them reads the prompt in its place, and still only one does."""
        oracle = Oracle()
        batch = Loop(oracle)
        first, *others = group(PROMPTS[0], num_return_sequences=4, max_new_tokens=5, **SAMPLED)
        batch.admit([first, *others])
        batch.remove(first)
        assert batch.policies == others
        batch.remove(others[0])
        finish(batch)
        assert oracle.passes == [[3], [1, 1], [1, 1], [1, 1], [1, 1]]
        assert [policy.chosen for policy in others[1:]] == [alone(policy, Oracle()) for policy in others[1:]]
        assert first.chosen == others[0].chosen == []
        assert not oracle.rows

    def test_of_a_text_that_waits(self) -> None:
        oracle = Oracle()
        batch = Loop(oracle)
        first, waiting = group(PROMPTS[0], num_return_sequences=2, **SAMPLED)
        batch.admit([first, waiting])
        batch.remove(waiting)
        passes(batch, 1)
        assert len(oracle.rows) == 1
        assert waiting.chosen == []

    def test_in_the_middle_of_a_pass(self) -> None:
        batch = Loop(Oracle())
        first, second, third = (text(prompt) for prompt in PROMPTS[:3])
        batch.admit([first, second, third])
        steps = batch.step()
        next(steps)
        batch.remove(second)
        assert [policy for policy, _ in steps] == [third]
        assert second.chosen == []

    def test_of_a_stranger_changes_nothing(self) -> None:
        batch = Loop(Oracle())
        batch.admit([text(PROMPTS[0])])
        batch.remove(text(PROMPTS[0]))
        assert len(batch.policies) == 1


class TestEnding:
    def test_a_text_that_ends_leaves_and_its_last_step_has_the_outcome(self) -> None:
        oracle = Oracle()
        batch = Loop(oracle)
        short, long = text(PROMPTS[0], max_new_tokens=2), text(PROMPTS[1], max_new_tokens=4)
        batch.admit([short, long])
        (_, (_, last), _) = (steps[0] for steps in passes(batch, 3))
        assert last.finish is Finish.LENGTH
        assert last.outcome is not None
        assert last.outcome.policy is short
        assert batch.policies == [long]
        assert len(oracle.rows) == 1

    def test_a_text_that_raises_leaves_and_the_others_go_on_unchanged(self) -> None:
        def stuck(ids: Any, scores: Any) -> Any:
            return np.full_like(scores, -np.inf if len(ids) > 3 else 0)

        oracle = Oracle()
        batch = Loop(oracle)
        broken = text(PROMPTS[1], rules=[stuck])
        others = [text(PROMPTS[0]), text(PROMPTS[3])]
        batch.admit([others[0], broken, others[1]])
        (failed, error) = next(pair for steps in passes(batch, 3) for pair in steps if not isinstance(pair[1], Step))
        assert failed is broken
        assert isinstance(error, SettingError)
        assert "no token is left at step 2" in str(error)
        assert batch.policies == others
        assert len(oracle.rows) == 2
        finish(batch)
        assert [policy.chosen for policy in others] == [alone(policy, Oracle()) for policy in others]

    def test_a_pass_that_is_left_halfway_is_finished_by_the_next_step(self) -> None:
        batch = Loop(Oracle())
        policies = [text(prompt) for prompt in PROMPTS]
        batch.admit(policies)
        steps: Iterator[Any] = batch.step()
        next(steps)
        next(steps)
        assert [policy for policy, _ in batch.step()] == policies[2:]
        finish(batch)
        assert [policy.chosen for policy in policies] == [alone(policy, Oracle()) for policy in policies]

    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_close_gives_all_rows_back(self, count: int) -> None:
        oracle = Oracle()
        batch = Loop(oracle)
        batch.admit([*group(PROMPTS[0], num_return_sequences=3, **SAMPLED), text(PROMPTS[1], guidance_scale=2.0)])
        passes(batch, count)
        batch.close()
        assert not oracle.rows
        assert batch.policies == []
        assert list(batch.step()) == []

    @pytest.mark.parametrize("count", [1, 2, 5])
    def test_closing_the_iterator_early_gives_all_rows_back(self, count: int) -> None:
        oracle = Oracle()
        steps = loop(oracle, [*group(PROMPTS[0], num_return_sequences=2, **SAMPLED), text(PROMPTS[1])])
        for _ in range(count):
            next(steps)
        assert oracle.rows
        steps.close()  # type: ignore[attr-defined]
        assert not oracle.rows


operations = st.one_of(
    st.tuples(st.just("admit"), st.integers(0, len(PROMPTS) - 1), st.integers(1, 3), st.booleans()),
    st.tuples(st.just("remove"), st.integers(0, 20), st.just(0), st.just(False)),
    st.tuples(st.just("step"), st.integers(0, 5), st.just(0), st.just(False)),  # so many texts of a pass; 0: all
)


@effort(max_examples=examples(37, 150), deadline=None)
@given(st.lists(operations, max_size=25), st.integers(0, 2**31))
def test_under_any_schedule_each_text_is_the_one_it_would_be_alone(schedule: list[Any], seed: int) -> None:
    oracle = Oracle(9, seed)
    batch = Loop(oracle)
    admitted: list[Policy] = []
    removed: list[Policy] = []
    for operation, number, count, guided in schedule:
        if operation == "admit":
            changes = {**SAMPLED, "eos_token_id": 0, "max_new_tokens": 5, **({"guidance_scale": 1.5} if guided else {})}
            policies = group(PROMPTS[number], num_return_sequences=count, **changes)
            batch.admit(policies)
            admitted += policies
        elif operation == "remove" and batch.policies:
            removed.append(batch.policies[number % len(batch.policies)])
            batch.remove(removed[-1])
        elif operation == "step":
            for position, _ in enumerate(batch.step(), 1):
                if position == number:
                    break
    finish(batch)
    assert not oracle.rows
    for policy in admitted:
        expected = alone(policy, Oracle(9, seed))
        assert policy.chosen == (expected[: len(policy.chosen)] if policy in removed else expected)
