"""Classifier-free guidance (https://arxiv.org/abs/2306.17806): away from what a negative prompt would give."""

from __future__ import annotations

import numpy as np

from glassformer.decoding.rules import Rule
from glassformer.decoding.shortlist import Floats, Shortlist
from glassformer.decoding.token_history import TokenHistory


def guided(scale: float) -> Rule:
    """From the log-probabilities after the negative prompt, `scale` times the way to those after the prompt."""

    def rule(shortlist: Shortlist, history: TokenHistory) -> Shortlist:
        assert history.negative_logits is not None
        negative_scores = log_softmax(history.negative_logits)
        if shortlist.ids is not None:
            negative_scores = negative_scores[shortlist.ids]
        with np.errstate(invalid="ignore"):  # what is out on both sides
            scores = negative_scores + np.float32(scale) * (log_softmax(shortlist.scores) - negative_scores)
        scores[shortlist.scores == -np.inf] = -np.inf
        return Shortlist(scores, shortlist.ids)

    return rule


def log_softmax(scores: Floats) -> Floats:
    """Log-probabilities of scores."""
    shifted = scores - scores.max()
    log_probabilities: Floats = shifted - np.float32(np.log(np.exp(shifted).sum(dtype=np.float64)))
    return log_probabilities
