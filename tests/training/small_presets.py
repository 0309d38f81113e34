"""The preset of trainings that take a second."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from glassformer.training import presets
from glassformer.training.events import Evaluated, Event, StepDone


@pytest.fixture
def small_preset(monkeypatch: pytest.MonkeyPatch) -> presets.Preset:
    """The preset "tiny", with a model that is smaller still."""
    tiny = presets.PRESETS["tiny"]
    settings = replace(tiny.settings, steps=60, batch_size=8, learning_rate=5e-3, evaluate_every=60, save_every=60)
    small = replace(tiny, hidden_size=32, layers=1, heads=2, length=24, vocabulary=330, settings=settings)
    monkeypatch.setitem(presets.PRESETS, "tiny", small)  # type: ignore[arg-type]
    return small


def losses(events: list[Event]) -> list[float]:
    return [event.loss for event in events if isinstance(event, StepDone)]


def last_evaluation(events: list[Event]) -> Any:
    return [event for event in events if isinstance(event, Evaluated)][-1]
