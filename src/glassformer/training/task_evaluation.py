"""How well a model does a task on rows: the measures of its head, as a view."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch

from glassformer.ground.progress import Progress
from glassformer.see.task_evaluation import (
    ClassificationEvaluation,
    LabelScores,
    Mistake,
    TaggingEvaluation,
    TextToTextEvaluation,
    WrittenAnswer,
)
from glassformer.see.view import View
from glassformer.text import Tokenizer
from glassformer.training.measures import (
    accuracy,
    edit_distance,
    entity_counts,
    f1_scores,
    macro_f1,
    precision_recall_f1,
    total_scores,
)
from glassformer.training.objectives.classification import (
    Answer,
    Classification,
    GivenLabels,
    TextClassification,
    TokenLabelling,
)
from glassformer.training.objectives.text_to_text import TextToText
from glassformer.training.rows import SOURCE, TARGET, DataRow, read_rows
from glassformer.training.task_kinds import Inputs, find_kind, make_objective

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
    if isinstance(objective, TextClassification):
        kind_of_view, measured = _classification(objective, model, rows, kind.inputs, progress)
    elif isinstance(objective, TokenLabelling):
        kind_of_view, measured = _tagging(objective, model, progress)
    else:
        kind_of_view, measured = _text_to_text(objective, model, rows, progress)
    model_name, seconds = name or model.config.name_or_path, time.perf_counter() - started
    return kind_of_view(model=model_name, data=data.name, seconds=seconds, **measured)


Evaluated: TypeAlias = tuple[Callable[..., View], Mapping[str, Any]]  # a view's class, and what it shows


def _classification(
    objective: TextClassification, model: Any, rows: Sequence[DataRow], inputs: Inputs, progress: Progress | None
) -> Evaluated:
    given, names = objective.answer(model, progress=progress), objective.labels.names
    wrong = [row for row in range(len(rows)) if given.expected[row] != given.answered[row]]
    surest = sorted(wrong, key=lambda row: -given.probabilities[row])[:KEPT]
    mistakes = tuple(
        Mistake(
            place=rows[row].place, text=_preview(" ¦ ".join(inputs(rows[row]))), expected=names[given.expected[row]],
            answered=names[given.answered[row]], probability=given.probabilities[row],
        )
        for row in surest
    )  # fmt: skip
    measured = _measured(objective, given, len(rows))
    return ClassificationEvaluation, {**measured, "texts": len(rows), "mistakes": mistakes}


def _tagging(objective: TokenLabelling, model: Any, progress: Progress | None) -> Evaluated:
    given = objective.answer(model, progress=progress)
    counts, words = entity_counts(given.expected, given.answered), sum(map(len, given.expected))
    entities = tuple(LabelScores(type_, *precision_recall_f1(*three), three[2]) for type_, three in counts.items())
    entity_f1 = total_scores(counts)[2] if counts else None
    measured = _measured(objective, given, words)
    return TaggingEvaluation, {
        **measured, "texts": len(given.expected), "words": words, "entity_f1": entity_f1, "entities": entities,
    }  # fmt: skip


def _measured(objective: Classification[Answer], given: GivenLabels[Answer], count: int) -> dict[str, Any]:
    """What is measured of labels, whatever has them; `count`: how much has one."""
    table = objective.confusion(given)
    scores = zip(objective.labels.names, f1_scores(table), table.sum(1).tolist(), strict=True)
    labels = tuple(LabelScores(label, *three, support) for label, three, support in scores)
    return {
        "truncated": len(objective.truncated), "loss": given.loss / max(1, count), "accuracy": accuracy(table),
        "macro_f1": macro_f1(table), "labels": labels, "confusion": tuple(map(tuple, table.tolist())),
    }  # fmt: skip


@torch.no_grad()
def _text_to_text(objective: TextToText, model: Any, rows: Sequence[DataRow], progress: Progress | None) -> Evaluated:
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
        for source, text in zip(part, objective.answer_texts(model, part), strict=True):
            edits, expected, place = min((edit_distance(text, right), right, place) for right, place in targets[source])
            answers.append(WrittenAnswer(place, _preview(source), expected, text, edits))
        if progress is not None:
            progress(len(answers), len(sources))
    count, edits = len(answers), sum(answer.edits for answer in answers)
    wrong = sorted((answer for answer in answers if answer.edits), key=lambda answer: -answer.edits)
    return TextToTextEvaluation, {
        "sources": count, "loss": loss / max(1, tokens), "exact_match": sum(not answer.edits for answer in answers) / count,
        "edit_distance": edits / count, "answers": tuple(wrong[:KEPT]),
        "character_error_rate": edits / max(1, sum(len(answer.expected) for answer in answers)),
    }  # fmt: skip


def _target(row: DataRow, tokenizer: Tokenizer) -> str:
    """The text that is to be written; tokens as the tokenizer joins them."""
    target = row.tokens(TARGET)
    if isinstance(target, str):
        return target
    text: str = tokenizer.decode(tokenizer.convert_tokens_to_ids(target), skip_special_tokens=True)
    return text


def _preview(text: str) -> str:
    return text if len(text) <= PREVIEW else text[: PREVIEW - 1] + "…"
