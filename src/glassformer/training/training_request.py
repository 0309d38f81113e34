"""What can be trained is a request: data that is kept with the training, so that it can go on, and that makes a trainer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from glassformer.ground.errors import SettingError, spell
from glassformer.ground.progress import NamedProgress
from glassformer.text import Tokenizer
from glassformer.training.lora import LoraSettings
from glassformer.training.objectives.objective import Objective
from glassformer.training.settings import TrainingSettings, check_share
from glassformer.training.sharding import Ranks, whole_weights
from glassformer.training.trained_model import ModelWriter, Snapshots
from glassformer.training.trainer import Trainer
from glassformer.training.training_folder import TrainingFolder


@dataclass(frozen=True)
class TrainingParts:
    """What a request makes of itself: all that is trained, and how it is shown and written."""

    model: Any
    tokenizer: Tokenizer
    objective: Objective[Any]
    settings: TrainingSettings
    sample: Callable[[Any], str] | None = None  # what the model writes, for people to look at
    usage: str = ""  # what can be done with the model, {folder} being where it is
    writer: ModelWriter = field(default_factory=ModelWriter)


@dataclass(frozen=True)
class PreparedTraining:
    """A training that is ready to run."""

    trainer: Trainer
    parts: TrainingParts

    def write(self, folder: Path) -> None:
        """The trained model's files, by one process of all that call this."""
        weights = whole_weights(self.trainer.model)
        if self.trainer.ranks.first:
            self.parts.writer.write(folder, self.trainer.model, self.parts.tokenizer, weights)


@dataclass(frozen=True, kw_only=True)
class TrainingRequest(ABC):
    """What is trained on what; `KIND` tells which request it is, in the training's file."""

    KIND: ClassVar[str]

    settings: Mapping[str, Any] = field(default_factory=dict)  # changes to the usual ones

    def __post_init__(self) -> None:
        TrainingSettings.check(self.settings)

    @abstractmethod
    def parts(self, folder: TrainingFolder, ranks: Ranks, progress: NamedProgress | None) -> TrainingParts:
        """Read and check the data, and make the model that the training begins with."""

    def at_start(self, trainer: Trainer) -> None:  # noqa: B027  # most need nothing
        """What is computed with the weights that the training begins with."""

    def prepare(
        self, folder: TrainingFolder, ranks: Ranks, resume: bool = False, progress: NamedProgress | None = None
    ) -> PreparedTraining:
        """A trainer for the request; with `resume`, it takes up what an earlier run of this very training has left."""
        parts = self.parts(folder, ranks, progress)
        settings, objective = parts.settings, parts.objective
        about = {
            "kind": self.KIND, "request": asdict(self), "data": objective.fingerprint(), "steps": settings.steps,
            "model": parts.model.config.to_dict(), "writes": objective.head in ("causal", "seq2seq"),
        }  # fmt: skip
        if resume:
            folder.check_same(about)
        elif ranks.first:
            folder.begin(about)
        snapshots = None if settings.shard else Snapshots(folder.path, parts.tokenizer, settings, parts.writer)
        sample = None if settings.shard else parts.sample
        trainer = Trainer(parts.model, objective, settings, folder, ranks, sample, snapshots)
        self.at_start(trainer)
        if resume:
            trainer.resume()
        return PreparedTraining(trainer, parts)


@dataclass(frozen=True, kw_only=True)
class HeldOutRequest(TrainingRequest):
    """A request whose data are a person's: a share of them is never trained on."""

    length: int | None = None  # tokens of a window or a row, at most; None: as many as is usual
    held_out: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("held_out", self.held_out)


@dataclass(frozen=True, kw_only=True)
class LoraRequest(HeldOutRequest):
    """A request that may train updates beside a model, while the model stays as it is."""

    init: str | None = None  # the model to go on from
    prompt: str = ""  # how samples begin, or what they answer
    lora: Mapping[str, Any] | None = None  # LoraSettings' fields; None: the whole model is trained
    merge: bool = False  # write what a LoRA makes of the model, too

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.merge and self.lora is None:
            raise SettingError(
                f"{spell('merge')} is for a LoRA, and the whole model is trained: leave it out, or add {spell('lora', 8)}."
            )

    @property
    def lora_settings(self) -> LoraSettings | None:
        return None if self.lora is None else LoraSettings(**self.lora)

    def writer(self) -> ModelWriter:
        return ModelWriter(self.lora_settings, self.init or "", self.merge)
