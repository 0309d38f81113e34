"""Receipts: what they hold, that they can be replayed, and that what has changed since is noticed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glassformer
from glassformer.ground.changes import Change
from glassformer.ground.errors import InputError, UnknownArgument
from glassformer.see.receipt import SCHEMA
from tests.see.models import EXECUTORS, TEXT, WRITERS, both
from tests.see.test_reading import fits, valid

pytestmark = pytest.mark.usefixtures("one_thread")
SETTINGS: dict[str, Any] = {"max_new_tokens": 6, "do_sample": True, "temperature": 0.9, "seed": 5, "eos_token_id": None}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("family", WRITERS)
def test_a_replay_is_identical(family: str, executor: str, tmp_path: Path) -> None:
    model = both(family, executor).model
    run = model.watch(TEXT, **SETTINGS)
    path = run.save(tmp_path / "run.json")
    replay = model.replay(path)
    assert replay.identical
    assert replay.text == run.text
    assert replay.differences == ()
    assert "identical: every token" in fits(replay)
    valid(replay)
    told = valid(run.receipt)
    assert told == json.loads(path.read_text("utf-8"))
    assert told["prompt_ids"] == list(run.prompt_ids)
    assert [step["draw"] for step in told["steps"]] == [step.draw for step in run.steps]
    assert told["settings"]["temperature"] == {"value": 0.9, "origin": "this call"}
    assert told["executor"]["name"] == executor
    assert told["versions"]["glassformer"] == glassformer.__version__
    assert len(told["weights"]) == 64


def test_every_strategy_is_replayed(tmp_path: Path) -> None:
    model = both("qwen3", "cpu").model
    ways: list[dict[str, Any]] = [
        {"num_beams": 3},
        {"guidance_scale": 1.7, "negative_prompt": "a dog"},
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
        {"do_sample": True, "seed": 3, "top_k": 4, "min_p": 0.01},
        {"forced_tokens": {1: 5}},
        {"logit_bias": {"a": 4.0}},
        {"stop_strings": ["t"]},
    ]
    for settings in ways:
        run = model.watch(TEXT, max_new_tokens=5, **settings)
        assert model.replay(run.save(tmp_path / "run.json")).identical, settings


def test_a_changed_model_is_replayed_changed(tmp_path: Path) -> None:
    model = both("qwen3").model
    shift = np.linspace(-1, 1, model.config.hidden_size).astype(np.float32)
    change = {"blocks.1.residual": Change(scale=0.5, shift=shift, positions=[2, 3]),
              "blocks.0.attention.heads": Change(scale=0, heads=[1])}  # fmt: skip
    run = model.watch(TEXT, change=change, **SETTINGS)
    path = run.save(tmp_path / "run.json")
    assert model.replay(path).identical
    told = json.loads(path.read_text("utf-8"))
    told["changes"] = {}
    assert not model.replay(told).identical


def test_a_function_changes_what_is_written_as_a_change_does() -> None:
    model = both("qwen3").model

    def half(value: Any, where: Any) -> Any:
        return value * 0.5

    run = model.watch(TEXT, change={"blocks.0.mlp.update": half}, **SETTINGS)
    assert run.text == model.watch(TEXT, change={"blocks.0.mlp.update": Change(0.5)}, **SETTINGS).text


@pytest.mark.parametrize("field", ["temperature", "max_new_tokens", "seed"])
def test_a_replay_under_other_settings_differs(field: str, tmp_path: Path) -> None:
    model = both("qwen3").model
    run = model.watch(TEXT, **SETTINGS)
    told = json.loads(run.save(tmp_path / "run.json").read_text("utf-8"))
    told["settings"][field]["value"] = {"temperature": 9.0, "max_new_tokens": 3, "seed": 77}[field]
    told["seed"] = told["settings"]["seed"]["value"]
    replay = model.replay(told)
    assert not replay.identical
    assert replay.step is not None
    assert "not identical: at token" in fits(replay)
    assert repr(replay).startswith("Replay(differs from token")
    valid(replay)


def test_a_receipt_of_other_weights_is_refused(tmp_path: Path) -> None:
    model = both("qwen3").model
    path = model.watch(TEXT, **SETTINGS).save(tmp_path / "run.json")
    folder = shutil.copytree(model.opened.path, tmp_path / "other")
    (weights,) = folder.glob("*.safetensors")
    held = bytearray(weights.read_bytes())
    held[-1] ^= 1
    weights.write_bytes(held)
    with pytest.raises(InputError, match="other weights"):
        glassformer.load(folder).replay(path)


def test_a_replay_lists_other_versions_and_executors(tmp_path: Path) -> None:
    one, other = (both("qwen3", executor).model for executor in EXECUTORS)
    path = one.watch(TEXT, max_new_tokens=3, eos_token_id=None).save(tmp_path / "run.json")
    told = json.loads(path.read_text("utf-8"))
    told["versions"]["numpy"] = "0.1"
    replay = other.replay(told)
    assert any(line.startswith("numpy: 0.1 then, ") for line in replay.differences)
    assert "executor: plain then, cpu now" in replay.differences


def test_a_replay_notices_an_edited_receipt(tmp_path: Path) -> None:
    model = both("qwen3").model
    run = model.watch(TEXT, **SETTINGS)
    assert model.replay(run).identical
    told = run.receipt.to_dict()
    told["text"] = "something else"
    told["steps"][1]["draw"] = 0.5
    replay = model.replay(told)
    assert replay.identical
    assert replay.differences == (
        "its text is not what its tokens say: somebody changed it",
        "its draws are not those of its seed: somebody changed them",
    )


def test_damaged_receipts_are_refused(tmp_path: Path) -> None:
    model = both("gpt2").model
    good = json.loads(model.watch(TEXT, max_new_tokens=2).save(tmp_path / "good.json").read_text("utf-8"))

    def refused(what: Any, message: str) -> None:
        path = tmp_path / "bad.json"
        path.write_text(what if isinstance(what, str) else json.dumps(what))
        with pytest.raises(InputError, match=message) as error:
            model.replay(path)
        assert len(str(error.value)) < 500

    refused("{", "JSON")
    refused("[]", "no schema")
    refused({"schema": "glassformer.lens/1"}, "glassformer.lens/1")
    refused({"schema": SCHEMA}, "model")
    refused({**good, "executor": []}, "executor")
    refused({**good, "prompt_ids": ["x"]}, "prompt_ids\\[0\\]")
    refused({**good, "steps": [{**good["steps"][0], "id": "x"}]}, "steps\\[0\\].id")
    refused({**good, "steps": [3]}, "steps\\[0\\]")
    refused({**good, "steps": []}, "holds no tokens")
    refused({**good, "seed": "x"}, "seed")
    refused({**good, "versions": {"numpy": 3}}, "versions.numpy")
    refused({**good, "negative_ids": [0.5]}, "negative_ids")
    refused({**good, "finish": "nonsense"}, "'nonsense'")
    refused("[" * 100_000, "is not JSON")
    refused("1" * 10_000, "is not JSON")
    refused(json.dumps(good)[:-40], "is not JSON")
    refused({**good, "changes": {"blocks.0.residual": {"scale": "x"}}}, "blocks.0.residual")
    damaged = "blocks.0.residual is damaged: "
    entries: list[tuple[Any, str]] = [
        (5, "5 is none"), ("x", "'x' is none"), (None, "None is none"), ([], r"\[\] is none"),
        ({"sequence": [3]}, ".* is none"), ({"sequence": 3}, ""), ({"positions": {"cut": [0]}}, ""),
        ({"heads": {"slice": 3}}, ""), ({"positions": {"slice": ["x"]}}, ""), ({"x" * 10_000: 1}, "there is no xxx"),
    ]  # fmt: skip
    for entry, words in entries:
        refused({**good, "changes": {"blocks.0.residual": entry}}, damaged + words)
    refused({**good, "settings": {"top_k": 5}}, "settings.top_k")
    refused({**good, "settings": {"stop_when": {"value": "<function f>", "origin": ""}}}, "stop_when")
    with pytest.raises(UnknownArgument, match="'no_such_setting'"):
        model.replay({**good, "settings": {"no_such_setting": {"value": 1, "origin": ""}}})
    with pytest.raises(InputError, match="outside the vocabulary"):
        model.replay({**good, "prompt_ids": [10**9]})


def test_a_receipt_itself_is_replayed() -> None:
    model = both("gpt2").model
    run = model.watch(TEXT, max_new_tokens=2)
    assert model.replay(run.receipt).identical
    assert model.replay(run).identical


def test_a_run_saved_as_a_page(tmp_path: Path) -> None:
    run = both("gpt2").model.watch("<script>alert(1)</script>", max_new_tokens=4, eos_token_id=None)
    page = run.save(tmp_path / "run.html").read_text("utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    for words in ("the trace", "why each token", "the lens", "logit attribution", "all heads", "the journey", "the receipt"):
        assert words in page
    assert page.count('href="#token-') == page.count('<a id="token-') == 4
    assert page.count("<img ") == 3 * run.heads().heads
    assert "http" not in page.replace("http-equiv", "")
    text = run.save(tmp_path / "run.txt").read_text("utf-8")
    assert "the receipt" in text
    assert run._repr_html_().startswith('<div class="glass">')


def test_an_encoder_decoder_as_a_page(tmp_path: Path) -> None:
    run = both("t5").model.watch(TEXT, max_new_tokens=3, eos_token_id=None)
    assert "the lens" in run.save(tmp_path / "run.html").read_text("utf-8")


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_run_that_was_broken_off_is_replayed_up_to_there(executor: str, tmp_path: Path) -> None:
    model = both("qwen3", executor).model
    settings = {**SETTINGS, "max_new_tokens": 30}
    cancelled = model.start(TEXT, **settings)
    for _ in model.generate(cancelled, look=1):
        if len(cancelled.steps) >= 4:
            cancelled.cancel()
    interrupted = model.start(TEXT, **settings)
    for _ in model.generate(interrupted, look=1):
        if len(interrupted.steps) >= 3:
            break
    timed = model.watch(TEXT, **settings, max_time=1e-9)
    assert [run.finish and run.finish.value for run in (cancelled, interrupted, timed)] == ["cancelled", None, "time"]
    for run in (cancelled, interrupted, timed):
        replay = model.replay(run.save(tmp_path / "run.json"))
        assert replay.identical
        assert replay.differences == ()
        assert replay.text.startswith(run.text)


def test_beams_out_of_time_are_replayed(tmp_path: Path) -> None:
    model = both("qwen3").model
    run = model.watch(TEXT, num_beams=2, max_new_tokens=30, max_time=1e-9, eos_token_id=None)
    assert run.finish is not None
    assert run.finish.value == "time"
    assert model.replay(run.save(tmp_path / "run.json")).identical


@pytest.mark.parametrize("token", [-1, 10**30])
def test_ids_outside_the_vocabulary_are_refused(token: int) -> None:
    model = both("llama").model
    data = model.watch("the cat", raw=True, max_new_tokens=2).receipt.to_dict()
    data["prompt_ids"] = [token, *data["prompt_ids"]]
    with pytest.raises(InputError, match=f"token id {token}"):
        model.replay(data)


@pytest.mark.parametrize("notes", [[["dotprod"]], 7, {"a": 1}, "dotprod"])
def test_notes_of_the_wrong_type_are_a_difference(notes: Any) -> None:
    model = both("llama").model
    data = model.watch("the cat", raw=True, max_new_tokens=2).receipt.to_dict()
    data["executor"]["notes"] = notes
    assert any(difference.startswith("notes: ") for difference in model.replay(data).differences)
