"""What a training reports, as TensorBoard reads it, where that is installed; metrics.jsonl has the same and more."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from glassformer.training.events import Evaluated, Event, Sampled, StepDone

FOLDER = "tensorboard"


class EventFiles:
    """Writes a training's events into a folder; nothing where TensorBoard is not installed."""

    def __init__(self, folder: Path, first_step: int) -> None:
        """`first_step`: what an earlier run has written of this step and later ones is not shown."""
        self._writer: Any = None
        if find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder / FOLDER), purge_step=first_step)

    def add(self, event: Event) -> None:
        if self._writer is None:
            return
        for name, value in scalars(event).items():
            self._writer.add_scalar(name, value, event.step)
        if isinstance(event, Sampled):
            self._writer.add_text("sample", event.text, event.step)
        if not isinstance(event, StepDone):  # whoever looks on sees what was evaluated at once
            self._writer.flush()


def scalars(event: Event) -> dict[str, float]:
    """An event's numbers, by the names that TensorBoard groups them by.

    >>> scalars(Evaluated(3, 0.5, 1.0, {"perplexity": 1.6}))
    {'held_out/loss': 0.5, 'held_out/perplexity': 1.6}
    """
    if isinstance(event, StepDone):
        return {
            "train/loss": event.loss, "train/learning_rate": event.learning_rate,
            "train/gradient_norm": event.gradient_norm, "train/tokens_per_second": event.tokens / max(event.seconds, 1e-9),
        }  # fmt: skip
    if isinstance(event, Evaluated):
        return {f"held_out/{name}": value for name, value in {"loss": event.loss, **event.measures}.items()}
    return {}
