"""What a training tells of itself while it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias


@dataclass(frozen=True)
class StepDone:
    step: int  # counted from 1
    loss: float  # the mean over the step's targets, in nats
    learning_rate: float
    gradient_norm: float  # before it was clipped
    tokens: int  # that were read
    seconds: float
    epoch: float

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "step", **vars(self)}


@dataclass(frozen=True)
class Evaluated:
    """The model on the held-out examples, after so many steps."""

    step: int
    loss: float
    seconds: float
    measures: Mapping[str, float] = field(default_factory=dict)
    examples: int = 0  # that they were measured on: rows, or windows of a text

    def to_dict(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("step", "loss", "seconds", "examples")}
        return {"kind": "evaluation", **own, **self.measures}


@dataclass(frozen=True)
class Sampled:
    """What the model writes, after so many steps."""

    step: int
    text: str

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "sample", **vars(self)}


@dataclass(frozen=True)
class Saved:
    step: int
    path: Path

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "checkpoint", "step": self.step, "path": self.path.name}


@dataclass(frozen=True)
class SnapshotKept:
    """The model as it is after so many steps, in a folder of its own."""

    step: int
    path: Path

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "snapshot", "step": self.step, "path": self.path.name}


Event: TypeAlias = StepDone | Evaluated | Sampled | Saved | SnapshotKept
