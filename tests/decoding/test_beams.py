"""Beam search: against all texts there are, row by row, and in every way that it can end."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from glassformer.decoding import Finish, Outcome, Policy, StepDetail
from glassformer.decoding.beams import beams, highest
from glassformer.decoding.rules import NamedRule
from glassformer.decoding.shortlist import Shortlist
from glassformer.ground.errors import ExecutorError, SettingError
from tests.decoding.oracle import Oracle, group, logprobs, only, recipe
from tests.sweeps import examples

END = 0


def outcomes(oracle: Any, policies: list[Policy]) -> list[Outcome]:
    """What came of each text; only its last step may say it, and all rows must have been given back."""
    texts: list[list[int]] = [[] for _ in policies]
    found: dict[int, Outcome] = {}
    for number, step in beams(oracle, policies):
        texts[number].append(step.id)
        assert (step.finish is None) == (step.outcome is None)
        if step.outcome is not None:
            found[number] = step.outcome
    assert texts == [found[number].policy.chosen for number in range(len(policies))]
    assert all(not policy.chosen for policy in policies)  # forks of them wrote the texts
    assert not oracle.rows
    return [found[number] for number in range(len(policies))]


def search(oracle: Any, policies: list[Policy]) -> list[list[int]]:
    return [outcome.policy.chosen for outcome in outcomes(oracle, policies)]


def all_texts(size: int, room: int) -> Iterator[tuple[int, ...]]:
    """Everything that can be written until the end token or the limit."""
    for first in range(size):
        if first == END or room == 1:
            yield (first,)
        else:
            yield from ((first, *rest) for rest in all_texts(size, room - 1))


@effort(max_examples=examples(6, 25), deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([-0.5, 0.0, 1.0, 2.0]), st.sampled_from([False, True, "never"]))
def test_with_beams_for_all_texts_the_best_of_all_are_found(seed: int, penalty: float, early: Any) -> None:
    oracle, prompt = Oracle(4, seed), [2, 1]
    texts = list(all_texts(4, 3))
    made = recipe(
        num_beams=len(texts), num_return_sequences=5, eos_token_id=END, max_new_tokens=3, length_penalty=penalty,
        early_stopping=early,
    )  # fmt: skip
    policies = group(prompt, made)
    scores = {text: sum(logprobs(oracle, prompt, text)) / len(text) ** penalty for text in texts}
    best = sorted(texts, key=lambda text: -scores[text])[:5]
    found = outcomes(oracle, policies)
    assert [outcome.policy.chosen for outcome in found] == [list(text) for text in best]
    assert [outcome.score for outcome in found] == pytest.approx([scores[text] for text in best], abs=1e-4)


@effort(max_examples=examples(12, 50), deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 5), st.booleans())
def test_a_score_is_the_sum_of_its_tokens(seed: int, width: int, sampled: bool) -> None:
    """And `beams` says where each of them came from."""
    oracle, prompt = Oracle(9, seed), [3, 3, 1]
    sampling: dict[str, Any] = {"do_sample": True, "seed": seed, "top_k": 0} if sampled else {}
    policies = group(
        prompt, detail=StepDetail(raw=True, scores=True), num_beams=width, num_return_sequences=width, eos_token_id=END,
        max_new_tokens=6, length_penalty=1.5, **sampling,
    )  # fmt: skip
    found = outcomes(oracle, policies)
    beam_scores, beam_logits = found[0].beam_scores, found[0].beam_logits
    assert len({tuple(outcome.policy.chosen) for outcome in found}) == width
    assert all(scores.shape == (width, 9) for scores in (*beam_scores, *beam_logits))
    scores = [outcome.score for outcome in found if outcome.score is not None]
    assert scores == sorted(scores, reverse=True)
    for outcome, score in zip(found, scores, strict=True):
        text = outcome.policy.chosen
        chosen = zip(outcome.beams, text, strict=True)
        sums = [float(beam_scores[n][beam, token]) for n, (beam, token) in enumerate(chosen)]
        assert sums == pytest.approx(logprobs(oracle, prompt, text), abs=1e-5)
        assert score == pytest.approx(sum(sums) / len(text) ** 1.5, abs=1e-5)
        raw = [beam_logits[n][beam] for n, beam in enumerate(outcome.beams)]
        assert all(np.array_equal(logits, oracle.after((*prompt, *text[:n]))) for n, logits in enumerate(raw))


@effort(max_examples=examples(5, 20), deadline=None)
@given(st.integers(0, 2**31), st.booleans())
def test_prompts_together_equal_each_alone(seed: int, sampled: bool) -> None:
    more: dict[str, Any] = {"do_sample": True, "seed": seed} if sampled else {}
    made = recipe(num_beams=3, num_return_sequences=2, eos_token_id=[END, 1], max_new_tokens=8, **more)
    prompts = [[5], [2, 7, 7], [9, 4], [5]]
    together = search(Oracle(10, seed), [policy for prompt in prompts for policy in group(prompt, made)])
    alone = [text for prompt in prompts for text in search(Oracle(10, seed), group(prompt, made))]
    assert together == alone


def test_all_beams_run_in_one_pass_after_the_prompt_is_read_once() -> None:
    oracle = Oracle(10)
    made = recipe(num_beams=4, max_new_tokens=3)
    search(oracle, [*group([5, 6, 7], made), *group([8], made)])
    assert oracle.passes == [[3, 1], [1] * 8, [1] * 8]


def test_one_beam_is_greedy() -> None:
    oracle = Oracle(10)
    (text,) = search(oracle, group([5], max_new_tokens=6))
    for place, token in enumerate(text):
        assert token == oracle.after((5, *text[:place])).argmax()


def test_ended_groups_leave_their_rows_early() -> None:
    """The first prompt ends at once with both beams; the other goes on."""

    def scores(source: Any, ids: tuple[int, ...]) -> Any:
        found = np.zeros(6, np.float32)
        found[[END, 1] if ids[0] == 5 else [2, 3]] = 9
        return found

    oracle = Oracle(6, scores=scores)
    made = recipe(num_beams=2, eos_token_id=[END, 1], max_new_tokens=4, early_stopping=True)
    steps = beams(oracle, [*group([5], made), *group([4], made)])
    assert next(steps)[1].finish is Finish.EOS
    assert len(oracle.rows) == 2
    assert {number for number, _ in steps} == {1}
    assert [len(feeds) for feeds in oracle.passes] == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("early", "text", "passes"), [(True, [0], 2), (False, [2, 2, 0], 3), ("never", [2] * 30, 30)], ids=str
)
def test_early_stopping_decides_when_a_search_ends(early: Any, text: list[int], passes: int) -> None:
    """Better texts are longer here: the sooner a search believes that it has found the best, the shorter its text."""

    def scores(source: Any, ids: tuple[int, ...]) -> Any:
        shares = {1: [0.3, 0, 0.7], 2: [0.1, 0, 0.9], 3: [0.98, 0, 0.02]}.get(len(ids), [0, 0, 1])
        return np.log(np.array(shares, np.float32) + 1e-12)

    oracle = Oracle(3, scores=scores)
    found = search(oracle, group([1], num_beams=2, eos_token_id=END, max_new_tokens=30, early_stopping=early))
    assert found == [text]
    assert len(oracle.passes) == passes


class TestBeamsEnd:
    def test_at_the_limit_all_beams_end(self) -> None:
        policies = group([3], num_beams=3, num_return_sequences=3, max_new_tokens=4)
        steps = list(beams(Oracle(), policies))
        assert [number for number, _ in steps] == [0] * 4 + [1] * 4 + [2] * 4
        assert [step.finish for _, step in steps] == [None, None, None, Finish.LENGTH] * 3

    def test_when_stop_when_says_so(self) -> None:
        made = recipe(num_beams=3, num_return_sequences=3, max_new_tokens=9, stop_when=lambda ids: ids[-1] % 2 == 1)
        steps = list(beams(Oracle(), group([3], made)))
        finishes = [step.finish for _, step in steps if step.finish]
        assert set(finishes) <= {Finish.CRITERION, Finish.LENGTH}
        assert Finish.CRITERION in finishes
        assert all(step.id % 2 == 0 for _, step in steps if not step.finish)

    def test_when_it_is_cancelled(self) -> None:
        event = threading.Event()
        event.set()
        policies = group([3], num_beams=3, num_return_sequences=2, cancel=event)
        steps = list(beams(Oracle(), policies))
        assert [step.finish for _, step in steps] == [Finish.CANCELLED] * 2

    def test_when_max_time_is_over(self) -> None:
        policies = group([3], num_beams=3, max_time=1e-9)
        assert [step.finish for _, step in beams(Oracle(), policies)] == [Finish.TIME]


class Fixed:
    """A grammar of a few texts."""

    def __init__(self, *texts: list[int]) -> None:
        self.texts = texts

    def guide(self) -> Reading:
        return Reading(self.texts)


class Reading:
    def __init__(self, texts: Any, said: tuple[int, ...] = ()) -> None:
        self.texts, self.said = texts, said

    def allowed(self) -> list[int]:
        start = len(self.said)
        return sorted({text[start] for text in self.texts if tuple(text[:start]) == self.said and len(text) > start})

    @property
    def done(self) -> bool:
        return not self.allowed()

    def accept(self, token: int) -> None:
        self.said = (*self.said, token)

    def fork(self) -> Reading:
        return Reading(self.texts, self.said)


def follow(field: Shortlist, history: Any) -> Shortlist:
    return only(field, history.guide.allowed())


def guided(*texts: list[int], **changes: Any) -> Any:
    return replace(recipe(**changes), rules=(NamedRule("choices", follow),), grammar=Fixed(*texts))


TEXTS = ([1, 2], [1, 3, 4, 4, 4], [5, 6], [5, 7], [8])


@effort(max_examples=examples(6, 25), deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 6))
def test_a_grammars_texts_are_compared_and_nothing_else(seed: int, width: int) -> None:
    """Beams come and go: there are two at first, then up to four, and one is left for the longest text."""
    asked = min(width, len(TEXTS))
    made = guided(*TEXTS, num_beams=width, num_return_sequences=asked, early_stopping="never", length_penalty=0.0)
    oracle = Oracle(12, seed)
    policies = [outcome.policy for outcome in outcomes(oracle, group([3], made))]
    found = [policy.chosen for policy in policies]
    assert all(text in TEXTS for text in found)
    assert len({tuple(text) for text in found}) == asked
    if width > 4:
        assert found == sorted(TEXTS, key=lambda text: -sum(logprobs(oracle, [3], text)))
    assert all(policy.history.guide is not None and policy.history.guide.done for policy in policies)


def test_more_texts_than_the_grammar_has_are_an_error() -> None:
    policies = group([3], guided([1, 2], [5], num_beams=4, num_return_sequences=3))
    oracle = Oracle()
    with pytest.raises(SettingError, match="num_return_sequences is 3"):
        list(beams(oracle, policies))
    assert not oracle.rows


def test_the_rules_that_leave_no_token_are_named() -> None:
    oracle = Oracle()
    with pytest.raises(SettingError, match="step 0: suppress_tokens"):
        list(beams(oracle, group([3], num_beams=2, suppress_tokens=list(range(12)))))
    assert not oracle.rows


def test_a_beam_without_continuations_is_dropped_alone() -> None:
    """After 1 nothing may follow; what began with 2 goes on."""

    def rule(field: Shortlist, history: Any) -> Shortlist:
        return only(field, [1, 2] if history.step == 0 else [] if history.chosen[0] == 1 else [4, 5])

    made = replace(recipe(num_beams=3, num_return_sequences=3, max_new_tokens=3), rules=(NamedRule("own", rule),))
    found = search(Oracle(), group([3], made))
    assert len(found) == 3
    assert {text[0] for text in found} == {2}


@pytest.mark.parametrize("step", [0, 2])
def test_nan_scores_are_an_error_that_names_the_step(step: int) -> None:
    def scores(source: Any, ids: tuple[int, ...]) -> Any:
        return np.full(6, np.nan if len(ids) == step + 1 else 1, np.float32)

    oracle = Oracle(6, scores=scores)
    with pytest.raises(ExecutorError, match=f"step {step}"):
        list(beams(oracle, group([3], num_beams=2)))
    assert not oracle.rows


def test_closing_beams_early_closes_all_rows() -> None:
    oracle = Oracle()
    made = recipe(num_beams=3, num_return_sequences=2, eos_token_id=END, max_new_tokens=5)
    steps = beams(oracle, [policy for prompt in ([3], [4], [5]) for policy in group(prompt, made)])
    next(steps)
    steps.close()  # type: ignore[attr-defined]
    assert not oracle.rows


def test_an_error_while_prompts_are_read_closes_all_rows() -> None:
    class Narrow(Oracle):
        def open(self, source: Any = None) -> Any:
            if len(self.rows) == 2:
                raise ExecutorError("no more rows.")
            return super().open(source)

    oracle = Narrow()
    made = recipe(num_beams=2)
    with pytest.raises(ExecutorError, match="no more rows"):
        list(beams(oracle, [policy for prompt in ([3], [4], [5]) for policy in group(prompt, made)]))
    assert not oracle.rows


def test_a_source_and_the_prompts_logprobs_go_along() -> None:
    oracle = Oracle()
    made = recipe(num_beams=2, num_return_sequences=2, max_new_tokens=3, prompt_logprobs=1)
    policies = [Policy(made, [4, 5, 6], context=64, index=index, source=[7, 8]) for index in range(2)]
    prompt_steps = outcomes(oracle, policies)[1].prompt_steps
    assert [step.id for step in prompt_steps] == [4, 5, 6]
    assert prompt_steps[2].logprob == pytest.approx(sourced(oracle, [7, 8], [4, 5, 6]), abs=1e-6)


def sourced(oracle: Oracle, source: list[int], ids: list[int]) -> float:
    scores = oracle.after(ids[:-1], source).astype(np.float64)
    return float(scores[ids[-1]] - np.log(np.exp(scores).sum()))


def test_steps_of_beams_explain_themselves() -> None:
    oracle = Oracle()
    detail = StepDetail(candidates=3, waterfall=True, raw=True, scores=True)
    policies = group([3], detail=detail, num_beams=3, num_return_sequences=2, max_new_tokens=4, suppress_tokens=[7])
    steps = [step for _, step in beams(oracle, policies)]
    policies = [step.outcome.policy for step in steps if step.outcome is not None]
    befores = [(3, *policy.chosen[:place]) for policy in policies for place in range(4)]
    lost = []
    for before, step in zip(befores, steps, strict=True):
        assert step.candidates is not None
        assert step.candidates.ids.tolist() == np.argsort(-oracle.after(before))[:3].tolist()
        assert step.logprob == pytest.approx(logprobs(oracle, before, [step.id])[0], abs=1e-5)
        assert step.waterfall is not None
        assert step.waterfall.stages == ("model", "suppress_tokens")
        assert step.entropy is not None
        assert step.scores is not None
        assert step.scores[7] == -np.inf
        assert step.draw is None
        lost.append(float(oracle.after(before).max() - oracle.after(before)[step.id]))
    assert [policy.gap for policy in policies] == pytest.approx([sum(lost[:4]), sum(lost[4:])], abs=1e-5)


class TestSampledBeams:
    MADE: dict[str, Any] = {"do_sample": True, "num_beams": 2, "num_return_sequences": 2, "max_new_tokens": 6, "top_k": 0}

    def test_the_same_seed_gives_the_same_texts(self) -> None:
        def texts(seed: int) -> Any:
            return search(Oracle(30), group([3], **self.MADE, seed=seed))

        assert texts(1) == texts(1)
        assert len({str(texts(seed)) for seed in range(6)}) > 1

    def test_a_rule_that_removes_nothing_changes_no_draw(self) -> None:
        plain = search(Oracle(30), group([3], **self.MADE, seed=4))
        assert search(Oracle(30), group([3], **{**self.MADE, "top_k": 30}, seed=4)) == plain

    def test_pairs_are_drawn_without_replacement(self) -> None:
        """Chi-square over the pairs of two beams' first tokens."""
        shares = np.array([0.4, 0.3, 0.2, 0.1])
        oracle = Oracle(4, scores=lambda source, ids: np.log(shares).astype(np.float32))
        made = recipe(**{**self.MADE, "max_new_tokens": 1})
        rounds, seen = 1500, Counter[tuple[int, ...]]()
        for index in range(rounds):
            policies = [Policy(made, [3], context=9, seed=8, index=2 * index + n) for n in range(2)]
            seen[tuple(sorted(text[0] for text in search(oracle, policies)))] += 1
        pairs = combinations(range(4), 2)
        expected = {(a, b): shares[a] * shares[b] * (1 / (1 - shares[a]) + 1 / (1 - shares[b])) for a, b in pairs}
        assert sum(expected.values()) == pytest.approx(1)
        assert seen.keys() <= expected.keys()
        distance = sum((seen[pair] - rounds * share) ** 2 / (rounds * share) for pair, share in expected.items())
        assert distance < 20.5  # p = 0.001 at five degrees of freedom


def test_forks_are_made_for_few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    forks: list[Policy] = []
    fork = Policy.fork

    def counted(self: Policy, index: int | None = None) -> Policy:
        forks.append(self)
        return fork(self, index)

    monkeypatch.setattr(Policy, "fork", counted)
    search(Oracle(500), group([3], num_beams=4, eos_token_id=END, max_new_tokens=10))
    assert 10 <= len(forks) <= 10 * 8


@effort(max_examples=examples(15, 60), deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 20), st.integers(1, 400))
def test_highest_gives_the_indices_of_the_best(seed: int, wanted: int, size: int) -> None:
    draw = np.random.default_rng(seed)
    scores = draw.permutation(size).astype(np.float32)
    scores[draw.random(size) < 0.3] = -np.inf
    best = [place for place in np.argsort(-scores)[:wanted].tolist() if scores[place] > -np.inf]
    assert highest(scores, wanted).tolist() == sorted(best)
