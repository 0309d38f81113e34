"""Sweeps, strategies, and the cache beside no cache."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from glassformer.see.caching import caching
from glassformer.see.sweep import STRATEGIES, strategies
from tests.see.models import EXECUTORS, TEXT, WRITERS, Both, both
from tests.see.test_reading import fits, valid

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=[(family, executor) for family in WRITERS for executor in EXECUTORS], ids="-".join)
def pair(request: pytest.FixtureRequest) -> Both:
    return both(*request.param)


def scores(run: Any, step: int) -> Any:
    found = np.concatenate([chunk.scores for chunk in run.reading.chunks(scored=True)])
    return found[run.reading.prompt_length + step - 1].astype(np.float64)


def test_temperature_by_hand(pair: Both) -> None:
    run = pair.model.watch(TEXT, max_new_tokens=4, eos_token_id=None, do_sample=True, top_k=0, seed=1)
    for step in (0, 2):
        sweep = run.sweep("temperature", [0.2, 1.0, 3.0], step)
        own = scores(run, step)
        for shape, value in zip(sweep.shapes, (0.2, 1.0, 3.0), strict=True):
            weights = np.exp((own - own.max()) / value)
            assert shape.probabilities == pytest.approx((weights / weights.sum())[list(sweep.ids)], abs=1e-4)
        assert sweep.shapes[1].probabilities == pytest.approx(sweep.own, abs=1e-5)
        assert sweep.shapes[0].entropy < sweep.shapes[1].entropy < sweep.shapes[2].entropy
    valid(sweep)
    assert "by temperature" in fits(sweep)


def test_top_k_cuts(pair: Both) -> None:
    run = pair.model.watch(TEXT, max_new_tokens=2, eos_token_id=None)
    sweep = run.sweep("top_k", [1, 3])
    assert [shape.left for shape in sweep.shapes] == [1, 3]
    assert sweep.shapes[0].probabilities[0] == 1
    assert sweep.shapes[1].probabilities[3:] == (0.0,) * (len(sweep.ids) - 3)
    assert sum(sweep.shapes[1].probabilities) == pytest.approx(1)


def test_rules_see_the_text_so_far() -> None:
    """A penalty for repetition weighs what was written before the step."""
    run = both("gpt2").model.watch(TEXT, max_new_tokens=4, eos_token_id=None, forced_tokens={0: 33})
    before, after = (run.sweep("presence_penalty", [0.0, 50.0], step) for step in (0, 3))
    assert before.shapes[0].probabilities == pytest.approx(before.shapes[1].probabilities)
    written = {step.id for step in run.steps[:3]}
    for token, chance in zip(after.ids, after.shapes[1].probabilities, strict=True):
        assert (chance < 1e-6) == (token in written)


def test_other_settings_of_the_run_hold() -> None:
    """A sweep at the run's own value is what the run did."""
    run = both("qwen3").model.watch(
        TEXT, max_new_tokens=2, eos_token_id=None, do_sample=True, temperature=1.7, top_k=5, seed=1
    )
    (shape,) = run.sweep("temperature", 1.7, step=1).shapes
    assert shape.left == 5
    assert shape.probabilities[:5] == pytest.approx([one.probability for one in run.why(1).candidates[:5]], abs=1e-6)


@pytest.mark.parametrize("pair", [("qwen3", "cpu"), ("t5", "plain")], indirect=True, ids="-".join)
def test_strategies_write_what_each_writes_alone(pair: Both) -> None:
    settings = {"max_new_tokens": 4, "eos_token_id": None, "seed": 3}
    found = strategies(partial(pair.model.watch, TEXT), STRATEGIES, settings)
    assert [one.name for one in found.tried] == list(STRATEGIES)
    for one in found.tried:
        run = pair.model.watch(TEXT, **{**settings, **STRATEGIES[one.name]})
        assert one.text == run.text
        mean = -sum(step.logprob for step in run.steps) / len(run.steps) / np.log(2)
        assert one.surprisal == pytest.approx(mean, abs=1e-5)
    valid(found)
    assert "4 beams" in fits(found)


def test_without_the_cache_the_same_tokens(pair: Both) -> None:
    settings = {"max_new_tokens": 5, "eos_token_id": None, "do_sample": True, "seed": 2}
    run = pair.model.watch(TEXT, **settings)
    told: list[tuple[int, int]] = []
    found = caching(run, lambda *one: told.append(one))
    assert found.same
    assert found.texts == (run.text, run.text) or pair.sourced  # a SentencePiece text may begin with its own blank
    begin, source = (1, len(run.prompt_ids)) if pair.sourced else (len(run.prompt_ids), 0)
    assert found.fed == (begin + 4 + source, sum(begin + step + source for step in range(5)))
    assert [step.length for step in found.steps] == [begin + step for step in range(5)]
    key = pair.model.blueprint.sites["blocks.0.attention.key"]  # in float32, as is its value
    assert found.bytes == 2 * pair.model.blueprint.blocks * key[1] * key[3] * 4 * (begin + 4 + source)
    assert told[-1] == (5, 5)
    valid(found)
    assert "the same tokens with and without" in fits(found)
