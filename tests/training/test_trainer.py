"""The loop: the same weights however a step is cut, and after whatever interruption."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.ground.errors import CheckpointError, NotNumbers, SettingError, TrainingDiverged, WriteError
from glassformer.training.events import Evaluated, Saved, StepDone
from glassformer.training.objectives.objective import ExampleOrder
from glassformer.training.settings import TrainingSettings
from glassformer.training.trainer import Trainer
from glassformer.training.training_folder import TrainingFolder
from tests.training.models import SETTINGS, language_model, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")


def trained(settings: TrainingSettings = SETTINGS, folder: Path | None = None, **model: Any) -> tuple[Trainer, list[Any]]:
    trainer = Trainer(tiny_model(**model), language_model(), settings, None if folder is None else TrainingFolder(folder))
    return trainer, list(trainer.run())


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in trainer.model.named_parameters()}


def same(first: Trainer, second: Trainer) -> bool:
    mine, yours = weights(first), weights(second)
    return mine.keys() == yours.keys() and all(torch.equal(mine[name], yours[name]) for name in mine)


def test_an_epoch_has_every_example_once_and_depends_on_the_step_alone() -> None:
    order = ExampleOrder(10, 4, seed=3)
    seen = [number for step in range(5) for number in order.rows(step).tolist()]
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert seen[:10] != seen[10:]
    assert ExampleOrder(10, 4, seed=3).rows(3).tolist() == order.rows(3).tolist()
    assert ExampleOrder(10, 4, seed=4).rows(0).tolist() != order.rows(0).tolist()
    assert order.epoch(5) == 2.0


def test_the_learning_rate_rises_and_falls() -> None:
    settings = replace(SETTINGS, steps=100, learning_rate=1.0, warmup_steps=10, final_learning_rate=0.2)
    rates = [settings.learning_rate_at(step) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert rates[10] == pytest.approx(1.0)
    assert rates[-1] == pytest.approx(0.2)
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_a_model_learns_and_says_how_well() -> None:
    trainer, events = trained(replace(SETTINGS, steps=60, evaluate_every=20))
    steps = [event for event in events if isinstance(event, StepDone)]
    evaluations = [event for event in events if isinstance(event, Evaluated)]
    assert [event.step for event in steps] == list(range(1, 61))
    assert [event.step for event in evaluations] == [20, 40, 60]
    assert steps[0].loss == pytest.approx(3.69, abs=0.2)  # the logarithm of the vocabulary
    assert evaluations[-1].loss < steps[0].loss - 0.5
    predicted = trainer.objective.held_out_data[1:]  # nothing stands before the first
    size = sum(int(number) % 7 + 1 for number in predicted)
    bits = evaluations[-1].loss * len(predicted) / math.log(2)
    assert evaluations[-1].measures["bits_per_byte"] == pytest.approx(bits / size)
    assert trainer.model.training is False


@pytest.mark.parametrize("micro", [1, 4])
def test_parts_of_a_batch_give_the_same_curve(micro: int) -> None:
    (_, whole), (_, parts) = trained(), trained(replace(SETTINGS, micro_batch_size=micro))
    losses = [[event.loss for event in events if isinstance(event, StepDone | Evaluated)] for events in (whole, parts)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("model", [{}, {"model_type": "gpt2"}, {"model_type": "scratch", "dropout": 0.3}], ids=str)
def test_a_resumed_training_ends_with_the_same_weights(model: dict[str, Any], tmp_path: Path) -> None:
    """The second one is taken up after each checkpoint by a new trainer with other weights."""
    unbroken, events = trained(folder=tmp_path / "unbroken", **model)
    folder = TrainingFolder(tmp_path / "broken")
    for stop in (2, 5, 6):
        trainer = Trainer(tiny_model(**model), language_model(), SETTINGS, folder)
        if folder.checkpoints:
            with torch.no_grad():
                next(trainer.model.parameters()).add_(0.1)
        assert trainer.resume() == bool(folder.checkpoints)
        for event in trainer.run():
            if isinstance(event, StepDone) and event.step == stop != 6:
                break  # killed before the checkpoint that may be due
    assert same(trainer, unbroken)
    kept = [{k: v for k, v in line.items() if k not in ("seconds", "time")} for line in folder.metrics()]
    told = [{k: v for k, v in event.to_dict().items() if k not in ("seconds",)} for event in events]
    assert kept == json.loads(json.dumps(told))


def test_a_training_that_is_asked_to_stop_saves_first(tmp_path: Path) -> None:
    folder = TrainingFolder(tmp_path)
    trainer = Trainer(tiny_model(), language_model(), SETTINGS, folder)
    events = []
    for event in trainer.run():
        events.append(event)
        trainer.stopping = True
    assert [type(event) for event in events] == [StepDone, Saved]
    assert list(folder.checkpoints) == [1]
    assert trainer.step == 1


def test_only_the_last_checkpoints_are_kept(tmp_path: Path) -> None:
    trained(folder=tmp_path)
    assert list(TrainingFolder(tmp_path).checkpoints) == [4, 6]


def test_checkpoints_are_written_by_the_clock_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("glassformer.training.trainer.time.monotonic", lambda: now[0])
    settings = replace(SETTINGS, save_every=100, save_minutes=5)
    trainer = Trainer(tiny_model(), language_model(), settings, TrainingFolder(tmp_path))
    saved = []
    for event in trainer.run():
        now[0] += 130.0 * isinstance(event, StepDone)  # after three steps the last checkpoint is five minutes ago
        saved += [event.step] if isinstance(event, Saved) else []
    assert saved == [3, 6]


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_named_and_not_taken_up(name: str, tmp_path: Path) -> None:
    folder = TrainingFolder(tmp_path)
    trained(folder=tmp_path)
    path = folder.checkpoints[6] / name
    whole = path.read_bytes()
    places = range(0, len(whole), max(1, len(whole) // 40))
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 4
        path.write_bytes(damaged)
        if name == "state.json" and json.loads(whole) == _json_or_none(damaged):
            continue  # white space
        with pytest.raises(
            CheckpointError, match=rf"step-00000006/{name}: .*Remove .*6, and --resume goes on from step 4\."
        ):
            Trainer(tiny_model(), language_model(), SETTINGS, folder).resume()
    path.unlink()
    if name != "optimizer.safetensors":  # without it, it is none to go on from
        with pytest.raises(CheckpointError, match=name):
            folder.latest()
    shutil.rmtree(folder.checkpoints[6])
    again = Trainer(tiny_model(), language_model(), SETTINGS, folder)
    assert again.resume()
    assert again.step == 4
    (folder.checkpoints[4] / "weights.safetensors").write_bytes(b"")
    with pytest.raises(
        CheckpointError, match=r"step-00000004/weights.safetensors: cannot be read .* Begin the training anew"
    ):
        folder.latest()


def _json_or_none(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


def test_a_checkpoint_without_checksums_is_an_older_one(tmp_path: Path) -> None:
    folder = TrainingFolder(tmp_path)
    unbroken, _ = trained(folder=tmp_path)
    shutil.rmtree(folder.checkpoints[6])
    (folder.checkpoints[4] / "state.json").write_text('{"step": 4, "epoch": 0.5}')
    again = Trainer(tiny_model(), language_model(), SETTINGS, folder)
    assert again.resume()
    list(again.run())
    assert same(again, unbroken)


def test_a_training_file_that_was_changed_is_refused(tmp_path: Path) -> None:
    folder = TrainingFolder(tmp_path)
    folder.begin({"request": {"learning_rate": 0.0002}, "data": ("x", 1)})
    assert folder.read_about() == {"request": {"learning_rate": 0.0002}, "data": ["x", 1]}
    text = (tmp_path / "training.json").read_text()
    (tmp_path / "training.json").write_text(text.replace("0.0002", "0.0006"))
    with pytest.raises(CheckpointError, match="training.json"):
        folder.read_about()
    (tmp_path / "training.json").write_text('{"request": {}}')  # of an older version
    assert folder.read_about() == {"request": {}}


def test_a_training_that_diverges_is_stopped_and_keeps_what_was_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = TrainingFolder(tmp_path)
    settings = replace(SETTINGS, steps=40, save_every=2, learning_rate=0.25)
    trainer = Trainer(tiny_model(), language_model(), settings, folder)
    rise = trainer.objective.loss

    def worse(model: Any, batch: Any) -> torch.Tensor:
        return rise(model, batch) * (1 if trainer.step < 5 else 700)

    monkeypatch.setattr(trainer.objective, "loss", worse)
    events = []
    message = r"^step 15: the loss is 2,\d{3}\.\d, and was 3\.\d\d at the start: the training has diverged\. The last good "
    with pytest.raises(TrainingDiverged, match=message + r"checkpoint is that of step 4\. Begin anew with a lower .* 0\.25"):
        events.extend(trainer.run())
    assert list(folder.checkpoints) == [2, 4]


def test_a_bad_batch_is_no_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(tiny_model(), language_model(), replace(SETTINGS, steps=40, learning_rate=0.0))
    usual = trainer.objective.loss
    monkeypatch.setattr(trainer.objective, "loss", lambda *args: usual(*args) * (3 if trainer.step % 10 == 7 else 1))
    assert len([event for event in trainer.run() if isinstance(event, StepDone)]) == 40


def test_numbers_that_are_none_are_traced_to_their_site() -> None:
    model = tiny_model()
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = torch.nan
    trainer = Trainer(model, language_model(), SETTINGS)
    before = {name: value.clone() for name, value in model.named_parameters()}
    with pytest.raises(NotNumbers, match="blocks.1.mlp.update"):
        trainer.train_step()
    assert torch.equal(before["model.norm.weight"], model.model.norm.weight)


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with TrainingFolder(tmp_path).locked(), pytest.raises(WriteError, match="another training writes there"):  # noqa: SIM117
        with TrainingFolder(tmp_path).locked():
            pass


def test_another_model_or_other_settings_do_not_go_on(tmp_path: Path) -> None:
    folder = TrainingFolder(tmp_path)
    with pytest.raises(SettingError, match="no training"):
        folder.read_about()
    folder.begin({"request": {"text": "a", "steps": 3}, "data": "x"})
    with pytest.raises(SettingError, match="holds a training already"):
        folder.begin({})
    folder.check_same({"request": {"text": "a", "steps": 3}, "data": "x"})
    with pytest.raises(SettingError, match="steps 3"):
        folder.check_same({"request": {"text": "a", "steps": 4}, "data": "x"})
    with pytest.raises(SettingError, match="data 'x'"):
        folder.check_same({"request": {"text": "a", "steps": 3}, "data": "y"})
    trained(folder=tmp_path)
    other = Trainer(tiny_model(hidden_size=32), language_model(), SETTINGS, folder)
    with pytest.raises(CheckpointError, match="its checkpoints are of another model"):
        other.resume()
    (folder.checkpoints[6] / "weights.safetensors").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match=r"step-00000006.weights.safetensors: cannot be read .*Remove "):
        Trainer(tiny_model(), language_model(), SETTINGS, folder).resume()
    (tmp_path / "training.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        folder.read_about()


@pytest.mark.parametrize("fast", [False, True])
def test_a_processor_without_bfloat16_is_named(
    fast: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("glassformer.training.trainer.has_fast_matmul", lambda dtype: fast)
    Trainer(tiny_model(), language_model(), replace(SETTINGS, precision="bfloat16"))
    assert ("this CPU has no products of bfloat16" in caplog.text) != fast
