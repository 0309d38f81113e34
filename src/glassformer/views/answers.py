"""Answers: what a model's scores mean for its task.

the next token · each masked token · the label of a text · the label of each token · the passage that answers a question
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    """A token, a label or a passage."""

    id: int  # of the token or the label; of a passage, the position of its first token
    text: str
    score: float
    probability: float  # NaN where there is only a score
    last: int | None = None  # of a passage: the position of its last token


@dataclass(frozen=True)
class Answer:
    """The candidates for one question to the model."""

    about: str  # "the next token", "the masked token", "the label", "the passage", …
    candidates: tuple[Candidate, ...]  # best first
    position: int | None = None  # of the token in question; None: the whole text
    how: str = "softmax"  # what gives the probabilities: "softmax" (one of all), "sigmoid" (each by itself) or "none"
