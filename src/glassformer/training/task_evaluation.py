"""How well a model does a task on rows: the measures of its head, as a view."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from glassformer.ground.progress import Progress
from glassformer.text import Tokenizer
from glassformer.training.measures import (
    Confusions,
    accuracy,
    confusion,
    edit_distance,
    entity_counts,
    f1_scores,
    macro_f1,
    precision_recall_f1,
    total_scores,
)
from glassformer.training.objectives.classification import TextClassification, TokenClassification
from glassformer.training.objectives.text_to_text import TextToText
from glassformer.training.rows import SOURCE, TARGET, DataRow, read_rows
from glassformer.training.task_kinds import find_kind, make_objective
from glassformer.views.classification import ClassificationEvaluation, LabelScores, Mistake, TaggingEvaluation
from glassformer.views.text_to_text import TextToTextEvaluation, WrittenAnswer
from glassformer.views.view import View

KEPT = 100  # mistakes that a view has
BATCH = 64  # texts that are answered at once
PREVIEW = 200  # characters of a text that are shown


def evaluate_task(
    task: str,
    model: Any,
    tokenizer: Tokenizer,
    data: Path,
    length: int | None = None,
    name: str = "",
    progress: Progress | None = None,
) -> View:
    """A model's answers to rows beside the right ones.

    Args:
        task: classify, tag or seq2seq.
        model: of an Auto class, with the task's head.
        tokenizer: its own.
        data: a file of rows, as for training.
        length: tokens of a text, at most.
        name: what the model is called.
        progress: is told how many rows are done.
    """
    kind = find_kind(task)
    started, rows = time.perf_counter(), read_rows(data, kind.columns)
    objective = make_objective(kind, tokenizer, model.config, (), rows, length)
    model.eval()
    about = {"model": name or model.config.name_or_path, "data": data.name}
    view: View
    if isinstance(objective, TextClassification):
        view = _classification(objective, model, rows, kind.inputs, about, progress, started)
    elif isinstance(objective, TokenClassification):
        view = _tagging(objective, model, about, progress, started)
    else:
        view = _text_to_text(objective, model, rows, about, progress, started)
    return view


def _classification(
    objective: TextClassification,
    model: Any,
    rows: Sequence[DataRow],
    inputs: Any,
    about: Mapping[str, Any],
    progress: Progress | None,
    started: float,
) -> ClassificationEvaluation:
    names, loss = objective.labels.names, 0.0
    expected: list[int] = []
    answered: list[int] = []
    chances: list[float] = []
    for batch, logits in objective.held_out_logits(model):
        loss += float(objective.logits_loss(logits, batch.targets))
        best = logits.softmax(-1).max(-1)
        expected += batch.targets.flatten().tolist()
        answered += best.indices.tolist()
        chances += best.values.tolist()
        _tell(progress, len(expected), len(rows))
    wrong = [row for row in range(len(rows)) if expected[row] != answered[row]]
    surest = sorted(wrong, key=lambda row: -chances[row])[:KEPT]
    mistakes = tuple(
        Mistake(
            place=rows[row].place, text=_preview(" ¦ ".join(inputs(rows[row]))), expected=names[expected[row]],
            answered=names[answered[row]], probability=chances[row],
        )
        for row in surest
    )  # fmt: skip
    table = confusion(expected, answered, len(names))
    return ClassificationEvaluation(
        **about, texts=len(rows), truncated=len(objective.truncated), loss=loss / len(rows), accuracy=accuracy(table),
        macro_f1=macro_f1(table), labels=_label_scores(names, table), confusion=_tuples(table), mistakes=mistakes,
        seconds=time.perf_counter() - started,
    )  # fmt: skip


def _tagging(
    objective: TokenClassification, model: Any, about: Mapping[str, Any], progress: Progress | None, started: float
) -> TaggingEvaluation:
    loss = 0.0
    expected: list[list[str]] = []
    answered: list[list[str]] = []
    for batch, logits in objective.held_out_logits(model):
        loss += float(objective.logits_loss(logits, batch.targets))
        for truth, guess in objective.word_tags(batch, logits):
            expected.append(truth)
            answered.append(guess)
        _tell(progress, len(expected), objective.held_out)
    table, counts = objective.confusion(expected, answered), entity_counts(expected, answered)
    words = int(table.sum())
    entities = tuple(LabelScores(type_, *precision_recall_f1(*three), three[2]) for type_, three in counts.items())
    return TaggingEvaluation(
        **about, texts=len(expected), words=words, truncated=len(objective.truncated), loss=loss / max(1, words),
        accuracy=accuracy(table), macro_f1=macro_f1(table), entity_f1=total_scores(counts)[2] if counts else None,
        labels=_label_scores(objective.labels.names, table), entities=entities, confusion=_tuples(table),
        seconds=time.perf_counter() - started,
    )  # fmt: skip


@torch.no_grad()
def _text_to_text(
    objective: TextToText,
    model: Any,
    rows: Sequence[DataRow],
    about: Mapping[str, Any],
    progress: Progress | None,
    started: float,
) -> TextToTextEvaluation:
    loss, tokens = 0.0, 0
    for batch in objective.held_out_batches(BATCH):
        loss, tokens = loss + float(objective.loss(model, batch.to(model.device))), tokens + batch.count
    targets: dict[str, list[tuple[str, str]]] = {}  # by source, which may have several right ones, with their places
    for row in rows:
        targets.setdefault(row.text(SOURCE), []).append((_target(row, objective.tokenizer), row.place))
    sources = list(targets)
    answers: list[WrittenAnswer] = []
    for start in range(0, len(sources), BATCH):
        part = sources[start : start + BATCH]
        written = objective.answer(model, [tuple(objective.tokenizer(source)["input_ids"]) for source in part])
        for source, ids in zip(part, written, strict=True):
            text = objective.tokenizer.decode(ids, skip_special_tokens=True)
            edits, expected, place = min((edit_distance(text, right), right, place) for right, place in targets[source])
            answers.append(WrittenAnswer(place, _preview(source), expected, text, edits))
        _tell(progress, len(answers), len(sources))
    edits = sum(answer.edits for answer in answers)
    return TextToTextEvaluation(
        **about, sources=len(answers), loss=loss / max(1, tokens),
        exact_match=sum(not answer.edits for answer in answers) / len(answers), edit_distance=edits / len(answers),
        character_error_rate=edits / max(1, sum(len(answer.expected) for answer in answers)),
        answers=tuple(sorted((answer for answer in answers if answer.edits), key=lambda answer: -answer.edits)[:KEPT]),
        seconds=time.perf_counter() - started,
    )  # fmt: skip


def _target(row: DataRow, tokenizer: Tokenizer) -> str:
    """The text that is to be written; tokens as the tokenizer joins them."""
    target = row.tokens(TARGET)
    if isinstance(target, str):
        return target
    text: str = tokenizer.decode(tokenizer.convert_tokens_to_ids(target), skip_special_tokens=True)
    return text


def _label_scores(names: Sequence[str], table: Confusions) -> tuple[LabelScores, ...]:
    return tuple(LabelScores(*values) for values in zip(names, *f1_scores(table), table.sum(1).tolist(), strict=True))


def _tuples(table: Confusions) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, table.tolist()))


def _preview(text: str) -> str:
    return text if len(text) <= PREVIEW else text[: PREVIEW - 1] + "…"


def _tell(progress: Progress | None, done: int, total: int) -> None:
    if progress is not None:
        progress(done, total)
