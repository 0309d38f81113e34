"""The table of a training's settings: one line each, with its type, default, meaning and bounds.

This is the one place where they are declared. Checks, the options of `glass train` and the table in the documentation are
read from it; what a request keeps of them are changes to the usual ones, by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, NamedTuple

from glassformer.ground.errors import SettingError, spell

MANY = 10**9
MIN_UPDATES = 50  # as far as there are rows: a few updates teach little, whatever they are the mean of


class TrainingSettingInfo(NamedTuple):
    help: str
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    option: bool = True  # whether `glass train` has an option of this name
    flags: tuple[str, ...] = ()  # the option's names, where there are several

    @property
    def minimum(self) -> int | None:
        """Of an option that is a whole number."""
        return self.least if isinstance(self.least, int) and isinstance(self.most, int) else None


def setting(default: Any, help: str, **more: Any) -> Any:  # noqa: A002
    """A line of the table; `more` is as in SettingInfo."""
    return field(default=default, metadata={"info": TrainingSettingInfo(help, **more)})


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Everything that decides which weights come out, beside the model and the data; and how they are computed."""

    # How long
    steps: int = setting(MISSING, "Updates of the weights.", least=1, most=MANY)
    batch_size: int = setting(32, "Examples in a step.", least=1, most=10**6)  # over all processes and all their parts
    micro_batch_size: int | None = setting(  # on one process; None: all of its share
        None, "Examples at once; fewer than --batch-size need less memory.", least=1, most=10**6
    )

    # How far each step goes
    learning_rate: float = setting(3e-4, "At its highest.", least=0.0, most=10.0, flags=("--learning-rate", "--lr"))
    final_learning_rate: float = setting(
        0.1, "At the last step, as a share of the highest.", least=0.0, most=1.0, option=False
    )
    warmup_steps: int | None = setting(  # from nothing; None: a fiftieth of all steps
        None, "Steps over which it rises.", least=0, most=MANY
    )
    weight_decay: float = setting(0.1, "Of matrices.", least=0.0, most=10.0)  # norms and biases have none
    beta1: float = setting(0.9, "AdamW's decay of the mean gradient.", least=0.0, most=1.0, option=False)
    beta2: float = setting(0.95, "AdamW's decay of the mean squared gradient.", least=0.0, most=1.0, option=False)
    epsilon: float = setting(1e-8, "What AdamW adds to its divisor.", least=0.0, most=1.0, option=False)
    clip_norm: float = setting(1.0, "The gradient's norm, at most; 0: as it is.", least=0.0, most=math.inf, option=False)
    label_smoothing: float = setting(0.0, "What is left for other answers.", least=0.0, most=0.99, option=False)
    seed: int = setting(0, "Of the order of examples, of dropout and of new weights.", least=0, most=2**63 - 1)

    # How it is computed
    precision: str = (
        setting(  # tf32: float32 whose factors are rounded; weights and the optimizer's state are float32 always
            "float32",
            "Of products: float32, tf32 (on a GPU) or bfloat16.",
            choices=("float32", "tf32", "bfloat16"),
        )
    )
    compile: bool = setting(False, "Compile the model: minutes at the start, faster steps.")
    recompute: bool = setting(False, "Keep no activations: less memory, a third more time.")  # of blocks' insides
    shard: bool = setting(False, "Split weights and optimizer among processes (FSDP); no samples.")

    # What is seen of it, and kept
    evaluate_every: int = setting(200, "Steps between evaluations on held-out text.", least=1, most=MANY)
    evaluation_examples: int = setting(  # all of them at the end
        1024, "Held-out examples of an evaluation, at most.", least=1, most=MANY, option=False
    )
    save_every: int = setting(200, "Steps between checkpoints.", least=1, most=MANY)
    save_minutes: float = setting(
        10.0, "Minutes after which a checkpoint is written too (default: 10).", least=0.01, most=1e6
    )
    snapshots: int | None = setting(  # None: as many as take up little space
        None, "Models kept on the way, for glass learning (default: up to 16).", least=0, most=1000
    )

    def __post_init__(self) -> None:
        for name, info in SETTINGS.items():
            value = getattr(self, name)
            if info.choices and value not in info.choices:
                raise SettingError(f"{spell(name, value)} is not one of {', '.join(info.choices)}.")
            if value is None or info.least is None or info.most is None:
                continue
            if not info.least <= value <= info.most:
                raise SettingError(f"{spell(name, value)} is not from {info.least:g} to {info.most:g}.")

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


SETTINGS: Mapping[str, TrainingSettingInfo] = {each.name: each.metadata["info"] for each in fields(TrainingSettings)}


def check_share(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise SettingError(f"{spell(name, value)} is no share from 0 to 1.")


def check_above_zero(name: str, value: float | None, advice: str = ".") -> None:
    if value is not None and not 0 < value < math.inf:
        raise SettingError(f"{spell(name, value)} is not above 0{advice}")


def steps_and_batch_size(changes: Mapping[str, Any], seen: float, most: int) -> tuple[int, int]:
    """Of a few passes over rows, as far as the changes do not say: `seen`: rows in all; `most`: of a step.

    Few rows are taken in smaller steps, so that they make a sensible number of updates.

    >>> steps_and_batch_size({}, 120, 16), steps_and_batch_size({}, 40, 16), steps_and_batch_size({}, 3000, 16)
    ((60, 2), (40, 1), (188, 16))
    >>> steps_and_batch_size({"steps": 5}, 120, 16)
    (5, 16)
    """
    usual = most if "steps" in changes else max(1, min(most, int(seen / MIN_UPDATES)))
    batch_size = changes.get("batch_size", usual)
    return changes.get("steps") or math.ceil(seen / batch_size), batch_size
