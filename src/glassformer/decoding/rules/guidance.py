"""Classifier-free guidance (https://arxiv.org/abs/2306.17806): away from what a negative prompt would give."""

from __future__ import annotations

import numpy as np

from glassformer.decoding.past import Past
from glassformer.decoding.rules import Rule
from glassformer.decoding.shortlist import Scores, Shortlist


def guided(scale: float) -> Rule:
    """From the log-probabilities after the negative prompt, `scale` times the way to those after the prompt."""

    def rule(field: Shortlist, past: Past) -> Shortlist:
        assert past.against is not None
        against = log_softmax(past.against)
        if field.ids is not None:
            against = against[field.ids]
        with np.errstate(invalid="ignore"):  # what is out on both sides
            scores = against + np.float32(scale) * (log_softmax(field.scores) - against)
        scores[field.scores == -np.inf] = -np.inf
        return Shortlist(scores, field.ids)

    return rule


def log_softmax(scores: Scores) -> Scores:
    """Log-probabilities of scores."""
    shifted = scores - scores.max()
    found: Scores = shifted - np.float32(np.log(np.exp(shifted).sum(dtype=np.float64)))
    return found
