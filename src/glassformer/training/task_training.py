"""A task head out of labelled rows: classify texts, tag words, or write one text for another."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from glassformer.blueprints import Head, model_types
from glassformer.compat.auto import model_class_for_head
from glassformer.families import base_class_for
from glassformer.ground.errors import InputError, SettingError, spell
from glassformer.ground.progress import NamedProgress
from glassformer.model_files import AutoConfig, AutoTokenizer
from glassformer.text import Tokenizer
from glassformer.training.labels import Labels, collect_labels
from glassformer.training.new_tokenizer import kept_tokenizer, new_tokenizer
from glassformer.training.objectives.text_to_text import TextToText
from glassformer.training.prepared import PreparedTraining, make_trainer
from glassformer.training.presets import Preset, config_of, find_family, find_preset, first_known
from glassformer.training.rows import DataRow, read_rows, split_rows
from glassformer.training.settings import TrainingSettings, batch_size_for
from glassformer.training.sharding import Ranks
from glassformer.training.task_kinds import TaskKind, find_kind, make_objective, text_limit
from glassformer.training.training_folder import TrainingFolder

note = logging.getLogger("glassformer").warning
EPOCHS, LEARNING_RATE, WEIGHT_DECAY = 3, 5e-5, 0.01  # for a model that is trained further
WARMUP = 0.1  # the share of steps over which the learning rate rises: norms after each sum need it
FEW = 20  # held-out rows; measures of fewer say little
SAMPLES = 3  # texts that are shown with what the model writes for them


@dataclass(frozen=True, kw_only=True)
class TaskTraining:
    """A model with a task head out of rows: a new one, or one that is trained further."""

    KIND: ClassVar[str] = "task"

    task: str  # classify, tag or seq2seq
    data: str  # a file of rows
    test_data: str | None = None  # rows to evaluate on; None: some of the others, which are then not trained on
    preset: str = "tiny"
    architecture: str | None = None  # of a new model; None: the task's
    vocabulary: int | None = None  # of a new tokenizer; None: the preset's
    length: int | None = None  # tokens of a text, at most
    held_out: float = 0.05  # the share of rows that are never trained on, by a digest of their texts
    init: str | None = None  # a model to go on from, instead of a new one
    settings: Mapping[str, Any] = field(default_factory=dict)  # changes to the preset's

    def __post_init__(self) -> None:
        TrainingSettings.check(self.settings)
        find_kind(self.task)
        find_preset(self.preset)
        if not 0 <= self.held_out < 1:
            raise SettingError(f"{spell('held_out', self.held_out)} is no share from 0 to 1.")
        if self.init is not None and (self.architecture is not None or self.vocabulary is not None):
            name = "vocabulary" if self.architecture is None else "arch"
            raise SettingError(f"a model that is trained further keeps family and tokenizer: leave {spell(name)} out.")

    def prepare(
        self, folder: TrainingFolder, ranks: Ranks, resume: bool = False, progress: NamedProgress | None = None
    ) -> PreparedTraining:
        """Read and check the rows, make the model, and take up what an earlier run has left."""
        kind, preset = find_kind(self.task), find_preset(self.preset)
        base = None if self.init is None else AutoConfig.from_pretrained(self.init)
        architecture = (self.architecture or kind.architecture) if base is None else base.model_type
        find_family(architecture)
        self._check_head(architecture, kind.head)
        rows, held_out = self._rows(kind)
        if ranks.first and not resume and self.init is None and self.architecture is None:
            note(
                f"a new {architecture} is trained, from random weights; {spell('init', 'MODEL')} starts from a "
                "pretrained one."
            )
        labels = self._labels(kind, rows if self.test_data is not None else [*rows, *held_out], base)
        sized = preset if self.length is None else replace(preset, length=self.length)
        tokenizer = kept_tokenizer(folder, ranks, lambda: self._tokenizer(kind, architecture, [*rows, *held_out], sized))
        settings = self._settings(preset, len(rows))
        torch.manual_seed(settings.seed)
        model = self._model(kind, architecture, sized, tokenizer, labels)
        objective = make_objective(kind, tokenizer, model.config, rows, held_out, self.length)
        if ranks.first and (places := objective.truncated):
            note(
                f"{len(places):,} of {len(rows) + len(held_out):,} texts have more than "
                f"{text_limit(tokenizer, model.config, self.length)} tokens, and are cut there (the first: {places[0]}). "
                f"Allow more by {spell('length')}, as far as the model's context goes."
            )
        if ranks.first and 0 < len(held_out) < FEW:
            note(
                f"rows to evaluate on: {len(held_out)}, and measures of fewer than {FEW} say little. Give more rows, a "
                f"larger {spell('held_out')}, or {spell('test_data')}."
            )
        sample = None
        if isinstance(objective, TextToText):
            sample = sampler(objective, tokenizer, [kind.inputs(row)[0] for row in (held_out or rows)[:SAMPLES]])
        usage = f"Use it: {kind.usage}"
        return make_trainer(self, model, tokenizer, objective, settings, folder, ranks, resume, sample, usage)

    def _rows(self, kind: TaskKind) -> tuple[list[DataRow], list[DataRow]]:
        """The rows to train on, and those to evaluate on."""
        rows = read_rows(Path(self.data), kind.columns)
        if self.test_data is not None:
            return rows, read_rows(Path(self.test_data), kind.columns)
        trained, held_out = split_rows(rows, self.held_out, key=lambda row: repr(kind.inputs(row)))
        if not trained:
            raise InputError(f"{self.data}: all of its rows are held out. Give more, or a smaller {spell('held_out')}.")
        return trained, held_out

    def _labels(self, kind: TaskKind, rows: Sequence[DataRow], base: Any) -> Labels | None:
        """The labels of rows; a model that knows them all keeps its own."""
        read = kind.labels
        if read is None:
            return None
        known = () if base is None else tuple((base.id2label or {}).values())
        return collect_labels(((label, row.place) for row in rows for label in read(row)), self.data, known)

    def _tokenizer(self, kind: TaskKind, architecture: str, rows: Sequence[DataRow], sized: Preset) -> Tokenizer:
        if self.init is None:
            family = find_family(architecture)
            texts = (text for row in rows for text in (*kind.inputs(row), *kind.outputs(row)))
            return new_tokenizer(
                texts, self.vocabulary or sized.vocabulary, family.default_head, sized.length,
                token_types=getattr(family, "type_vocab_size", 0) > 1,
            )  # fmt: skip
        tokenizer = AutoTokenizer.from_pretrained(self.init)
        if tokenizer.pad_token is None:  # most decoders have none, since a single text needs none
            tokenizer.pad_token = tokenizer.eos_token
        return tokenizer

    def _settings(self, preset: Preset, examples: int) -> TrainingSettings:
        """The preset's, with a longer rise; of a model that is trained further, a few gentle passes over the rows."""
        further = self.init is not None
        size = preset.settings.batch_size
        if further and "steps" not in self.settings:
            size = batch_size_for(EPOCHS * examples, size)
        size = self.settings.get("batch_size", size)
        steps = self.settings.get("steps", math.ceil(EPOCHS * examples / size) if further else preset.settings.steps)
        every = max(1, math.ceil(steps / EPOCHS))
        gentle = {"learning_rate": LEARNING_RATE, "weight_decay": WEIGHT_DECAY, "evaluate_every": every, "save_every": steps}
        changes = {
            "steps": steps,
            "batch_size": size,
            "warmup_steps": math.ceil(steps * WARMUP),
            **(gentle if further else {}),
        }
        return replace(preset.settings, **{**changes, **self.settings})

    def _model(self, kind: TaskKind, architecture: str, sized: Preset, tokenizer: Tokenizer, labels: Labels | None) -> Any:
        named = {} if labels is None else {"id2label": labels.id2label, "num_labels": len(labels.names)}
        model_class = model_class_for_head(architecture, kind.head)
        if self.init is None:
            return model_class(config_of(sized, architecture, tokenizer).with_changes(named))
        model = model_class.from_pretrained(self.init, dtype=torch.float32, ignore_mismatched_sizes=True, **named)
        if model.config.pad_token_id is None:  # a decoder's classifier finds the end of a text by it
            model.config.pad_token_id = first_known(tokenizer.pad_token_id, tokenizer.eos_token_id)
        return model

    def _check_head(self, architecture: str, head: Head) -> None:
        if head not in base_class_for(architecture).heads:
            others = ", ".join(name for name in model_types() if head in base_class_for(name).heads)
            raise SettingError(
                f"a {architecture} model has no head for {spell('task', self.task)}. Families that have: {others}."
            )


def sampler(objective: TextToText, tokenizer: Tokenizer, sources: Sequence[str]) -> Callable[[Any], str]:
    """What shows how a model answers some sources."""

    def write(model: Any) -> str:
        answers = objective.answer(model, [tuple(tokenizer(source)["input_ids"]) for source in sources])
        texts = [tokenizer.decode(answer, skip_special_tokens=True) for answer in answers]
        return "\n".join(f"{source} → {text}" for source, text in zip(sources, texts, strict=True))

    return write
