"""Answers: what a model's scores say, in the words of its task.

next token · each gap of a text · the label of a text · the label of each token · the passage that answers a question
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from glassformer.ground.candidates import Candidates, top
from glassformer.observe.protocols import Floats
from glassformer.observe.tokens import token_text
from glassformer.text import Tokenizer
from glassformer.views.answers import Answer, Candidate

TOP = 10  # candidates of an answer
MAX_PASSAGE = 15  # tokens


def candidates(tokenizer: Tokenizer, best: Candidates) -> tuple[Candidate, ...]:
    """Tokens with their texts."""
    return tuple(Candidate(token, token_text(tokenizer, token), score, probability) for token, score, probability in best)


def gaps(tokenizer: Tokenizer, ids: Sequence[int], scores: Floats) -> tuple[Answer, ...]:
    """What the model would fill into each gap; scores (length, vocabulary)."""
    mask = tokenizer.mask_token_id
    return tuple(
        Answer("the masked token", candidates(tokenizer, top(scores[at], TOP)), at)
        for at, token in enumerate(ids)
        if token == mask
    )


def label(scores: Floats, name: Callable[[int], str], problem: str | None) -> Answer:
    """All labels of a text; scores (labels,). `problem`: what the model was trained for, where its config says."""
    kind = problem or ("single" if scores.size > 1 else "multi")
    how = "none" if kind == "regression" else "softmax" if kind.startswith("single") else "sigmoid"
    if how == "softmax":
        return Answer("the label", _labels(top(scores, scores.size), name))
    order = np.argsort(-scores, kind="stable").tolist()
    shares = [math.nan if how == "none" else float(1 / (1 + np.exp(-np.float64(scores[at])))) for at in order]
    labels = (Candidate(at, name(at), float(scores[at]), share) for at, share in zip(order, shares, strict=True))
    return Answer("the label", tuple(labels), how=how)


def tags(tokenizer: Tokenizer, ids: Sequence[int], scores: Floats, name: Callable[[int], str]) -> tuple[Answer, ...]:
    """The label of each token that is not put around the text; scores (length, labels)."""
    around = {tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}
    return tuple(
        Answer("the label", _labels(top(scores[at], TOP), name), at) for at, token in enumerate(ids) if token not in around
    )


def replaced(tokenizer: Tokenizer, ids: Sequence[int], scores: Floats) -> tuple[Answer, ...]:
    """Whether each token is the original one or was put in its place; scores (length,), above zero if it was."""
    both = np.stack((np.zeros_like(scores), scores), -1)
    return tags(tokenizer, ids, both, ("original", "replaced").__getitem__)


def passage(own: Sequence[bool], starts: Floats, ends: Floats, text: Callable[[int, int], str]) -> Answer:
    """The best passages; `own`: the tokens that may be part of one; starts and ends (length,).

    A passage's probability is that of its beginning times that of its end, among the tokens that may be either.
    """
    inside = np.array(own)
    begin, end = (_softmax(np.where(inside, scores, -np.inf)) for scores in (starts, ends))
    shares = np.tril(np.triu(np.outer(begin, end)), MAX_PASSAGE - 1)  # ends at or after its beginning
    places = np.argsort(-shares.ravel(), kind="stable")[:TOP].tolist()
    spans = [divmod(at, len(inside)) for at in places if shares.ravel()[at] > 0]
    return Answer(
        "the passage",
        tuple(
            Candidate(first, text(first, last), float(starts[first] + ends[last]), float(shares[first, last]), last)
            for first, last in spans
        ),
        how="begin × end",
    )


def _labels(best: Candidates, name: Callable[[int], str]) -> tuple[Candidate, ...]:
    return tuple(Candidate(at, name(at), score, share) for at, score, share in best)


def _softmax(scores: Floats) -> Floats:
    shifted = np.exp(scores - scores.max())
    probabilities: Floats = shifted / shifted.sum()
    return probabilities
