"""A recording holds what the run's own views say, and enough to compute every distribution again."""

from __future__ import annotations

import json
import math
from typing import Any

import jsonschema
import numpy as np
import pytest

from glassformer.see.recording import CANDIDATES, RecordedStep, Recording, counterpart
from glassformer.see.schema import schema
from tests.see.models import TEXT, both

SAMPLING = {"do_sample": True, "temperature": 0.9, "top_k": 40, "top_p": 0.9, "seed": 3, "max_new_tokens": 5}


def record(family: str, look: int = 8) -> tuple[Any, Recording]:
    run = both(family).model.watch(TEXT, look=look, eos_token_id=None, **SAMPLING)
    return run, run.recording


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_a_recording_has_the_numbers_of_the_runs_views(family: str) -> None:
    run, recording = record(family)
    jsonschema.validate(json.loads(json.dumps(recording.to_dict())), schema(Recording))
    assert [step.token.id for step in recording.steps] == list(run.ids)
    assert [token.id for token in recording.prompt_tokens] == list(run.prompt_ids)
    assert recording.stages == run.journey.stages
    for step, place, why in zip(recording.steps, run.trace.places, run.whys.whys, strict=True):
        assert step.surprisal == pytest.approx(place.surprisal)
        assert step.rank == place.rank
        assert step.counts == why.counts
        assert step.rules == why.rules
        for candidate, path, score in zip(why.candidates, step.candidates.paths, step.candidates.scores, strict=False):
            assert (score, *path) == candidate.scores
        assert any(candidate.chosen for candidate in why.candidates[: len(step.candidates.paths)])


@pytest.mark.parametrize(("family", "kinds"), [("gpt2", {"self"}), ("t5", {"self", "cross", "encoder"})])
def test_a_recording_with_views_holds_attention_and_the_prompts_lens(family: str, kinds: set[str]) -> None:
    run, recording = record(family)
    assert recording.slices == {}
    slices = run.record(views=True).slices
    assert slices.keys() == {*(f"attention-maps/{kind}" for kind in kinds), *({"lens"} if family == "gpt2" else ())}
    assert all(slices[f"attention-maps/{kind}"] == run.reading.attention_maps(kind=kind) for kind in kinds)
    if family == "gpt2":
        assert slices["lens"] == run.reading.lens(range(len(run.prompt_ids) - 1))
    assert run.record(views=True).to_dict() == recording.to_dict(), "what is held besides is its page's alone"


def test_a_text_that_is_too_long_for_maps_is_recorded_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassformer.see.attention.MAX_MAPS_BYTES", 10)
    monkeypatch.setattr("glassformer.see.recording.PROMPT_TOKENS", 1)
    assert record("gpt2")[0].record(views=True).slices == {}


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_the_lens_of_each_step_ends_with_the_models_first_choice(family: str) -> None:
    run, recording = record(family)
    columns = zip(*run.lens().predictions, strict=True)
    for step, column in zip(recording.steps, columns, strict=True):
        assert step.lens is not None
        assert len(step.lens.texts) == len(recording.layers)
        assert list(step.lens.texts) == [prediction.text for prediction in column]
        assert step.lens.probabilities == pytest.approx([prediction.probability for prediction in column], rel=1e-5)
        assert step.lens.texts[-1] == step.candidates.texts[0]


def share_of_the_rest(step: RecordedStep, width: float, temperature: float) -> float:
    """The probability of what is not listed, as a page computes it."""
    assert step.tail is not None
    best, top = step.candidates.scores[0], step.tail.top
    listed = sum(math.exp((score - best) / temperature) for score in step.candidates.scores)
    rest = sum(
        count * math.exp((top - (number + 0.5) * width - best) / temperature)
        for number, count in enumerate(step.tail.counts)
    )
    return rest / (listed + rest)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_the_tail_gives_the_share_of_all_others_at_any_temperature(temperature: float) -> None:
    run, recording = record("gpt2", CANDIDATES)
    whole = both("gpt2").model.watch(TEXT, look="all", eos_token_id=None, **SAMPLING)
    assert whole.ids == run.ids
    for step, exact in zip(recording.steps, whole.steps, strict=True):
        scores = exact.waterfall.scores[0].astype(np.float64)
        weights = np.exp((scores - scores.max()) / temperature)
        rest = 1 - weights[: len(step.candidates.ids)].sum() / weights.sum()
        assert step.tail is not None
        assert sum(step.tail.counts) + len(step.candidates.ids) == scores.size
        assert share_of_the_rest(step, recording.tail_width, temperature) == pytest.approx(rest, abs=0.005)


def test_a_recording_with_views_holds_the_pages_that_a_model_is_needed_for() -> None:
    run, recording = record("gpt2")
    assert recording.pages == {}
    stages: list[tuple[str, int]] = []
    pages = run.record(views=True, progress=lambda what, done, total: stages.append((what, done))).pages
    assert [*zip(*stages, strict=True)] == [("attention and lens", "tree", "why", "patch"), (0, 1, 2, 3)]
    assert {"explain", "tree"} <= pages.keys() <= {"explain", "tree", "patch"}
    why = run.explain(evidence=True)
    assert pages["explain"].view == why
    assert pages["explain"].token == why.position + 1 - len(run.prompt_ids)
    assert run.steps[pages["explain"].token].id == why.answer.id
    assert pages["tree"].view == run.model.tree(run.prompt_ids)
    result = pages["explain"].result("explain")
    assert result["page"]["title"] == result["title"] == run.explain().page().title
    assert result["page"]["parts"][1]["text"] == "\n".join(run.explain().sentences)
    other = record("t5")[0]
    pages = other.record(views=True).pages
    assert pages.keys() == {"explain", "tree"}, "patches of a source are another view's"
    assert other.steps[pages["explain"].token].id == pages["explain"].view.answer.id


def test_the_saved_patch_is_of_the_word_that_decides() -> None:
    run = both("llama").model.watch(TEXT, look=8, max_new_tokens=3)
    found = [counterpart(run, run.explain(index)) for index in range(3)]
    for pair, why in zip(found, (run.explain(index) for index in range(3)), strict=True):
        assert (pair is None) == (not why.named or why.words[0].best_exchange is None)
        if pair is not None:
            differing = {at for at, ids in enumerate(zip(pair.first.ids, pair.second.ids, strict=True)) if ids[0] != ids[1]}
            assert differing == {*why.words[0].positions}


def test_pages_that_would_take_minutes_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    run = record("gpt2")[0]
    monkeypatch.setattr("glassformer.see.recording.PAGE_WORK", run.model.blueprint.parameters)
    assert run.record(views=True).pages == {}


def test_an_answer_follows_a_prompt_of_ids_alone() -> None:
    model = both("llama").model
    run = model.watch(TEXT, max_new_tokens=3)
    given = {"answer_ids": run.ids, "contents": run.contents, "token": 1}
    assert model.explain(run.prompt_ids, **given).words == run.explain(1).words
