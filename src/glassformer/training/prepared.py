"""What can be trained is a request: data that is kept with the training, so that it can go on, and that makes a trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from glassformer.ground.progress import NamedProgress
from glassformer.text import Tokenizer
from glassformer.training.objectives.objective import Objective
from glassformer.training.settings import TrainingSettings
from glassformer.training.sharding import Ranks, whole_weights
from glassformer.training.snapshots import Snapshots
from glassformer.training.trained_model import WHOLE_MODEL, ModelWriters
from glassformer.training.trainer import Trainer
from glassformer.training.training_folder import TrainingFolder


@dataclass(frozen=True)
class PreparedTraining:
    """A training that is ready to run."""

    trainer: Trainer
    tokenizer: Tokenizer
    usage: str = ""  # what can be done with the model, {folder} being where it is
    writers: ModelWriters = WHOLE_MODEL

    def write(self, folder: Path) -> None:
        """The trained model's files, by one process of all that call this."""
        weights = whole_weights(self.trainer.model)
        if self.trainer.ranks.first:
            self.writers.result(folder, self.trainer.model, self.tokenizer, weights)


class TrainingRequest(Protocol):
    """A frozen dataclass; `KIND` tells which, in the training's file."""

    KIND: ClassVar[str]

    def prepare(
        self, folder: TrainingFolder, ranks: Ranks, resume: bool = False, progress: NamedProgress | None = None
    ) -> PreparedTraining: ...


def make_trainer(
    request: Any,
    model: Any,
    tokenizer: Tokenizer,
    objective: Objective,
    settings: TrainingSettings,
    folder: TrainingFolder,
    ranks: Ranks,
    resume: bool,
    sample: Callable[[Any], str] | None = None,
    usage: str = "",
    writers: ModelWriters = WHOLE_MODEL,
    at_start: Callable[[Trainer], None] | None = None,
) -> PreparedTraining:
    """A trainer for a request's model and data; one that goes on must be of the same.

    `writers`: how the model is written. `at_start`: called while the model has the weights that the training begins with.
    """
    about = {
        "kind": request.KIND, "request": asdict(request), "data": objective.fingerprint(), "model": model.config.to_dict(),
        "steps": settings.steps, "writes": objective.head in ("causal", "seq2seq"),
    }  # fmt: skip
    if resume:
        folder.check_same(about)
    elif ranks.first:
        folder.begin(about)
    snapshots = None if settings.shard else Snapshots(folder.path, tokenizer, settings, writers.snapshot)
    trainer = Trainer(model, objective, settings, folder, ranks, None if settings.shard else sample, snapshots)
    if at_start is not None:
        at_start(trainer)
    if resume:
        trainer.resume()
    return PreparedTraining(trainer, tokenizer, usage, writers)
