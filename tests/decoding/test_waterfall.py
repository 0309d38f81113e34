"""What a step says of itself: candidates, scores after every rule, who removed whom, the draw, the entropy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

import glassformer
from glassformer.decoding import GenerationConfig, Policy, Recipe, StepDetail
from glassformer.decoding.policy import NOTHING
from glassformer.decoding.waterfall import TAIL_BINS
from glassformer.ground.candidates import EntropyStats, entropy_stats
from glassformer.ground.errors import GlassError
from glassformer.page.terminal import plain_text
from tests.sweeps import examples

SCORES = np.array([0.0, 3.0, 2.0, 1.0, -1.0, 2.5], np.float32)


def policy(detail: StepDetail, prompt: tuple[int, ...] = (1, 5), **changes: Any) -> Policy:
    return Policy(Recipe.of(GenerationConfig().merged(changes)), prompt, context=99, seed=4, detail=detail)


def test_every_candidates_score_after_every_rule() -> None:
    given_settings = {"do_sample": True, "repetition_penalty": 2.0, "temperature": 0.5, "top_k": 3, "suppress_tokens": [3]}
    step = policy(StepDetail(10, waterfall=True, everything=True), **given_settings).feed(SCORES)
    fall = step.waterfall
    assert fall is not None
    assert fall.stages == ("model", "repetition_penalty", "suppress_tokens", "temperature", "top_k")
    assert fall.counts == (6, 6, 5, 5, 3)
    fates = {fate.id: fate for fate in fall}
    assert fates[1].scores == (3.0, 1.5, 1.5, 3.0, 3.0)
    assert fates[3].scores == (1.0, 1.0, -np.inf, -np.inf, -np.inf)
    assert {token: fate.removed_by for token, fate in fates.items()} == {
        0: "top_k", 1: None, 2: None, 3: "suppress_tokens", 4: "top_k", 5: None,
    }  # fmt: skip
    assert sum(fate.probability for fate in fall) == pytest.approx(1)
    assert [fate.id for fate in fall] == [1, 5, 2, 3, 0, 4]
    assert repr(fall).startswith("Waterfall(model 6 → repetition_penalty 6 → suppress_tokens 5")


def test_entropy_is_in_bits() -> None:
    flat = policy(StepDetail(2, waterfall=True)).feed(np.zeros(8, np.float32))
    assert flat.entropy == pytest.approx(3)
    scores = torch.tensor(SCORES)
    step = policy(StepDetail(2, waterfall=True), do_sample=True, temperature=0.7, top_k=0).feed(SCORES)
    expected = torch.distributions.Categorical(logits=scores).entropy() / np.log(2)
    after = torch.distributions.Categorical(logits=scores / 0.7).entropy() / np.log(2)
    assert step.waterfall is not None
    assert step.waterfall.entropies == pytest.approx((float(expected), float(after)), abs=1e-5)


@effort(max_examples=examples(15, 60), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 8))
def test_a_short_look_says_the_same_of_fewer(seed: int, count: int) -> None:
    scores = (np.random.default_rng(seed).standard_normal(300) * 3).astype(np.float32)
    settings = {"do_sample": True, "temperature": 0.8, "top_p": 0.9, "xtc_probability": 0.5, "repetition_penalty": 1.3}
    whole = policy(StepDetail(count, waterfall=True, everything=True), **settings).feed(scores)
    short = policy(StepDetail(count, waterfall=True), **settings).feed(scores)
    assert whole.id == short.id
    assert whole.draw == short.draw
    assert whole.waterfall is not None
    assert short.waterfall is not None
    every = {fate.id: fate for fate in whole.waterfall}
    assert len(every) == 300
    assert all(every[fate.id] == fate for fate in short.waterfall)
    assert whole.id in [fate.id for fate in short.waterfall]
    assert whole.waterfall.entropies == short.waterfall.entropies


def test_looking_changes_no_choice_and_not_looking_keeps_nothing() -> None:
    settings = {"do_sample": True, "temperature": 1.5, "top_k": 0}
    quiet, loud = policy(StepDetail(), **settings), policy(StepDetail(5, True, True, True, True), **settings)
    for _ in range(20):
        one, other = quiet.feed(SCORES), loud.feed(SCORES)
        assert (one.id, one.draw, one.finish) == (other.id, other.draw, other.finish)
        assert (one.candidates, one.logprob, one.entropy, one.waterfall, one.raw, one.scores) == (None,) * 6
        assert np.array_equal(other.raw, SCORES)
        assert other.scores is not None
        assert np.allclose(other.scores, SCORES / 1.5)


def test_a_stage_that_changed_nothing_is_not_measured_again() -> None:
    sizes: list[int] = []

    def counted(scores: Any) -> EntropyStats:
        sizes.append(scores.size)
        return entropy_stats(scores)

    settings = {"do_sample": True, "repetition_penalty": 1.5, "no_repeat_ngram_size": 3, "top_k": 6, "top_p": 0.5}
    recipe = Recipe.of(GenerationConfig().merged(settings))
    step = Policy(recipe, (1, 5), context=99, seed=4, detail=StepDetail(3, waterfall=True), entropy_stats=counted).feed(
        SCORES
    )
    assert step.waterfall is not None
    assert step.waterfall.stages == ("model", "repetition_penalty", "no_repeat_ngram_size", "top_k", "top_p")
    assert step.waterfall.counts[:4] == (6, 6, 6, 6)
    assert sizes == [6, 6, step.waterfall.counts[-1]]  # of the model, of the penalty and of top_p


def test_an_empty_look_is_the_shared_constant() -> None:
    assert policy(StepDetail()).detail is NOTHING
    assert policy(StepDetail(raw=False, scores=False)).detail is NOTHING


def test_a_run_explains_its_tokens() -> None:
    model = glassformer.load("smollm2")
    settings = {"do_sample": True, "temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 3, "max_new_tokens": 4}
    run = model.watch("Say hello.", **settings)
    assert run.text == model.chat("Say hello.", **settings)
    why = run.why(1)
    (chosen,) = [one for one in why.candidates if one.chosen]
    assert chosen.id == run.steps[1].id
    assert why.rules == ("temperature", "top_k", "top_p")
    assert why.counts[0] == 49152
    assert why.counts[2] == 20
    assert why.draw == run.steps[1].draw
    assert why.entropy == run.steps[1].entropy
    assert repr(why).startswith("Why(token 1: ")
    assert why.to_dict()["candidates"][0]["text"] == why.candidates[0].text
    shown = str(run.why(-1))
    assert shown.startswith("token 3: ")
    assert "the text ended: length" in " ".join(shown.split())
    assert "top_p" in shown


@pytest.mark.parametrize("look", ["some", -1, True, 2.5])
def test_invalid_looks_are_refused(look: Any) -> None:
    with pytest.raises(GlassError, match="'all'"):
        glassformer.load("smollm2").watch("Hi", look=look)


def test_what_is_shown_fits_the_terminal_and_marks_the_chosen_without_colour() -> None:
    model = glassformer.load("smollm2")
    settings = {"repetition_penalty": 1.2, "presence_penalty": 0.5, "suppress_tokens": [5], "no_repeat_ngram_size": 3}
    shown = str(model.watch("Say hello.", max_new_tokens=1, **settings).why(0))
    (marked,) = [line for line in shown.splitlines() if "→" in line]
    assert "Hello" in marked
    assert "changed nothing here: repetition_penalty, presence_penalty, no_repeat_ngram_size" in shown
    assert max(map(len, shown.splitlines())) <= 100
    assert "\x1b" not in shown
    beams = model.watch("Say hello.", max_new_tokens=2, num_beams=2)
    assert str(beams.why(0)).splitlines()[0].endswith("part of the best text of 2 beams, out of 49,152 in play")
    assert "log-prob" in str(beams.why(0))
    sampled = model.watch("Hi", do_sample=True, seed=1, temperature=0.7, top_k=20, top_p=0.9, min_p=0.05, max_new_tokens=1)
    narrow = plain_text(sampled.why(0), width=52)
    assert "no room for: temperature" in narrow
    assert "…" not in narrow
    assert "picked by the draw" in narrow


def test_the_whole_vocabulary_can_be_kept() -> None:
    run = glassformer.load("smollm2").watch("Hi", max_new_tokens=1, look="all")
    assert run.steps[0].waterfall is not None
    assert len(run.steps[0].waterfall) == 49152


def test_the_tail_counts_what_is_not_listed_and_in_play() -> None:
    scores = np.array([5.0, 4.9, 4.6, 4.5, -np.inf, -1000.0, 2.0], np.float32)
    fall = policy(StepDetail(2, waterfall=True), do_sample=False).feed(scores).waterfall
    assert fall is not None
    assert fall.tail is not None
    assert fall.ids.tolist() == [0, 1]
    assert fall.tail.top == pytest.approx(4.6)
    counts = fall.tail.counts
    assert {place: count for place, count in enumerate(counts) if count} == {0: 2, 10: 1, TAIL_BINS - 1: 1}


def test_there_is_no_tail_when_everything_is_listed() -> None:
    assert policy(StepDetail(3, waterfall=True, everything=True)).feed(SCORES).waterfall.tail is None  # type: ignore[union-attr]
    only = np.array([1.0, -np.inf, -np.inf], np.float32)
    assert policy(StepDetail(1, waterfall=True)).feed(only).waterfall.tail is None  # type: ignore[union-attr]
