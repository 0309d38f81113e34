"""What can be trained is a request: data that is kept with the training, so that it can go on, and that makes a trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol

from glassformer.progress import NamedProgress
from glassformer.text import Tokenizer
from glassformer.training.objectives.objective import Objective
from glassformer.training.ranks import Ranks
from glassformer.training.settings import TrainingSettings
from glassformer.training.snapshots import Snapshots
from glassformer.training.trainer import Trainer
from glassformer.training.training_folder import TrainingFolder


@dataclass(frozen=True)
class PreparedTraining:
    """A training that is ready to run."""

    trainer: Trainer
    tokenizer: Tokenizer
    usage: str = ""  # what can be done with the model, {folder} being where it is


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
) -> PreparedTraining:
    """A trainer for a request's model and data; one that goes on must be of the same."""
    about = {
        "kind": request.KIND, "request": asdict(request), "data": objective.fingerprint(), "model": model.config.to_dict(),
        "steps": settings.steps,
    }  # fmt: skip
    if resume:
        folder.check_same(about)
    elif ranks.first:
        folder.begin(about)
    trainer = Trainer(model, objective, settings, folder, ranks, sample, Snapshots(folder.path, tokenizer, settings))
    if resume:
        trainer.resume()
    return PreparedTraining(trainer, tokenizer, usage)
