"""How a training goes: how many steps, of which size, at which learning rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeAlias, get_args

from glassformer.ground.errors import SettingError, spell

Precision: TypeAlias = Literal["float32", "tf32", "bfloat16"]  # tf32: float32 whose factors are rounded, on a GPU
BOUNDS: Mapping[str, tuple[float, float]] = {
    "steps": (1, 10**9), "batch_size": (1, 10**6), "micro_batch_size": (1, 10**6), "learning_rate": (0, 10),
    "final_learning_rate": (0, 1), "warmup_steps": (0, 10**9), "weight_decay": (0, 10), "beta1": (0, 1), "beta2": (0, 1),
    "epsilon": (0, 1), "clip_norm": (0, math.inf), "label_smoothing": (0, 0.99), "seed": (0, 2**63 - 1),
    "evaluate_every": (1, 10**9), "evaluation_examples": (1, 10**9), "save_every": (1, 10**9),
    "save_minutes": (0.01, 10**6), "snapshots": (0, 1000),
}  # fmt: skip


MIN_UPDATES = 50  # as far as there are rows: a few updates teach little, whatever they are the mean of


def batch_size_for(seen: float, most: int) -> int:
    """Rows in a step, where so many are seen in all: fewer of few rows, so that they make a sensible number of updates.

    >>> batch_size_for(120, 16), batch_size_for(40, 16), batch_size_for(3000, 16)
    (2, 1, 16)
    """
    return max(1, min(most, int(seen / MIN_UPDATES)))


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Everything that decides which weights come out, beside the model and the data; and how they are computed."""

    steps: int  # updates of the weights
    batch_size: int = 32  # examples in a step, over all processes and all their parts
    micro_batch_size: int | None = None  # examples at once on one process; None: all of its share
    learning_rate: float = 3e-4  # at its highest
    final_learning_rate: float = 0.1  # at the last step, as a share of the highest
    warmup_steps: int | None = None  # over which it rises from nothing; None: a fiftieth of all steps
    weight_decay: float = 0.1  # of matrices; norms and biases have none
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    clip_norm: float = 1.0  # the gradient's norm is at most so large; 0: it is left as it is
    label_smoothing: float = 0.0
    seed: int = 0
    precision: Precision = "float32"  # of products and activations; weights and the optimizer's state are float32 always
    recompute: bool = False  # keep no activations inside blocks, and compute them again for the gradients
    compile: bool = False  # by torch.compile
    shard: bool = False  # each process keeps only a part of the weights and of the optimizer's state
    evaluate_every: int = 200  # steps
    evaluation_examples: int = 1024  # held-out ones, at most, on the way; all of them at the end
    save_every: int = 200
    save_minutes: float = 10.0  # after which a checkpoint is written too, however few steps there were
    snapshots: int | None = None  # models that are kept on the way; None: as many as take up little space, 16 at most

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            low, high = BOUNDS.get(field.name, (0, 0))
            if value is None or field.name not in BOUNDS:
                continue
            if not low <= value <= high:
                raise SettingError(f"{spell(field.name, value)} is not from {low:g} to {high:g}.")
        if self.precision not in get_args(Precision):
            raise SettingError(f"{spell('precision', self.precision)} is not one of {', '.join(get_args(Precision))}.")

    @staticmethod
    def check(changes: Mapping[str, Any]) -> None:
        """Refuse changes that no settings can have, before anything is done with them."""
        TrainingSettings(**{"steps": 1, **changes})

    @property
    def warmup(self) -> int:
        return max(1, self.steps // 50) if self.warmup_steps is None else self.warmup_steps

    @property
    def patience(self) -> int:
        """Steps over which a loss far above the first is waited for to come down."""
        return max(1, min(20, self.steps // 4))

    def learning_rate_at(self, step: int) -> float:
        """Of a step, counted from 0: a straight rise, then half a cosine down to its last value."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        way = (step - self.warmup) / max(1, self.steps - 1 - self.warmup)
        low = self.learning_rate * self.final_learning_rate
        return low + (self.learning_rate - low) * (1 + math.cos(math.pi * min(way, 1.0))) / 2

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
