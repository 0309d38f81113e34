"""Prompt lookup: what followed the last few tokens when they came before is what may follow now.

From https://github.com/apoorvumang/prompt-lookup-decoding. Good for texts that quote: summaries, corrections, code.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np

from glassformer.decoding.shortlist import Ids
from glassformer.decoding.token_history import TokenHistory

MATCHED_TOKENS = 3  # the last so many are looked for, or as many of them as came before
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
