"""A model that exists, trained on conversations or on preferences: from a file of rows to a trainer that is ready to run."""

from __future__ import annotations

import hashlib
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from glassformer.ground.errors import InputError, SettingError, spell
from glassformer.ground.progress import NamedProgress
from glassformer.model_files import open_model
from glassformer.text import Tokenizer
from glassformer.training.chat_rows import ChatTokenizer, read_conversation, read_preference
from glassformer.training.lora import LoraSettings
from glassformer.training.objectives.chat_answers import ChatAnswers
from glassformer.training.objectives.objective import Objective
from glassformer.training.objectives.preferences import Preferences
from glassformer.training.packing import TrainingRow
from glassformer.training.prepared import PreparedTraining, make_trainer
from glassformer.training.reference import reference_log_probabilities
from glassformer.training.rows import DataRow, read_rows, split_rows
from glassformer.training.settings import TrainingSettings, batch_size_for
from glassformer.training.sharding import Ranks
from glassformer.training.start_model import load_start_model
from glassformer.training.trained_model import writers_of
from glassformer.training.trainer import Trainer
from glassformer.training.training_folder import TrainingFolder

note = logging.getLogger("glassformer").warning

USAGE = "Let it write: glass run -m {folder} 'Hello'"
SAMPLE_TOKENS = 100
EVALUATIONS = 10  # on the way, unless the settings say otherwise
BATCH_SIZE = 16  # of many rows
Example = TypeVar("Example")


