"""Rows that are read anew when RoPE's frequencies change for tokens that they have read already.

Longrope has two lists of factors: one for texts up to the trained length, another for longer ones. What a row holds was
computed with one of them; the keys and values of deeper layers depend on it too. So a row that grows beyond the switch, or
is rewound to before it, is read again from its first token. For that a row keeps what it was fed up to the switch; models
without one keep nothing. For every executor.

`dynamic` has other frequencies with every token: there a row goes on from what it holds, as in the reference.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, Protocol

from glassformer.engine.protocol import NOT_CHOSEN, BlockInput, ChosenTokens, Feed, Row, Want, read_length
from glassformer.ground.changes import Change, FunctionChange, parts_of
from glassformer.ground.sites import Watch
from glassformer.ops.rope import Rope


@dataclass
class ReadTokens:
    """Tokens that a row has read, from a position on, and how."""

    start: int
    ids: list[int]
    parents: Sequence[int] | None
    changes: Mapping[str, Change]
    vectors: Any
    begin: BlockInput | None

    @classmethod
    def of(cls, feed: Feed, start: int) -> ReadTokens:
        changes = {} if feed.watch is None else feed.watch.changes
        return cls(start, list(feed.ids), feed.parents, changes, feed.vectors, feed.begin)

    def first(self, length: int) -> ReadTokens:
        """Those that are among a row's first `length` tokens."""
        count = length - self.start
        parents = None if self.parents is None else self.parents[:count]
        vectors = None if self.vectors is None else self.vectors[:count]
        begin = None if self.begin is None else self.begin._replace(states=self.begin.states[:count])
        return ReadTokens(self.start, self.ids[:count], parents, self.changes, vectors, begin)

    def after(self, length: int) -> ReadTokens:
        """Those that come after a row's first `length` tokens."""
        first = max(0, length - self.start)
        if not first:
            return self
        vectors = None if self.vectors is None else self.vectors[first:]
        return replace(self, start=length, ids=self.ids[first:], parents=None, vectors=vectors)

    def is_continued_by(self, other: ReadTokens) -> bool:
        """Whether one pass over both gives what a pass over each gave."""
        if any(part is not None for tokens in (self, other) for part in (tokens.parents, tokens.vectors, tokens.begin)):
            return False
        return self.changes.keys() == other.changes.keys() and all(
            change is other.changes[site] and _is_same_in_every_pass(site, change) for site, change in self.changes.items()
        )

    def feed(self, row: Row, text_length: int) -> Feed:
        """A feed of these tokens, for a row of a text of `text_length` tokens."""
        watch = Watch(changes=self.changes) if self.changes else None
        return Feed(row, self.ids, Want.NONE, self.parents, watch, self.vectors, self.begin, text_length)


def _is_same_in_every_pass(site: str, change: Change) -> bool:
    """Whether what a change does to a token does not depend on where its pass begins and ends."""
    return not site.endswith(".pattern") and all(
        not isinstance(part, FunctionChange)
        and (
            part.positions is None
            or (not isinstance(part.positions, slice) and all(position >= 0 for position in part.positions))
        )
        for part in parts_of(change)
    )


@dataclass
class RowHistory:
    """What a row was fed."""

    kept: int  # a position: what begins from there on is not kept, since it is never read anew
    tokens: list[ReadTokens] = field(default_factory=list)
    side: int | None = 0  # how many switches lie before the length that it was read for; None: it must be read anew
    last_chosen: int = 0  # by the executor, and not fed yet

    def fork(self, length: int) -> RowHistory:
        """The history of a row with the first `length` tokens."""
        return RowHistory(self.kept, [part.first(length) for part in self.tokens if part.start < length], self.side)

    def add(self, feed: Feed, start: int) -> None:
        if start >= self.kept:
            return
        new = ReadTokens.of(feed, start)
        if self.tokens and self.tokens[-1].is_continued_by(new):
            self.tokens[-1].ids += new.ids
        else:
            self.tokens.append(new)


def forked(history: RowHistory | None, length: int) -> RowHistory | None:
    """The history of a row with the first `length` tokens, where rows have one."""
    return None if history is None else history.fork(length)


class HasHistory(Protocol):
    length: int
    history: RowHistory | None


