"""The tasks whose heads can be trained and measured: what each reads of a row, and which objective it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from glassformer.blueprints import Config, Head
from glassformer.ground.errors import SettingError, did_you_mean, spell
from glassformer.text import Tokenizer
from glassformer.training.labels import Labels, read_tagged_text
from glassformer.training.objectives.classification import TextClassification, TokenLabelling, texts_of
from glassformer.training.objectives.text_to_text import TextToText
from glassformer.training.rows import LABEL, SOURCE, TARGET, TEXT, DataRow

Inputs: TypeAlias = Callable[[DataRow], tuple[str, ...]]  # a row's texts
LENGTH = 512  # tokens of a text, unless the model reads fewer or somebody says otherwise


@dataclass(frozen=True)
class TaskKind:
    head: Head
    architecture: str  # of a new model, by default
    columns: tuple[Sequence[str], ...]  # that a CSV file must have
    inputs: Inputs  # the texts that the model reads
    outputs: Inputs  # the texts that it writes
    labels: Callable[[DataRow], Sequence[Any]] | None  # as the row has them; None: it writes texts
    usage: str  # the command that uses a model in {folder}


KINDS: Mapping[str, TaskKind] = {
    "classify": TaskKind(
        "sequence", "bert", (TEXT, LABEL), lambda row: _both(row), lambda row: (), lambda row: (row.get(LABEL),),
        "glass task text-classification -m {folder} 'a text'",
    ),
    "tag": TaskKind(
        "token", "bert", (), lambda row: (read_tagged_text(row).text,), lambda row: (),
        lambda row: read_tagged_text(row).tags, "glass task token-classification -m {folder} 'a text'",
    ),
    "seq2seq": TaskKind(
        "seq2seq", "t5", (SOURCE, TARGET), lambda row: (row.text(SOURCE),), lambda row: _target(row), None,
        "glass task text2text-generation -m {folder} 'a text'",
    ),
}  # fmt: skip


def find_kind(task: str) -> TaskKind:
    if task not in KINDS:
        raise SettingError(f"{spell('task', task)} is not known.{did_you_mean(task, KINDS)} Known: {', '.join(KINDS)}.")
    return KINDS[task]


def make_objective(
    kind: TaskKind,
    tokenizer: Tokenizer,
    config: Config,
    rows: Sequence[DataRow],
    held_out: Sequence[DataRow],
    length: int | None = None,
) -> TextClassification | TokenLabelling | TextToText:
    """What a model with a task's head is trained to do, and measured by; its labels are the config's."""
    limit = text_limit(tokenizer, config, length)
    if kind.labels is None:
        return TextToText(tokenizer, config, rows, held_out, limit)
    objective = TextClassification if kind.head == "sequence" else TokenLabelling
    return objective(tokenizer, Labels(tuple((config.id2label or {}).values())), rows, held_out, limit)


def text_limit(tokenizer: Tokenizer, config: Config, length: int | None) -> int:
    """How many tokens of a text are read."""
    return min(config.context, min(LENGTH, tokenizer.model_max_length) if length is None else length)


def _both(row: DataRow) -> tuple[str, ...]:
    (text,) = texts_of([row])
    return (text,) if isinstance(text, str) else text


def _target(row: DataRow) -> tuple[str, ...]:
    target = row.tokens(TARGET)
    return (target,) if isinstance(target, str) else tuple(target)
