"""A task head out of labelled rows: classify texts, tag words, or write one text for another."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from glassformer.blueprints import Head, model_types
from glassformer.compat.auto import model_class_for_head
from glassformer.ground.errors import InputError, SettingError, spell
from glassformer.ground.progress import NamedProgress
from glassformer.model_files import AutoConfig, AutoTokenizer
from glassformer.text import Tokenizer
from glassformer.torch import base_class_for
from glassformer.training.labels import Labels, collect_labels
from glassformer.training.new_tokenizer import kept_tokenizer, new_tokenizer
from glassformer.training.objectives.text_to_text import TextToText
from glassformer.training.presets import Preset, config_of, find_family, find_preset, first_known
from glassformer.training.rows import DataRow, read_rows, split_rows
from glassformer.training.settings import TrainingSettings, steps_and_batch_size
from glassformer.training.sharding import Ranks
from glassformer.training.task_kinds import TaskKind, find_kind, make_objective, text_limit
from glassformer.training.training_folder import TrainingFolder
from glassformer.training.training_request import HeldOutRequest, TrainingParts

note = logging.getLogger("glassformer").warning
EPOCHS, LEARNING_RATE, WEIGHT_DECAY = 3, 5e-5, 0.01  # for a model that is trained further
WARMUP = 0.1  # the share of steps over which the learning rate rises: norms after each sum need it
FEW = 20  # held-out rows; measures of fewer say little
SAMPLES = 3  # texts that are shown with what the model writes for them


@dataclass(frozen=True, kw_only=True)
class TaskTraining(HeldOutRequest):
    """A model with a task head out of rows: a new one, or one that is trained further.

    Which rows are held out follows from a digest of their texts.
    """

    KIND: ClassVar[str] = "task"

    task: str  # classify, tag or seq2seq
    data: str  # a file of rows
    test_data: str | None = None  # rows to evaluate on; None: some of the others, which are then not trained on
    preset: str = "tiny"
    architecture: str | None = None  # of a new model; None: the task's
    vocabulary: int | None = None  # of a new tokenizer; None: the preset's
    init: str | None = None  # a model to go on from, instead of a new one

    def __post_init__(self) -> None:
        find_kind(self.task)
        find_preset(self.preset)
        if self.init is not None and (self.architecture is not None or self.vocabulary is not None):
            name = "vocabulary" if self.architecture is None else "arch"
            raise SettingError(f"a model that is trained further keeps family and tokenizer: leave {spell(name)} out.")
        super().__post_init__()

    def parts(self, folder: TrainingFolder, ranks: Ranks, progress: NamedProgress | None) -> TrainingParts:
        """Read and check the rows, and make the model."""
        kind, preset = find_kind(self.task), find_preset(self.preset, length=self.length, vocabulary=self.vocabulary)
        base = None if self.init is None else AutoConfig.from_pretrained(self.init)
        architecture = (self.architecture or kind.architecture) if base is None else base.model_type
        find_family(architecture)
        self._check_head(architecture, kind.head)
        rows, held_out = self._rows(kind)
        if ranks.first and not folder.begun and self.init is None and self.architecture is None:
            note(
                f"a new {architecture} is trained, from random weights; {spell('init', 'MODEL')} starts from a "
                "pretrained one."
            )
        labels = self._labels(kind, rows if self.test_data is not None else [*rows, *held_out], base)
        tokenizer = kept_tokenizer(folder, ranks, lambda: self._tokenizer(kind, architecture, [*rows, *held_out], preset))
        settings = self._settings(preset, len(rows))
        torch.manual_seed(settings.seed)
        model = self._model(kind, architecture, preset, tokenizer, labels)
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
        shown = [kind.inputs(row)[0] for row in (held_out or rows)[:SAMPLES]]

        def sample(model: Any) -> str:
            assert isinstance(objective, TextToText)
            answers = objective.answer_texts(model, shown)
            return "\n".join(f"{source} → {text}" for source, text in zip(shown, answers, strict=True))

        usage = f"Use it: {kind.usage}"
        return TrainingParts(model, tokenizer, objective, settings, sample if kind.labels is None else None, usage)

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

    def _tokenizer(self, kind: TaskKind, architecture: str, rows: Sequence[DataRow], preset: Preset) -> Tokenizer:
        if self.init is None:
            family = find_family(architecture)
            texts = (text for row in rows for text in (*kind.inputs(row), *kind.outputs(row)))
            return new_tokenizer(
                texts, preset.vocabulary, family.default_head, preset.length,
                token_types=getattr(family, "type_vocab_size", 0) > 1,
            )  # fmt: skip
        tokenizer = AutoTokenizer.from_pretrained(self.init)
        if tokenizer.pad_token is None:  # most decoders have none, since a single text needs none
            tokenizer.pad_token = tokenizer.eos_token
        return tokenizer

    def _settings(self, preset: Preset, examples: int) -> TrainingSettings:
        """The preset's, with a longer rise; of a model that is trained further, a few gentle passes over the rows."""
        changes, usual = self.settings, preset.settings
        if self.init is None:
            steps, gentle = changes.get("steps", usual.steps), {}
        else:
            steps, size = steps_and_batch_size(changes, EPOCHS * examples, usual.batch_size)
            gentle = {
                "learning_rate": LEARNING_RATE, "weight_decay": WEIGHT_DECAY, "steps": steps, "batch_size": size,
                "evaluate_every": max(1, math.ceil(steps / EPOCHS)), "save_every": steps,
            }  # fmt: skip
        return replace(usual, **{"warmup_steps": math.ceil(steps * WARMUP), **gentle, **changes})

    def _model(self, kind: TaskKind, architecture: str, preset: Preset, tokenizer: Tokenizer, labels: Labels | None) -> Any:
        named = {} if labels is None else {"id2label": labels.id2label, "num_labels": len(labels.names)}
        model_class = model_class_for_head(architecture, kind.head)
        if self.init is None:
            return model_class(config_of(preset, architecture, tokenizer).with_changes(named))
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
