"""A model that exists, trained on conversations or on preferences: from a file of rows to a trainer that is ready to run."""

from __future__ import annotations

import hashlib
import logging
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from glassformer.ground.errors import InputError, SettingError, spell
from glassformer.ground.files import atomic_file, crc32_text
from glassformer.ground.progress import NamedProgress
from glassformer.model_files import open_model
from glassformer.text import Tokenizer
from glassformer.training.chat_rows import ChatTokenizer, read_conversation, read_preference
from glassformer.training.lora import LoraSettings
from glassformer.training.objectives.answers import ChatAnswers, Preferences
from glassformer.training.objectives.objective import ExampleBatch, Objective
from glassformer.training.packing import TrainingRow
from glassformer.training.rows import DataRow, read_rows, split_rows
from glassformer.training.settings import TrainingSettings, check_above_zero, steps_and_batch_size
from glassformer.training.sharding import Ranks, dealt
from glassformer.training.trained_model import load_start_model
from glassformer.training.trainer import Trainer
from glassformer.training.training_folder import TrainingFolder
from glassformer.training.training_request import LoraRequest, TrainingParts

note = logging.getLogger("glassformer").warning

USAGE = "Let it write: glass run -m {folder} 'Hello'"
SAMPLE_TOKENS = 100
EVALUATIONS = 10  # on the way, unless the settings say otherwise
BATCH_SIZE = 16  # of many rows
Parts = Sequence[TrainingRow]  # of an example: a conversation's rows, or the chosen answer and the rejected one


