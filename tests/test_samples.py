"""Files that were written on 18 November 2026, before models and ops were stated once: all of them still open.

`samples/` has a tiny Llama that was trained to count, and what was made with it. They are never written anew.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import glassformer
from glassformer.features.files import read_dictionary
from glassformer.jobs import run_job
from glassformer.see.lens import load_tuned_lens
from glassformer.see.probes import load_probes
from glassformer.see.recording import Recording
from glassformer.see.schema import schema
from glassformer.training.events import StepDone
from glassformer.training.presets import PRESETS
from glassformer.training.requests import read_request
from glassformer.training.sharding import Ranks
from glassformer.training.training_folder import TrainingFolder

SAMPLES = Path(__file__).with_name("samples")


@cache
def model() -> Any:
    return glassformer.load(SAMPLES / "model")


@pytest.mark.parametrize("name", ["run.json", "changed-run.json"])
def test_a_receipt_is_replayed(name: str) -> None:
    assert model().replay(SAMPLES / name).identical


def test_a_recording_has_the_schema_of_today() -> None:
    jsonschema.validate(json.loads((SAMPLES / "recording.json").read_text("utf-8")), schema(Recording))


def test_recorded_activations_are_read() -> None:
    recorded = glassformer.RecordedActivations(SAMPLES / "activations")
    assert (len(recorded), recorded.tokens, recorded.sites) == (4, 21, ("blocks.0.residual", "blocks.1.residual"))
    now = model().read("one two three", raw=True).values("blocks.1.residual")["blocks.1.residual"]
    assert recorded[0].values("blocks.1.residual") == pytest.approx(now, abs=1e-3)


def test_a_steering_vector_probes_a_lens_and_features_are_read() -> None:
    assert model().steered({str(SAMPLES / "low.safetensors"): 2.0}).changes.keys() == {"blocks.0.residual"}
    assert load_probes(model(), SAMPLES / "probes.safetensors").probes.keys() == {"blocks.1.residual"}
    tuned = load_tuned_lens(SAMPLES / "lens.safetensors", model())
    assert model().read("one two", raw=True).lens(tuned=tuned).layers
    assert len(read_dictionary(SAMPLES / "features").encoder_bias) == 8


def test_a_job_is_resumed(tmp_path: Path) -> None:
    for name in ("rows.jsonl", "answers.jsonl.ledger"):
        shutil.copy(SAMPLES / name, tmp_path / name)
    job = run_job(model(), tmp_path / "rows.jsonl", tmp_path / "answers.jsonl", raw=True, max_new_tokens=4)
    assert (job.rows, job.resumed) == (4, 2)
    texts = [json.loads(line)["text"] for line in (tmp_path / "answers.jsonl").read_text("utf-8").splitlines()]
    assert texts[1:3] == [" seven ei", " nine ten\none"]


def test_a_training_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("training", "words.txt"):
        path = SAMPLES / name
        (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    small = replace(PRESETS["tiny"], hidden_size=16, layers=2, heads=2, length=16, vocabulary=280)
    monkeypatch.setitem(PRESETS, "tiny", small)  # type: ignore[arg-type]
    folder = TrainingFolder(tmp_path / "training")
    training = read_request(folder.read_about()).prepare(folder, Ranks(), resume=True)
    assert [event.step for event in training.trainer.run() if isinstance(event, StepDone)] == list(range(11, 31))
