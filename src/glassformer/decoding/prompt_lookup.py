"""Prompt lookup: what followed the last few tokens when they came before is what may follow now.

From https://github.com/apoorvumang/prompt-lookup-decoding. Good for texts that quote: summaries, corrections, code.

In a batch, drafts are made where checking them costs less than what they are likely to save. One more position makes a pass
a little longer, and may spare its text a pass. Where a pass takes `fixed + each · positions` seconds, it pays if

    chance that it is accepted > each · texts / (fixed + each · texts)

The right side is small for few texts on a machine that waits for its memory, and near 1 for many: there nothing is drafted.
Both sides are measured: the seconds in the passes, and the chance by what lookup would have drafted, which costs no pass
(`LookupForecast`). The chance of the n-th token of a draft is the n-th power of the first one's, which ends the draft.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from glassformer.decoding.lane import Lane
from glassformer.decoding.policy import Policy
from glassformer.decoding.shortlist import Ids
from glassformer.decoding.token_history import TokenHistory

MATCHED_TOKENS = 3  # how many last tokens are looked for, or as many of them as came before
NEWEST_WEIGHT = 0.25  # of the latest expectation in the accuracy


def lookup_continuation(ids: Ids, size: int, count: int) -> list[int]:
    """What came after the last `size` ids, or as many of them as came before, at the latest place with enough behind it."""
    ends = earlier_ends(ids, size)
    if not ends.size:
        return []
    enough = ends[ends + count < ids.size]
    start = int(enough[-1] if enough.size else ends[0]) + 1
    draft: list[int] = ids[start : start + count].tolist()
    return draft


def earlier_ends(ids: Ids, size: int) -> Ids:
    """Where the last `size` ids, or as many of them as came before, ended when they did."""
    ends: Ids = np.flatnonzero(ids[:-1] == ids[-1])
    for back in range(2, min(size, ids.size - 1) + 1):
        longer = ends[ends >= back - 1]
        longer = longer[ids[longer - back + 1] == ids[-back]]
        if not longer.size:
            break
        ends = longer
    return ends


def before_end(draft: Sequence[int], eos: Container[int]) -> Sequence[int]:
    """A draft up to the first end of a text: that need not be guessed, for the token behind a draft costs nothing."""
    return draft[: next((place for place, token in enumerate(draft) if token in eos), None)]


class LookupForecast:
    """What is expected to follow in one text, and how often such expectations came true lately.

    Every token is compared with what was expected, whether it was drafted or not: so it is known what drafts would be worth
    before any is tried.
    """

    def __init__(self, history: TokenHistory) -> None:
        self.accuracy = 0.0
        self._history = history
        self._length = history.ids.size  # of the text when it was last looked at
        self._match: int | None = None  # the position of the token that is expected next

    def update(self) -> None:
        """Compare what was chosen since with what was expected."""
        ids = self._history.ids
        for token in ids[self._length :].tolist():
            if self._match is None:
                break
            correct = bool(ids[self._match] == token)
            self.accuracy += (correct - self.accuracy) * NEWEST_WEIGHT
            self._match = self._match + 1 if correct else None
        self._length = ids.size
        if self._match is None:
            ends = earlier_ends(ids, MATCHED_TOKENS)
            self._match = int(ends[-1]) + 1 if ends.size else None

    def draft(self, count: int) -> list[int]:
        """The next tokens that are expected; where the text repeats itself already, the repetition goes on."""
        if self._match is None:
            return []
        expected: list[int] = np.resize(self._history.ids[self._match : self._match + count], count).tolist()
        return expected


LONGEST_DRAFT = 16
HIGHEST_ACCURACY = 0.98  # that is believed
HIGHEST_SHARE = 0.8  # of a position, for which it is worth while to look for drafts
OLDER_WEIGHT = 0.95  # of all passes before, when one is added
PRIOR_WEIGHT = 1.0  # of the assumption, in squared positions of variance


class PassCost(Protocol):
    def add(self, positions: int, seconds: float) -> None:
        """Learn from a pass."""

    def marginal_share(self, texts: int) -> float:
        """What a position costs in addition, as a share of what a token costs in a pass of this many texts."""


class MeasuredCost:
    """A line through the seconds of recent passes over their positions.

    Where all had the same number of positions, each is assumed to cost as much as the rest of the pass; what was measured is
    forgotten in favour of that, so a moment in which everything was slow does not end drafts for good.
    """

    def __init__(self) -> None:
        self._weight = self._positions = self._seconds = 0.0  # sums
        self._squares = self._products = 0.0

    def add(self, positions: int, seconds: float) -> None:
        self._weight = self._weight * OLDER_WEIGHT + 1
        self._positions = self._positions * OLDER_WEIGHT + positions
        self._seconds = self._seconds * OLDER_WEIGHT + seconds
        self._squares = self._squares * OLDER_WEIGHT + positions**2
        self._products = self._products * OLDER_WEIGHT + positions * seconds

    def marginal_share(self, texts: int) -> float:
        if not self._seconds:
            return texts / (1 + texts)
        positions, seconds = self._positions / self._weight, self._seconds / self._weight
        variance = self._squares / self._weight - positions**2
        covariance = self._products / self._weight - positions * seconds
        assumed = seconds / (1 + positions)
        each = max(0.0, (covariance + PRIOR_WEIGHT * assumed) / (variance + PRIOR_WEIGHT))
        whole = seconds + each * (texts - positions)
        return each * texts / whole if whole > 0 else 1.0


class BatchDrafts:
    """What is drafted for each text of a batch, and what became of it."""

    shares_with_sampler = True
    reads: frozenset[str] = frozenset()

    def __init__(self, longest: int = LONGEST_DRAFT, cost: PassCost | None = None) -> None:
        self.cost: PassCost = MeasuredCost() if cost is None else cost
        self.drafted_tokens = 0
        self.accepted_tokens = 0
        self._longest = longest
        self._forecasts: dict[int, LookupForecast] = {}  # by the identity of a policy

    def plan(self, lanes: Mapping[int, Lane]) -> dict[int, list[int]]:
        """The drafts that are worth a place in the next pass, which has a token of each of these texts."""
        share = self.cost.marginal_share(len(lanes))
        if share > HIGHEST_SHARE:
            return {}
        drafts = {}
        for key, lane in lanes.items():
            if lane.policy.source is not None or not (room := lane.draft_room):
                continue
            forecast = self._forecasts.get(key)
            if forecast is None:
                forecast = self._forecasts[key] = LookupForecast(lane.policy.history)
            forecast.update()
            count = min(worthwhile_length(forecast.accuracy, share), self._longest, room)
            if draft := [*before_end(forecast.draft(count), lane.policy.settings.eos)]:
                drafts[key] = draft
                self.drafted_tokens += len(draft)
        return drafts

    def add_pass(self, positions: int, seconds: float) -> None:
        self.cost.add(positions, seconds)

    def observe(self, policy: Policy, start: int, values: Mapping[str, Any]) -> None:
        """Nothing: it reads no sites."""

    def follow(self, first: Policy, other: Policy) -> None:
        """Nothing: each text is looked at by itself."""

    def forget(self, policy: Policy) -> None:
        self._forecasts.pop(id(policy), None)


def worthwhile_length(accuracy: float, share: float) -> int:
    """The length of a draft whose last token is still accepted often enough.

    >>> worthwhile_length(0.9, 0.5), worthwhile_length(0.9, 0.95), worthwhile_length(0.0, 0.5)
    (6, 0, 0)
    """
    accuracy = min(accuracy, HIGHEST_ACCURACY)
    if accuracy <= share:
        return 0
    return int(math.log(max(share, 1e-9)) / math.log(accuracy))
