"""Snapshots: the model as it was after a few of its steps, to see how it learned.

    snapshots/step-00000064/   config.json, model.safetensors (float16), the tokenizer: a model that every command opens

Much happens in the first steps and little in the last, so half of them are spaced by a factor, from the untrained model on;
the others are those of evaluations, whose losses are known. Which steps follows from the settings alone, so a training that
was stopped keeps those of an unbroken one. Rounding to float16 halves the size, and changes a loss in its fourth
digit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glassformer.checkpoint.training_layout import SNAPSHOTS
from glassformer.text import Tokenizer
from glassformer.training.settings import TrainingSettings
from glassformer.training.trained_model import ModelWriter
from glassformer.training.training_folder import write_step

DEFAULT_COUNT = 16
FEW, STEPS_EACH = 4, 4  # of a short training: models at least, or steps for each
DEFAULT_BYTES = 2_000_000_000  # of all, unless their count is given


def snapshot_steps(steps: int, evaluate_every: int, count: int) -> tuple[int, ...]:
    """After which steps of a training the model is kept: at most `count`, the first and the last among them.

    >>> snapshot_steps(900, 150, 12)
    (0, 1, 4, 15, 59, 150, 300, 450, 600, 750, 900)
    >>> snapshot_steps(900, 150, 2), snapshot_steps(900, 150, 1), snapshot_steps(900, 150, 0)
    ((0, 900), (900,), ())
    """
    if count < 2:
        return (steps,)[:count]
    kept = {0, steps}
    factors = count // 2 - 1
    kept |= {_near(round(steps ** (index / factors)), evaluate_every) for index in range(factors)}
    kept = {min(step, steps) for step in kept}
    evaluations = [step for step in range(evaluate_every, steps, evaluate_every) if step not in kept]
    return tuple(sorted(kept | set(_spread(evaluations, count - len(kept)))))


def _near(step: int, evaluate_every: int) -> int:
    """The evaluation that is nearest to a step, if one comes before it."""
    return step if step < evaluate_every else evaluate_every * round(step / evaluate_every)


def _spread(items: list[int], count: int) -> list[int]:
    """At most `count` of a list, evenly.

    >>> _spread([1, 2, 3, 4, 5, 6], 2)
    [2, 5]
    """
    count = min(count, len(items))
    return [items[(2 * index + 1) * len(items) // (2 * count)] for index in range(count)]


@dataclass(frozen=True)
class Snapshots:
    """Which snapshots a training keeps, and where."""

    path: Path  # of the training's folder
    tokenizer: Tokenizer
    settings: TrainingSettings
    writer: ModelWriter = field(default_factory=ModelWriter)

    def steps(self, model: Any) -> frozenset[int]:
        """After which steps this model is kept. Unless their count is given, they take up a bounded space."""
        count = self.settings.snapshots
        if count is None:
            size = 2 * sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
            wanted = min(DEFAULT_COUNT, max(FEW, self.settings.steps // STEPS_EACH))
            count = max(2, min(wanted, DEFAULT_BYTES // max(1, size)))
        return frozenset(snapshot_steps(self.settings.steps, self.settings.evaluate_every, count))

    def keep(self, step: int, model: Any) -> Path:
        """Write the model as it is; one that is there already was written before the training was stopped."""
        return write_step(
            self.path / SNAPSHOTS, step, lambda folder: self.writer.write_snapshot(folder, model, self.tokenizer)
        )
