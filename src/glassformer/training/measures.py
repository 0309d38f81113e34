"""The usual measures of what a model answers, beside what is right."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Confusions: TypeAlias = npt.NDArray[np.int64]  # (classes, classes): how often each (rows) was answered as each (columns)
OUTSIDE, MARKS = "O", ("B-", "I-")  # of IOB2 tags: no entity; the begin of one, the inside of one


def perplexity(loss: float) -> float:
    """Of a mean loss in nats; bounded, since a loss may be of any size."""
    return math.exp(min(loss, 700.0))


def edit_distance(first: Sequence[Any], second: Sequence[Any]) -> int:
    """How many items must be put in, taken out or replaced to make one sequence the other (Levenshtein's).

    >>> edit_distance("kitten", "sitting")
    3
    """
    known: dict[Any, int] = {}
    rows, columns = (np.array([known.setdefault(item, len(known)) for item in items]) for items in (first, second))
    steps = np.arange(len(columns) + 1)
    before = steps
    for row, item in enumerate(rows, 1):
        replaced = before[:-1] + (columns != item)
        now = np.concatenate(([row], np.minimum(before[1:] + 1, replaced)))
        before = np.minimum.accumulate(now - steps) + steps  # putting in costs 1 for each step to the right
    return int(before[-1])


def confusion(expected: Sequence[int], answered: Sequence[int], classes: int) -> Confusions:
    """How often each class (rows) was answered as each (columns)."""
    table = np.zeros((classes, classes), np.int64)
    np.add.at(table, (list(expected), list(answered)), 1)
    return table


def f1_scores(table: Confusions) -> list[tuple[float, float, float]]:
    """Each class's precision, recall and their harmonic mean, by a table of confusions."""
    counts = zip(np.diag(table).tolist(), table.sum(0).tolist(), table.sum(1).tolist(), strict=True)
    return [precision_recall_f1(*three) for three in counts]


def macro_f1(table: Confusions) -> float:
    """The mean of the classes' F1, over those that are expected or answered at all."""
    present = (table.sum(0) + table.sum(1)) > 0
    scores = np.array([f1 for _, _, f1 in f1_scores(table)])[present]
    return float(scores.mean()) if len(scores) else 0.0


def accuracy(table: Confusions) -> float:
    return float(np.trace(table) / max(1, table.sum()))


def entity_spans(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    """The entities that IOB2 tags mark, each as its first word, the word after it, and its type.

    As in the CoNLL evaluations, an I- tag after another type or after none begins an entity too.

    >>> sorted(entity_spans(["B-PER", "I-PER", "O", "B-LOC", "B-LOC"]))
    [(0, 2, 'PER'), (3, 4, 'LOC'), (4, 5, 'LOC')]
    """
    spans: set[tuple[int, int, str]] = set()
    start, kind = 0, ""
    for word, tag in enumerate((*tags, OUTSIDE)):
        tagged = tag[2:] if tag[:2] in MARKS else ""
        if kind and (tagged != kind or tag.startswith("B-")):
            spans.add((start, word, kind))
            kind = ""
        if tagged and not kind:
            start, kind = word, tagged
    return spans


def entity_counts(expected: Sequence[Sequence[str]], answered: Sequence[Sequence[str]]) -> dict[str, tuple[int, int, int]]:
    """By type, how many entities are found exactly, how many are answered, and how many are expected."""
    counts: dict[str, list[int]] = {}
    for truth, guess in zip(expected, answered, strict=True):
        right, said = entity_spans(truth), entity_spans(guess)
        for column, spans in enumerate((right & said, said, right)):
            for _, _, kind in spans:
                counts.setdefault(kind, [0, 0, 0])[column] += 1
    return {kind: (found, said, there) for kind, (found, said, there) in sorted(counts.items())}


def precision_recall_f1(found: int, answered: int, expected: int) -> tuple[float, float, float]:
    """0 where nothing is to be divided."""
    precision, recall = found / answered if answered else 0.0, found / expected if expected else 0.0
    return precision, recall, 2 * precision * recall / (precision + recall) if found else 0.0


def total_scores(counts: Mapping[str, tuple[int, int, int]]) -> tuple[float, float, float]:
    """Precision, recall and F1 of entities of all types together."""
    found, answered, expected = (sum(column) for column in zip(*counts.values(), strict=True)) if counts else (0, 0, 0)
    return precision_recall_f1(found, answered, expected)