class RereadRows:
    """The part of an executor that reads rows anew, where its model needs it."""

    _length_ropes: tuple[Rope, ...] = ()  # whose frequencies depend on the length
    _switches: tuple[int, ...] = ()

    def _set_ropes(self, ropes: Iterable[Rope]) -> None:
        self._length_ropes = tuple(rope for rope in ropes if rope.depends_on_length)
        self._switches = tuple(sorted({rope.switch for rope in self._length_ropes if rope.switch is not None}))

    def same_frequencies(self, length: int) -> int:
        """How many tokens can follow a text of this length without other frequencies."""
        rooms = (rope.same_frequencies(length) for rope in self._length_ropes)
        return min((room for room in rooms if room is not None), default=sys.maxsize)

    def _run_feeds(self, feeds: Sequence[Feed], rows: Sequence[Any]) -> Any:
        """The executor's own passes, over feeds that have been checked."""
        raise NotImplementedError

    def _new_history(self) -> RowHistory | None:
        return RowHistory(self._switches[-1]) if self._switches else None

    def _side(self, length: int) -> int:
        return sum(length > switch for switch in self._switches)

    def _keeps_history(self) -> bool:
        """Whether rows keep what they were fed."""
        return bool(self._switches)

    def _begin_again(self, row: HasHistory) -> None:
        """Let a row be read from its first token."""
        row.length = 0

    def _run_feeds_of(self, feeds: Sequence[Feed], rows: Sequence[Any]) -> Any:
        """Passes over feeds, for rows that hold all that stands before them."""
        return self._run_feeds(feeds, rows)

    def _run_rows(self, feeds: Sequence[Feed], rows: Sequence[HasHistory]) -> Any:
        """Passes over feeds; before them, rows are read anew that need it."""
        if not self._keeps_history():
            return self._run_feeds(feeds, rows)
        starts = [row.length - (0 if feed.begin is None else len(feed.ids)) for feed, row in zip(feeds, rows, strict=True)]
        lengths = [read_length(feed, start) for feed, start in zip(feeds, starts, strict=True)]
        self._read_anew(rows, lengths)
        scores = self._run_feeds_of(feeds, rows)
        for feed, row, start, length in zip(feeds, rows, starts, lengths, strict=True):
            self._record(row, feed, start, length)
        return scores

    def _record(self, row: HasHistory, feed: Feed, start: int, length: int) -> None:
        """Keep what a row was fed from a position on, as part of a text of `length` tokens."""
        if row.history is not None:
            row.history.add(feed, start)
            row.history.side = self._side(length)

    def _read_anew(self, rows: Sequence[HasHistory], lengths: Sequence[int]) -> None:
        """Read those rows again that have other frequencies when their texts are so long."""
        stale = [
            (row, row.history, length)
            for row, length in zip(rows, lengths, strict=True)
            if row.history is not None and row.length and row.history.side != self._side(length)
        ]
        before = [row.length for row, _, _ in stale]
        try:
            for row, history, _ in stale:
                history.side = None
                self._begin_again(row)
            for parts in zip_longest(*(history.tokens for _, history, _ in stale)):
                again: list[tuple[Any, ReadTokens, int]] = [
                    (row, part, length) for (row, _, length), part in zip(stale, parts, strict=True) if part is not None
                ]
                self._run_feeds_of([part.feed(row, length) for row, part, length in again], [row for row, _, _ in again])
            for _, history, length in stale:
                history.side = self._side(length)
        finally:
            for (row, _, _), length in zip(stale, before, strict=True):
                row.length = length

    def _begin_steps(self, rows: Sequence[HasHistory], tokens: Sequence[int | None], count: int) -> list[RowSteps]:
        """Before the executor feeds rows their tokens, and then `count` - 1 that it chooses itself."""
        if not self._keeps_history():
            return [RowSteps(row, None, 0, 0, count) for row in rows]
        known = [row for row, token in zip(rows, tokens, strict=True) if token is not None]
        self._read_anew(known, [row.length + 1 for row in known])
        return [
            RowSteps(row, row.history, row.length, token, self._steps_before_switch(row, count))
            for row, token in zip(rows, tokens, strict=True)
        ]

    def _steps_before_switch(self, row: HasHistory, count: int) -> int:
        """How many of a row's next `count` tokens, one in each pass, have the frequencies that the row was read with."""
        if row.history is None:
            return count
        if not row.length:
            row.history.side = self._side(1)
        if row.history.side != self._side(row.length + 1):
            return 0
        return min(
            (switch - row.length for switch in self._switches if row.length < switch < row.length + count), default=count
        )


@dataclass(frozen=True)
class RowSteps:
    """Tokens that an executor chooses for a row, one in each pass."""

    row: HasHistory
    history: RowHistory | None
    start: int  # the row's length before
    token: int | None  # that is fed first; None: the one that was chosen last
    count: int  # how many are chosen with the frequencies that belong to the row

    def take(self, chosen: ChosenTokens) -> ChosenTokens:
        """The tokens, less those from the switch on, which a driver chooses."""
        history, ids = self.history, list(chosen.ids[: self.count])
        if history is None:
            return chosen
        if ids and self.row.history is history:  # it was not rewound before they were known
            first = history.last_chosen if self.token is None else self.token
            history.add(Feed(self.row, (first, *ids[:-1])), self.start)
            history.last_chosen = ids[-1]
        return replace(chosen, ids=ids + [NOT_CHOSEN] * (len(chosen.ids) - len(ids)))
