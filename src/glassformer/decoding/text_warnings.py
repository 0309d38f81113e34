"""What to try when a text goes wrong: it repeats itself, or makes no sense. One line, with the setting.

Both are judged by what the policy knows anyway, so watching for them costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glassformer.decoding.policy import Policy
from glassformer.decoding.settings import GenerationConfig
from glassformer.ground.errors import spell

MIN_ROUNDS = 3  # how often a passage must have been repeated
MIN_REPEATED = 16  # and how many tokens must have been part of that
MAX_PERIOD = 64  # the longest passage that is looked for
WINDOW, NGRAM, MAX_DISTINCT = 64, 4, 0.35  # or of the last 64 tokens, hardly a third of the 4-grams are different
MIN_LENGTH = 12  # tokens to judge sense by
MAX_GAP = 3.0  # how far the chosen logits are below the best on average, before a text counts as garbled


def remedy(policy: Policy) -> str | None:
    """What to say about a text, or None when nothing seems wrong."""
    settings = policy.settings
    if policy.history.guide is not None:
        return None  # the grammar may ask for it
    if (length := repeated_period(policy.chosen)) is not None:
        what = "the same token" if length == 1 else f"the same {length} tokens" if length else "the same few words"
        return f"the text repeats itself ({what} again and again). Try {against_repetition(settings)}."
    if len(policy.chosen) >= MIN_LENGTH and policy.gap / len(policy.chosen) > MAX_GAP and settings.do_sample:
        return f"the text may make no sense: unlikely tokens were drawn all along. Try {against_incoherence(settings)}."
    return None


def remedies(policies: Sequence[Policy]) -> str | None:
    """What to say about several texts, in one line."""
    advice = [line for policy in policies if (line := remedy(policy)) is not None]
    if not advice:
        return None
    return advice[0] if len(policies) == 1 else f"{len(advice)} of {len(policies)} texts: {advice[0]}"


def repeated_period(ids: Sequence[int]) -> int | None:
    """How many tokens a text's end repeats again and again; 0 when it varies a little; None when it does not repeat."""
    tail = np.asarray(ids[-MAX_PERIOD * (MIN_ROUNDS + 1) :])
    for period in range(1, min(MAX_PERIOD, len(tail) // 2) + 1):
        different = np.flatnonzero(tail[period:] != tail[:-period])
        again = len(tail) - period - (int(different[-1]) + 1 if different.size else 0)
        if again >= max(MIN_REPEATED, MIN_ROUNDS * period):
            return period
    window = ids[-WINDOW:]
    ngrams = [tuple(window[start : start + NGRAM]) for start in range(len(window) - NGRAM + 1)]
    if len(window) == WINDOW and len(set(ngrams)) < MAX_DISTINCT * len(ngrams):
        return 0
    return None


def against_repetition(settings: GenerationConfig) -> str:
    if not settings.is_active("repetition_penalty"):
        drawn = f", or {spell('do_sample', True)} with {spell('temperature', 0.7)}"
        return spell("repetition_penalty", 1.1) + ("" if settings.do_sample else drawn)
    if settings.do_sample and settings.temperature < 0.5:
        return f"a temperature above {settings.temperature:g}"
    return f"{spell('no_repeat_ngram_size', 4)}, or {spell('dry_multiplier', 0.8)}"


def against_incoherence(settings: GenerationConfig) -> str:
    if settings.temperature > 1:
        return f"a temperature below {settings.temperature:g}, such as 0.7"
    if not settings.is_active("top_k") and not settings.is_active("min_p"):
        return f"{spell('min_p', 0.05)}, which leaves the long tail out"
    return f"{spell('do_sample', False)}, and a prompt of the kind that the model was trained on"