@dataclass(frozen=True, kw_only=True)
class FineTuningRequest(ABC):
    """A model, and rows that it is trained on."""

    KIND: ClassVar[str]
    EPOCHS: ClassVar[float]  # how often every row is seen, unless steps or epochs are said
    LEARNING_RATE: ClassVar[float]  # of a whole model
    LORA_LEARNING_RATE: ClassVar[float]  # of updates beside it, which begin at nothing

    data: str  # a file of rows
    init: str  # the model
    length: int | None = None  # rows of more tokens are left out; None: the model's context
    held_out: float = 0.05  # the share of rows that is never trained on
    prompt: str = ""  # what samples answer; "": nothing is sampled
    lora: Mapping[str, Any] | None = None  # LoraSettings' fields; None: the whole model is trained
    merge: bool = False  # write what a LoRA makes of the model, too
    pack: bool = True  # short rows share a window
    epochs: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # changes to the usual ones

    def __post_init__(self) -> None:
        TrainingSettings.check(self.settings)
        if not 0 <= self.held_out < 1:
            raise SettingError(f"{spell('held_out', self.held_out)} is no share from 0 to 1.")
        if self.epochs is not None and not 0 < self.epochs < math.inf:
            raise SettingError(f"{spell('epochs', self.epochs)} is not above 0.")
        if self.epochs is not None and "steps" in self.settings:
            raise SettingError(f"{spell('epochs')} and {spell('steps')} both say how long it is trained. Leave one out.")
        if self.merge and self.lora is None:
            raise SettingError(
                f"{spell('merge')} is for a LoRA, and the whole model is trained: leave it out, or add --lora 8."
            )

    @abstractmethod
    def read_objective(self, rows: list[DataRow], held_out: list[DataRow], chats: ChatTokenizer, length: int) -> Objective:
        """What is learned from rows of at most so many tokens."""

    def at_start(self, trainer: Trainer) -> None:  # noqa: B027  # most need nothing
        """What is computed with the weights that the training begins with."""

    def prepare(
        self, folder: TrainingFolder, ranks: Ranks, resume: bool = False, progress: NamedProgress | None = None
    ) -> PreparedTraining:
        """Read and tokenize the rows, load the model, and take up what an earlier run has left."""
        lora = None if self.lora is None else LoraSettings(**self.lora)
        rows, held_out = split_rows(read_rows(Path(self.data)), self.held_out)
        opened = open_model(self.init, progress=progress)
        if opened.config.default_head != "causal":
            raise SettingError(f"{self.init}: is no model that predicts the next token, so it cannot learn to answer.")
        chats = ChatTokenizer(opened.tokenizer, self.init)
        context = opened.config.context
        if self.length is not None and self.length > context:
            raise SettingError(f"{spell('length', self.length)} is more than the model's context of {context} tokens.")
        objective = self.read_objective(rows, held_out, chats, self.length or context)
        settings = self.training_settings(objective.examples, lora)
        model = load_start_model(self.init, lora, settings)
        tokenizer = opened.tokenizer
        sample = self._sampler(tokenizer) if self.prompt else None
        return make_trainer(
            self,
            model,
            tokenizer,
            objective,
            settings,
            folder,
            ranks,
            resume,
            sample,
            USAGE,
            writers_of(lora, self.init, self.merge),
            self.at_start,
        )

    def training_settings(self, examples: int, lora: LoraSettings | None) -> TrainingSettings:
        """The usual settings for so many examples, and the request's changes to them."""
        seen = (self.epochs or self.EPOCHS) * examples
        most = min(BATCH_SIZE, examples)
        usual_size = most if "steps" in self.settings else batch_size_for(seen, most)
        batch_size = self.settings.get("batch_size", usual_size)
        steps = self.settings.get("steps") or math.ceil(seen / batch_size)
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

    def read_objective(self, rows: list[DataRow], held_out: list[DataRow], chats: ChatTokenizer, length: int) -> Objective:
        def read(rows: list[DataRow]) -> list[tuple[DataRow, list[TrainingRow]]]:
            return [(row, chats.rows(read_conversation(row))) for row in rows]

        kept = [example for examples in fitting(read(rows), length) for example in examples]
        kept_held_out = [example for examples in fitting(read(held_out), length) for example in examples]
        check_not_empty(kept, self.data, length)
        return ChatAnswers(kept, kept_held_out, digest_of([*kept, *kept_held_out]), self.pack)


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
        if not 0 < self.beta < math.inf:
            raise SettingError(f"{spell('dpo_beta', self.beta)} is not above 0: 0.1 is usual.")

    def read_objective(self, rows: list[DataRow], held_out: list[DataRow], chats: ChatTokenizer, length: int) -> Objective:
        def answer(row: DataRow, chat: Any) -> TrainingRow:
            answers = chats.rows(chat)
            if len(answers) != 1:
                raise InputError(
                    f"{row.place}: the chat template writes its answers in another way once there are later ones. Give one "
                    "answer as 'chosen', and one as 'rejected'."
                )
            return answers[0]

        def read(rows: list[DataRow]) -> list[tuple[DataRow, list[TrainingRow]]]:
            return [(row, [answer(row, chat) for chat in read_preference(row)]) for row in rows]

        kept, kept_held_out = (
            [(chosen, rejected) for chosen, rejected in fitting(read(part), length)] for part in (rows, held_out)
        )
        check_not_empty(kept, self.data, length)
        source = digest_of([row for pair in (*kept, *kept_held_out) for row in pair])
        return Preferences(kept, kept_held_out, source, self.beta, self.pack)

    def at_start(self, trainer: Trainer) -> None:
        assert isinstance(trainer.objective, Preferences)
        trainer.objective.use_reference(*reference_log_probabilities(trainer, trainer.objective))


def fitting(examples: Sequence[tuple[DataRow, list[TrainingRow]]], length: int) -> list[list[TrainingRow]]:
    """The rows that are short enough; an answer that is cut off would teach to stop anywhere."""
    long = [(row, max(len(part.ids) for part in parts)) for row, parts in examples if max(map(_tokens, parts)) > length]
    if long:
        note(
            f"{len(long)} of {len(examples)} rows are left out, since they have more than {length} tokens; the first: "
            f"{long[0][0].place} with {long[0][1]}."
        )
    return [parts for _, parts in examples if max(map(_tokens, parts)) <= length]


def _tokens(row: TrainingRow) -> int:
    return len(row.ids)


def check_not_empty(examples: Sequence[Any], data: str, length: int) -> None:
    if not examples:
        raise InputError(
            f"{data}: no row is left to train on: all are held out, or have more than {length} tokens. Give more rows, or "
            "shorter ones."
        )


def digest_of(rows: Sequence[TrainingRow]) -> str:
    """A fingerprint of what is learned: tokens, and which of them are predicted."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(np.asarray([len(row.ids), *row.ids], np.int64).tobytes() + bytes(row.predicted))
    return digest.hexdigest()
