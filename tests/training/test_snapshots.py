"""Snapshots: which steps, whole folders that load, and the same ones after an interruption."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer as glass
from glassformer import AutoModelForCausalLM
from glassformer.checkpoint.training_layout import SNAPSHOTS, step_folders
from glassformer.cli.train import TrainingGroup
from glassformer.ground.errors import SettingError, WriteError
from glassformer.training import trained_model as module
from glassformer.training.events import SnapshotKept, StepDone
from glassformer.training.settings import TrainingSettings
from glassformer.training.sharding import Ranks
from glassformer.training.text_training import TextTraining
from glassformer.training.trained_model import Snapshots, snapshot_steps
from glassformer.training.trainer import Trainer
from glassformer.training.training_folder import TrainingFolder
from tests.training.models import tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = (0, 1, 2, 4, 6, 8)


def training(folder: Path, resume: bool = False, **settings: Any) -> Trainer:
    text = folder.parent / "words.txt"
    text.write_text("one two three four five six seven eight nine ten\n" * 60)
    request = TextTraining(
        text=str(text), vocabulary=280, length=16, architecture="llama",
        settings={"steps": 8, "batch_size": 4, "evaluate_every": 2, "save_every": 4, "snapshots": 6, **settings},
    )  # fmt: skip
    return request.prepare(TrainingFolder(folder), Ranks(), resume).trainer


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7, 16, 1000])
@pytest.mark.parametrize(("steps", "evaluate_every"), [(1, 1), (2, 5), (900, 150), (20_000, 500), (5000, 1)])
@pytest.mark.every_combination
def test_at_most_so_many_the_untrained_and_the_last_among_them(steps: int, evaluate_every: int, count: int) -> None:
    kept = snapshot_steps(steps, evaluate_every, count)
    assert len(kept) <= count
    assert list(kept) == sorted(set(kept))
    assert set(kept) <= set(range(steps + 1))
    assert count == 0 or kept[-1] == steps
    assert count < 2 or kept[0] == 0


def test_unless_their_number_is_given_they_take_up_a_bounded_space(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = TrainingSettings(steps=900, evaluate_every=10)
    model = tiny_model()
    kept = Snapshots(tmp_path, None, settings)  # type: ignore[arg-type]
    assert len(kept.steps(model)) == 16
    monkeypatch.setattr(module, "DEFAULT_BYTES", 5 * 2 * sum(value.numel() for value in model.parameters()))
    assert len(kept.steps(model)) == 5
    assert len(replace(kept, settings=replace(settings, snapshots=9)).steps(model)) == 9
    with pytest.raises(SettingError, match="snapshots"):
        replace(settings, snapshots=-1)


def test_each_loads_as_a_model_with_the_weights_of_its_step(tmp_path: Path) -> None:
    trainer = training(tmp_path / "run")
    weights: dict[int, dict[str, torch.Tensor]] = {}
    told = []
    for event in trainer.run():
        if isinstance(event, SnapshotKept):
            told.append(event.step)
            weights[event.step] = {name: value.half().float() for name, value in trainer.model.state_dict().items()}
    folders = step_folders(tmp_path / "run" / SNAPSHOTS)
    assert tuple(folders) == tuple(told) == STEPS
    for step, folder in folders.items():
        loaded = AutoModelForCausalLM.from_pretrained(folder).state_dict()
        assert all(torch.equal(loaded[name], value) for name, value in weights[step].items() if name in loaded)
        assert not list(folder.glob(".*"))
    assert glass.load(folders[8]).watch("one two", raw=True, max_new_tokens=2).text
    lines = [line for line in TrainingFolder(tmp_path / "run").metrics() if line["kind"] == "snapshot"]
    assert [(line["step"], line["path"]) for line in lines] == [(step, f"step-{step:08}") for step in STEPS]


def test_a_stopped_training_keeps_the_same_ones_as_an_unbroken_one(tmp_path: Path) -> None:
    for _ in training(tmp_path / "whole").run():
        pass
    for event in training(tmp_path / "broken").run():
        if isinstance(event, StepDone) and event.step == 7:
            break  # after the snapshot of step 6, and the checkpoint of step 4
    with (tmp_path / "broken" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "st')  # cut off
    for _ in training(tmp_path / "broken", resume=True).run():
        pass
    whole, broken = (step_folders(tmp_path / name / SNAPSHOTS) for name in ("whole", "broken"))
    assert tuple(whole) == tuple(broken) == STEPS
    for step in STEPS:
        names = {"model.safetensors", "tokenizer.json"}
        assert all((whole[step] / name).read_bytes() == (broken[step] / name).read_bytes() for name in names)
    told = [line["step"] for line in TrainingFolder(tmp_path / "broken").metrics() if line["kind"] == "snapshot"]
    assert told == list(STEPS)
    assert all(json.loads(line) for line in (tmp_path / "broken" / "metrics.jsonl").read_text().splitlines())


def test_a_weight_too_large_for_float16_stays_as_it_is(tmp_path: Path) -> None:
    trainer = training(tmp_path / "run")
    with torch.no_grad():
        trainer.model.model.norm.weight[0] = 1e6
    assert trainer.snapshots is not None
    loaded = AutoModelForCausalLM.from_pretrained(trainer.snapshots.keep(0, trainer.model))
    assert loaded.model.norm.weight[0].item() == 1e6


def test_where_it_cannot_be_written_the_error_says_so(tmp_path: Path) -> None:
    trainer = training(tmp_path / "run")
    (tmp_path / "run" / SNAPSHOTS).write_text("a file in its place")
    with pytest.raises(WriteError, match="step-00000000 cannot be written"):
        next(iter(trainer.run()))


def test_an_option_that_is_0_is_said() -> None:
    assert TrainingGroup(snapshots=0, seed=0, warmup_steps=0).changes() == {"snapshots": 0, "seed": 0, "warmup_steps": 0}
