"""TensorBoard's files: the same numbers as metrics.jsonl, and only where it is installed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from glassformer.training import events
from glassformer.training.events import Evaluated, EventFiles, Sampled, Saved, StepDone, scalars
from glassformer.training.trainer import Trainer
from glassformer.training.training_folder import TrainingFolder
from tests.conftest import unavailable
from tests.training.models import SETTINGS, language_model, tiny_model

pytestmark = [pytest.mark.clients, pytest.mark.usefixtures("one_thread")]


def test_events_are_grouped_numbers() -> None:
    step = StepDone(3, 2.5, 1e-3, 0.7, 100, 0.5, 0.1)
    assert scalars(step) == {
        "train/loss": 2.5, "train/learning_rate": 1e-3, "train/gradient_norm": 0.7, "train/tokens_per_second": 200.0,
    }  # fmt: skip
    assert scalars(Evaluated(3, 0.5, 1.0, {"perplexity": 1.6})) == {"held_out/loss": 0.5, "held_out/perplexity": 1.6}
    assert scalars(Saved(3, Path("x"))) == scalars(Sampled(3, "text")) == {}


def test_nothing_is_written_without_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "find_spec", lambda name: None)
    EventFiles(tmp_path, 1).add(Sampled(1, "text"))
    assert not list(tmp_path.iterdir())


def test_tensorboard_reads_what_was_reported(tmp_path: Path) -> None:
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        unavailable("event files are read by tensorboard, which is not installed")
    folder = TrainingFolder(tmp_path)
    trainer = Trainer(tiny_model(), language_model(), replace(SETTINGS, steps=3), folder, sample=lambda model: "some words")
    events = list(trainer.run())
    read = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    losses = [(event.step, event.loss) for event in events if isinstance(event, StepDone)]
    shown = [(event.step, event.value) for event in read.Scalars("train/loss")]
    assert [step for step, _ in shown] == [step for step, _ in losses]
    assert [loss for _, loss in shown] == pytest.approx([loss for _, loss in losses])
    (evaluated,) = (event for event in events if isinstance(event, Evaluated))
    assert read.Scalars("held_out/perplexity")[0].value == pytest.approx(evaluated.measures["perplexity"])
    assert b"some words" in read.Tensors("sample/text_summary")[0].tensor_proto.string_val[0]
