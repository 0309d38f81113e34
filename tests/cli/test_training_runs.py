"""`glass train` from its first line to its last: what it says before, how it is stopped, and with which threads."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from glassformer.cli import training_display
from glassformer.cli.app import app
from glassformer.cli.train import stopped_by_signals
from glassformer.ground.errors import TrainingDiverged
from glassformer.training import threads
from glassformer.training.events import Evaluated, StepDone
from glassformer.training.sharding import Ranks
from glassformer.training.trainer import Trainer
from glassformer.training.training_folder import TrainingFolder
from tests.training.chat_models import CHATS, write_chat_model, write_rows
from tests.training.models import SETTINGS, language_model, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")


def train(*words: object) -> Result:
    return CliRunner().invoke(app, ["train", *map(str, words)])


@pytest.fixture
def chats(tmp_path: Path) -> tuple[str, ...]:
    """The options of a short training of a LoRA."""
    write_chat_model(tmp_path / "base")
    data = write_rows(tmp_path / "chats.jsonl", CHATS[:20])
    return "--init", str(tmp_path / "base"), "--chat", data, "--lora", "2", "--lora-targets", "q_proj", "--snapshots", "0"


def stop_after(step: int, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send a signal to this process within a step."""
    usual = Trainer.train_step

    def train_step(trainer: Trainer) -> StepDone:
        done = usual(trainer)
        if done.step == step:
            signal.raise_signal(number)
        return done

    monkeypatch.setattr(Trainer, "train_step", train_step)


def adapter(folder: Path) -> bytes:
    return (folder / "adapter_model.safetensors").read_bytes()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_a_resume_says_from_which_step(
    number: int, code: int, chats: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = (*chats, "--steps", 6, "--batch-size", 4)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert train(*options, "--out", whole).exit_code == 0
    with monkeypatch.context() as patch:
        stop_after(3, number, patch)
        done = train(*options, "--out", broken)
    assert done.exit_code == code
    assert f"glass: stopped after step 3. Go on: glass train --out {broken} --resume" in done.stderr
    assert list(TrainingFolder(broken).checkpoints) == [3]
    again = train("--out", broken, "--resume")
    assert "glass: going on after step 3 of 6." in again.stderr
    assert "step 6 of 6 · loss " in again.stderr
    assert adapter(broken) == adapter(whole)


def test_a_second_signal_acts_at_once() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    trainer: Any = SimpleNamespace(stopping=False)
    with stopped_by_signals(trainer) as came:
        signal.raise_signal(signal.SIGTERM)
        assert trainer.stopping
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert came == [signal.SIGTERM]


def test_what_lies_ahead_and_the_last_loss_are_said(chats: tuple[str, ...], tmp_path: Path) -> None:
    """Few rows make many updates; one checkpoint, of the updates alone, is written."""
    out = tmp_path / "out"
    done = train(*chats, "--epochs", 6, "--held-out", 0, "--out", out)
    assert done.exit_code == 0, done.stderr
    assert "glass: 20 rows to learn from, 0 held out; 60 updates of 2 rows, 6.0 epochs." in done.stderr
    assert "step 60 of 60 · loss " in done.stderr  # though nothing was evaluated
    folders = TrainingFolder(out).checkpoints
    assert list(folders) == [60]
    trained = (folders[60] / "weights.safetensors").stat().st_size
    assert trained < (tmp_path / "base" / "model.safetensors").stat().st_size / 5


def test_a_training_that_diverges_ends_with_an_error(
    chats: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Trainer.train_step

    def train_step(trainer: Trainer) -> StepDone:
        done = usual(trainer)
        trainer.losses[-1] += 2600 * (trainer.step > 1)
        return done

    monkeypatch.setattr(Trainer, "train_step", train_step)
    done = train(*chats, "--steps", 8, "--out", tmp_path / "out")
    assert isinstance(done.exception, TrainingDiverged)
    assert done.exit_code == 1
    assert not (tmp_path / "out" / "adapter_config.json").exists()


def test_a_perplexity_of_hundreds_of_digits_is_short() -> None:
    display = training_display.TrainingDisplay(8, 0)
    display.add(Evaluated(1, 2608.0, 0.0, {"perplexity": 1e300}, 7))
    assert display.held_out() == ["held-out 2608.000", "1e+300 perplexity on 7 examples"]


# Threads --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "best"),
    [({8: 1.0, 4: 2.0, 2: 4.0, 1: 8.0}, 8), ({8: 10.0, 4: 3.0, 2: 1.2, 1: 1.0}, 1), ({8: 3.0, 4: 1.0, 2: 2.0, 1: 0.1}, 4)],
)  # the last: nobody looks further than a number that is hopeless
def test_the_fastest_number_of_threads_is_found(
    seconds: dict[int, float], best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, count = [0.0], [8]
    monkeypatch.setattr(torch, "set_num_threads", lambda number: count.__setitem__(0, number))

    def rehearse() -> None:
        now[0] += seconds[count[0]]

    assert threads.fastest_threads(rehearse, 8, lambda: now[0]) == best
    assert threads.fastest_threads(rehearse, 1, lambda: now[0]) == 1


def test_a_training_goes_on_with_the_threads_that_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    used: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    monkeypatch.setattr(threads, "fastest_threads", lambda *_: 3)
    for name in threads.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    folder = TrainingFolder(tmp_path)
    trainer = Trainer(tiny_model(), language_model(), SETTINGS, folder, Ranks())
    threads.use_threads(trainer)
    monkeypatch.setattr(threads, "fastest_threads", lambda *_: 5)
    threads.use_threads(trainer)
    assert used == [3, 3]
    threads.use_threads(trainer, 2)
    assert "the training was begun with 3 threads: with 2 its numbers can differ in their last digits." in caplog.text
    monkeypatch.setenv("GLASS_THREADS", "4")
    threads.use_threads(trainer)
    assert used == [3, 3, 2, 4]
    (tmp_path / "threads.json").write_text("damaged")
    threads.use_threads(trainer, 1)
    assert json.loads((tmp_path / "threads.json").read_text()) == {"threads": 1}


def test_a_rehearsed_step_changes_nothing() -> None:
    plain, rehearsed = (Trainer(tiny_model("scratch", dropout=0.2), language_model(), SETTINGS) for _ in range(2))
    rehearsed.rehearse(4)
    for trainer in (plain, rehearsed):
        list(trainer.run())
    mine, yours = plain.model.state_dict(), rehearsed.model.state_dict()
    assert all(torch.equal(value, yours[name]) for name, value in mine.items())
