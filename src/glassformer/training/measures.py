"""The usual measures of what a model answers, beside what is right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def edit_distance(first: Sequence[Any], second: Sequence[Any]) -> int:
    """How many items must be put in, taken out or replaced to make one sequence the other (Levenshtein's).

    >>> edit_distance("kitten", "sitting")
    3
    """
    before = list(range(len(second) + 1))
    for row, item in enumerate(first, 1):
        now = [row]
        for column, other in enumerate(second, 1):
            now.append(min(before[column] + 1, now[-1] + 1, before[column - 1] + (item != other)))
        before = now
    return before[-1]


def confusion(expected: Sequence[int], answered: Sequence[int], classes: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """How often each class (rows) was answered as each (columns)."""
    table = np.zeros((classes, classes), np.int64)
    np.add.at(table, (list(expected), list(answered)), 1)
    return table


def f1_scores(table: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[list[float], list[float], list[float]]:
    """Each class's precision, recall and their harmonic mean, by a table of confusions; 0 where nothing is to be divided."""
    right = np.diag(table).astype(float)
    answered, expected = table.sum(0), table.sum(1)
    precision = np.divide(right, answered, out=np.zeros_like(right), where=answered > 0)
    recall = np.divide(right, expected, out=np.zeros_like(right), where=expected > 0)
    both = precision + recall
    f1 = np.divide(2 * precision * recall, both, out=np.zeros_like(right), where=both > 0)
    return precision.tolist(), recall.tolist(), f1.tolist()
