"""Rules that lead away from what was said before, whose scores they lower or ban, or from what a negative prompt gives."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection

import numpy as np

from glassformer.decoding.rules import Rule
from glassformer.decoding.rules.constraints import BAN, added
from glassformer.decoding.shortlist import Ids, Shortlist, log_softmax
from glassformer.decoding.token_history import TokenHistory

MOST = 1e12  # no penalty of `dry` is larger: as good as a ban, and the score is still a number


STRONGEST = 1e6  # factor of `repetition`: beyond it nothing changes any more, and scores stay numbers


def repetition(repetition_penalty: float) -> Rule:
    """Divide the scores of all tokens of the text, prompt included, by this; multiply those below zero
    (https://arxiv.org/abs/1909.05858)."""

    def rule(shortlist: Shortlist, history: TokenHistory) -> Shortlist:
        indices, _ = shortlist.indices_of(history.ids)
        before = shortlist.scores[indices]
        factor = np.float32(min(max(repetition_penalty, 1 / STRONGEST), STRONGEST))
        after = np.where(before < 0, before * factor, before / factor)
        return shortlist if np.array_equal(before, after) else shortlist.rescored(indices, after)

    return rule


def presence(presence_penalty: float) -> Rule:
    """Lower each token that was chosen before, once
    (https://platform.openai.com/docs/api-reference/chat/create)."""
    return lambda shortlist, history: added(shortlist, history.new, -presence_penalty)


def frequency(frequency_penalty: float) -> Rule:
    """Lower each token that was chosen before, once for each time
    (https://platform.openai.com/docs/api-reference/chat/create)."""

    def rule(shortlist: Shortlist, history: TokenHistory) -> Shortlist:
        tokens, counts = np.unique(history.new, return_counts=True)
        return added(shortlist, tokens, -frequency_penalty * counts)

    return rule


def growing_end(start: int, factor: float, eos: Collection[int]) -> Rule:
    """After `start` new tokens, what ends the text gains: |score| · (factor^n − 1) at the nth token from there."""
    ends = np.array(sorted(eos), np.int64)

    def rule(shortlist: Shortlist, history: TokenHistory) -> Shortlist:
        if history.step <= start:
            return shortlist
        indices = shortlist.indices_of(ends)[0]
        scores = shortlist.scores[indices]
        with np.errstate(invalid="ignore", over="ignore"):
            gains = np.abs(scores) * np.float32(factor ** (history.step - start) - 1)
        return shortlist.rescored(indices, np.where(np.isfinite(gains), scores + gains, scores))

    return rule


def no_repeat_ngram(no_repeat_ngram_size: int) -> Rule:
    """Ban what would complete a group of this many tokens that the text has already."""

    def rule(shortlist: Shortlist, history: TokenHistory) -> Shortlist:
        ids = history.ids
        if ids.size < no_repeat_ngram_size:
            return shortlist
        ends = np.arange(no_repeat_ngram_size - 1, ids.size)  # where such groups end
        for back in range(1, no_repeat_ngram_size):
            ends = ends[ids[ends - back] == ids[-back]]
        return added(shortlist, ids[ends], BAN)

    return rule


def dry(
    dry_multiplier: float, dry_base: float, dry_allowed_length: int, dry_range: int = 0, dry_breakers: Collection[int] = ()
) -> Rule:
    """Don't repeat yourself, by p-e-w (https://github.com/oobabooga/text-generation-webui/pull/5677).

    Where the text's last n tokens stand earlier in the text too, the token that followed there is lowered by
    multiplier · base^(n − allowed length), if n is at least the allowed length. So the longer a repetition is, the harder
    it is to go on with it. Where a token has several such places, the highest penalty counts. A breaker, such as a
    newline's id, ends every match and is never lowered itself. `dry_range` is how many of the last tokens are looked
    at, 0 for all.
    """
    breaking = frozenset(dry_breakers)
    longest = sys.maxsize  # longer matches make no difference any more
    if dry_base > 1 and dry_multiplier > 0:
        longest = dry_allowed_length + math.ceil(max(math.log(MOST) - math.log(dry_multiplier), 0.0) / math.log(dry_base))

    def rule(shortlist: Shortlist, history: TokenHistory) -> Shortlist:
        ids = history.ids[-dry_range:] if dry_range else history.ids
        lengths = matches(ids)
        ends = np.flatnonzero(lengths >= max(dry_allowed_length, 1))
        followers = ids[ends + 1]
        penalties = np.minimum(dry_multiplier * dry_base ** (lengths[ends] - float(dry_allowed_length)), MOST)
        penalties[np.isin(followers, [*breaking])] = 0
        highest_last = np.argsort(penalties)
        return added(shortlist, followers[highest_last], -penalties[highest_last])

    def matches(ids: Ids) -> Ids:
        """For each place but the last: how many tokens up to there are the same as at the end.

        One step back at a time, with those places only that have matched so far, which soon are few.
        """
        ends = np.arange(max(ids.size - 1, 0))
        lengths = np.zeros_like(ends)
        for back in range(min(ends.size, longest)):
            token = int(ids[-1 - back])
            if token in breaking or not ends.size:
                break
            ends = ends[(ids[ends - back] == token) & (ends >= back)]
            lengths[ends] = back + 1
        return lengths

    return rule


def guided(guidance_scale: float) -> Rule:
    """From the log-probabilities after the negative prompt, `guidance_scale` times the way to those after the prompt.

    Classifier-free guidance (https://arxiv.org/abs/2306.17806).
    """

    def rule(shortlist: Shortlist, history: TokenHistory) -> Shortlist:
        assert history.negative_logits is not None
        negative = log_softmax(history.negative_logits)
        if shortlist.ids is not None:
            negative = negative[shortlist.ids]
        with np.errstate(invalid="ignore"):  # what is out on both sides
            scores = negative + np.float32(guidance_scale) * (log_softmax(shortlist.scores) - negative)
        scores[shortlist.scores == -np.inf] = -np.inf
        return Shortlist(scores, shortlist.ids)

    return rule
