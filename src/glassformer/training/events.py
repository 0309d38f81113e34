"""What a training tells of itself while it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, TypeAlias


@dataclass(frozen=True)
class TrainingEvent:
    KIND: ClassVar[str]

    step: int  # how many are done

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.KIND, **vars(self)}


@dataclass(frozen=True)
class StepDone(TrainingEvent):
    KIND: ClassVar[str] = "step"

    loss: float  # the mean over the step's targets, in nats
    learning_rate: float
    gradient_norm: float  # before it was clipped
    tokens: int  # that were read
    seconds: float
    epoch: float


@dataclass(frozen=True)
class Evaluated(TrainingEvent):
    """The model on the held-out examples."""

    KIND: ClassVar[str] = "evaluation"

    loss: float
    seconds: float
    measures: Mapping[str, float] = field(default_factory=dict)
    examples: int = 0  # that they were measured on: rows, or windows of a text

    def to_dict(self) -> dict[str, Any]:
        line = super().to_dict()
        del line["measures"]
        return line | dict(self.measures)


@dataclass(frozen=True)
class Sampled(TrainingEvent):
    """What the model writes."""

    KIND: ClassVar[str] = "sample"

    text: str


@dataclass(frozen=True)
class FolderWritten(TrainingEvent):
    path: Path

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"path": self.path.name}


@dataclass(frozen=True)
class Saved(FolderWritten):
    KIND: ClassVar[str] = "checkpoint"


@dataclass(frozen=True)
class SnapshotKept(FolderWritten):
    """The model as it is, as a folder that every command opens."""

    KIND: ClassVar[str] = "snapshot"


Event: TypeAlias = StepDone | Evaluated | Sampled | Saved | SnapshotKept
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
