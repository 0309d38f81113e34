"""Answers: what a model's scores say, in the words of its task.

next token · each gap of a text · the label of a text · the label of each token · the passage that answers a question
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    """A token, a label or a passage."""

    id: int  # of the token or the label; of a passage, the position of its first token
    text: str
    score: float
    probability: float  # not a number where a score is all there is
    last: int | None = None  # of a passage: the position of its last token


@dataclass(frozen=True)
class Answer:
    """The candidates for one thing that was asked."""

    about: str  # "the next token", "the masked token", "the label", "the passage", …
    candidates: tuple[Candidate, ...]  # best first
    position: int | None = None  # of the token that it is about; None: the whole text
    how: str = "softmax"  # what makes the probabilities: softmax: one of all; sigmoid: each by itself; none