@dataclass(frozen=True, kw_only=True)
class FineTuningRequest(LoraRequest):
    """A model, and rows that it is trained on; those of more than `length` tokens are left out."""

    EPOCHS: ClassVar[float]  # how often every row is seen, unless steps or epochs are said
    LEARNING_RATE: ClassVar[float]  # of a whole model
    LORA_LEARNING_RATE: ClassVar[float]  # of updates beside it, which begin at nothing

    init: str = field()  # the model
    data: str  # a file of rows
    pack: bool = True  # short rows share a window
    epochs: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_above_zero("epochs", self.epochs)
        if self.epochs is not None and "steps" in self.settings:
            raise SettingError(f"{spell('epochs')} and {spell('steps')} both say how long it is trained. Leave one out.")

    @abstractmethod
    def read_example(self, row: DataRow, chats: ChatTokenizer) -> list[TrainingRow]:
        """What is learned from a row."""

    @abstractmethod
    def objective(self, examples: list[Parts], held_out: list[Parts]) -> Objective[Any]: ...

    def parts(self, folder: TrainingFolder, ranks: Ranks, progress: NamedProgress | None) -> TrainingParts:
        """Read and tokenize the rows, and load the model."""
        lora, split = self.lora_settings, split_rows(read_rows(Path(self.data)), self.held_out)
        opened = open_model(self.init, progress=progress)
        if opened.config.default_head != "causal":
            raise SettingError(f"{self.init}: is no model that predicts the next token, so it cannot learn to answer.")
        tokenizer, context = opened.tokenizer, opened.config.context
        chats = ChatTokenizer(tokenizer, self.init)
        if self.length is not None and self.length > context:
            raise SettingError(f"{spell('length', self.length)} is more than the model's context of {context} tokens.")
        length = self.length or context
        examples, held_out = (fitting([(row, self.read_example(row, chats)) for row in rows], length) for rows in split)
        if not examples:
            raise InputError(
                f"{self.data}: no row is left to train on: all are held out, or have more than {length} tokens. Give more "
                "rows, or shorter ones."
            )
        objective = self.objective(examples, held_out)
        settings = self.training_settings(objective.examples, lora)
        model = load_start_model(self.init, lora, settings)
        sample = self._sampler(tokenizer) if self.prompt else None
        return TrainingParts(model, tokenizer, objective, settings, sample, USAGE, self.writer())

    def training_settings(self, examples: int, lora: LoraSettings | None) -> TrainingSettings:
        """The usual settings for these examples, and the request's changes to them."""
        seen = (self.epochs or self.EPOCHS) * examples
        steps, batch_size = steps_and_batch_size(self.settings, seen, min(BATCH_SIZE, examples))
        usual = TrainingSettings(  # saved by the clock, and at the end
            steps=steps, batch_size=batch_size, weight_decay=0.01, beta2=0.999, save_every=steps,
            evaluate_every=max(1, steps // EVALUATIONS),
            learning_rate=self.LEARNING_RATE if lora is None else self.LORA_LEARNING_RATE,
        )  # fmt: skip
        return replace(usual, **self.settings)

    def _sampler(self, tokenizer: Tokenizer) -> Callable[[Any], str]:
        thinks = "enable_thinking" in tokenizer.template().variables
        variables: dict[str, Any] = {"enable_thinking": False} if thinks else {}
        tokens = tokenizer.apply_chat_template(
            [{"role": "user", "content": self.prompt}], add_generation_prompt=True, return_tensors="pt",
            **variables,
        )  # fmt: skip

        def answer(model: Any) -> str:
            ids = tokens["input_ids"].to(model.device)
            steps = model.steps(ids, max_new_tokens=SAMPLE_TOKENS, do_sample=False)
            written: str = tokenizer.decode([step.id for _, step in steps], skip_special_tokens=True)
            return f"{self.prompt} → {written}"

        return answer


@dataclass(frozen=True, kw_only=True)
class ChatTraining(FineTuningRequest):
    """Answers of the assistant in conversations."""

    KIND: ClassVar[str] = "chat"
    EPOCHS: ClassVar[float] = 3
    LEARNING_RATE: ClassVar[float] = 2e-5
    LORA_LEARNING_RATE: ClassVar[float] = 2e-4

    def read_example(self, row: DataRow, chats: ChatTokenizer) -> list[TrainingRow]:
        return chats.rows(read_conversation(row))

    def objective(self, examples: list[Parts], held_out: list[Parts]) -> Objective[Any]:
        rows, held_out_rows = list(chain(*examples)), list(chain(*held_out))
        return ChatAnswers(rows, held_out_rows, digest_of([*rows, *held_out_rows]), self.pack)


@dataclass(frozen=True, kw_only=True)
class PreferenceRequest(FineTuningRequest):
    """Answers that are preferred to others."""

    KIND: ClassVar[str] = "preferences"
    EPOCHS: ClassVar[float] = 1
    LEARNING_RATE: ClassVar[float] = 1e-6
    LORA_LEARNING_RATE: ClassVar[float] = 1e-5

    beta: float = 0.1  # how much a change of log-probability is worth

    def __post_init__(self) -> None:
        super().__post_init__()
        check_above_zero("dpo_beta", self.beta, ": 0.1 is usual.")

    def read_example(self, row: DataRow, chats: ChatTokenizer) -> list[TrainingRow]:
        answers = [chats.rows(chat) for chat in read_preference(row)]
        if any(len(rows) != 1 for rows in answers):
            raise InputError(
                f"{row.place}: the chat template writes its answers in another way once there are later ones. Give one "
                "answer as 'chosen', and one as 'rejected'."
            )
        return list(chain(*answers))

    def objective(self, examples: list[Parts], held_out: list[Parts]) -> Objective[Any]:
        pairs, held_out_pairs = ([(chosen, rejected) for chosen, rejected in side] for side in (examples, held_out))
        return Preferences(pairs, held_out_pairs, digest_of(chain(*examples, *held_out)), self.beta, self.pack)

    def at_start(self, trainer: Trainer) -> None:
        assert isinstance(trainer.objective, Preferences)
        trainer.objective.use_reference(*reference_log_probabilities(trainer, trainer.objective))


def fitting(examples: Sequence[tuple[DataRow, Parts]], length: int) -> list[Parts]:
    """The examples that are short enough; an answer that is cut off would teach to stop anywhere."""
    sizes = [max(len(part.ids) for part in parts) for _, parts in examples]
    long = [(row, size) for (row, _), size in zip(examples, sizes, strict=True) if size > length]
    if long:
        note(
            f"{len(long)} of {len(examples)} rows are left out, since they have more than {length} tokens; the first: "
            f"{long[0][0].place} with {long[0][1]}."
        )
    return [parts for (_, parts), size in zip(examples, sizes, strict=True) if size <= length]


def digest_of(rows: Iterable[TrainingRow]) -> str:
    """A fingerprint of what is learned: tokens, and which of them are predicted."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(np.asarray([len(row.ids), *row.ids], np.int64).tobytes() + bytes(row.predicted))
    return digest.hexdigest()


def reference_log_probabilities(trainer: Trainer, objective: Preferences) -> tuple[Tensor, Tensor]:
    """Of all pairs, and of the held-out ones, by the model at the start; each (pairs, 2), in float64.

    They are computed once, and kept with the training.
    """
    source = hashlib.sha256(f"{objective.source} {trainer.settings.precision}".encode()).hexdigest()[:16]
    path = None if trainer.folder is None else trainer.folder.path / f"reference-{source}.safetensors"
    counts = (objective.examples, objective.held_out)
    stored = {} if path is None else _stored(path)
    known = tuple(stored.get(name, torch.zeros(0)) for name in ("pairs", "held_out"))
    whole = all(tensor.shape == (count, 2) for tensor, count in zip(known, counts, strict=True))
    found = trainer.ranks.sum(torch.tensor(float(whole), device=trainer.ranks.device))
    if int(found) == trainer.ranks.count:  # with all processes, which may have other disks
        return known[0], known[1]
    pairs, held_out = _computed(trainer, objective, False), _computed(trainer, objective, True)
    if path is not None and trainer.ranks.first:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as temporary:
            tensors = {"pairs": pairs, "held_out": held_out}
            safetensors.torch.save_file(tensors, os.fspath(temporary), {"crc32": _checksum(tensors)})
    return pairs, held_out


def _stored(path: Path) -> dict[str, Tensor]:
    """What an earlier run has computed; nothing if it is damaged, so that it is computed again."""
    try:
        tensors: dict[str, Tensor] = safetensors.torch.load_file(path)
        with safetensors.safe_open(path, framework="pt") as file:
            expected = (file.metadata() or {}).get("crc32")
    except (OSError, safetensors.SafetensorError):
        return {}
    return tensors if expected in (None, _checksum(tensors)) else {}


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    return crc32_text(b"".join(tensors[name].contiguous().numpy().tobytes() for name in sorted(tensors)))


@torch.no_grad()
def _computed(trainer: Trainer, objective: Preferences, held_out: bool) -> Tensor:
    count = objective.held_out if held_out else objective.examples
    size = trainer.micro_batch_size
    trainer.model.eval()
    result = torch.zeros(count, 2, dtype=torch.float64)

    def batch(start: int) -> ExampleBatch:
        return objective.batch(range(start, min(start + size, count)), held_out)

    for part, counts in dealt(map(batch, range(0, count, size)), trainer.ranks):
        values = trainer.compute(part, "log_probabilities")
        if counts:
            result[torch.as_tensor(list(part.rows), dtype=torch.long)] = values.double().cpu()
    return trainer.ranks.sum(result.to(trainer.ranks.device)).cpu()
