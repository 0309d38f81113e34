"""A prefix cache: a text is read from where it parts from a recent one.

In a conversation each turn begins with all turns before it, so that only the new tokens go through the model. Drivers open
and close rows as usual: a few closed rows are kept, and a new row takes over the one with the longest common prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from glassformer.engine.checks import ROW_NOT_OPEN, locked
from glassformer.engine.protocol import (
    AheadDecoder,
    AheadFunctions,
    Choice,
    ChosenTokens,
    Description,
    Executor,
    Feed,
    Row,
    Scores,
    Want,
    ahead_decoder,
    common_prefix,
)  # fmt: skip
from glassformer.errors import ExecutorError
from glassformer.fork_safe_lock import ForkSafeLock


@dataclass(eq=False)
class CachedRow:
    """A row, and the tokens that are in it."""

    inner: Row | None  # None before its first feed
    ids: list[int] = field(default_factory=list)
    reusable: bool = True  # its cache follows from `ids` alone: no tree, no change, no encoder
    open: bool = True

    @property
    def length(self) -> int:
        return 0 if self.inner is None else self.inner.length


class PrefixCache:
    """An `Executor` over another."""

    def __init__(self, executor: Executor, rows: int = 2) -> None:
        """`rows`: closed ones that are kept; two, for a text and the negative prompt that guides it."""
        self.executor = executor
        self.context = executor.context
        self.reused_tokens = 0  # that were not computed again
        self._rows = rows
        self._closed_rows: list[CachedRow] = []  # oldest first
        self._lock = ForkSafeLock(outer=True)

    @locked
    def open(self, source: Sequence[int] | None = None) -> CachedRow:
        return CachedRow(None) if source is None else CachedRow(self.executor.open(source), reusable=False)

    @locked
    def run(self, feeds: Sequence[Feed]) -> Sequence[Scores]:
        rows = [self._open_row(feed.row) for feed in feeds]
        new = [
            self._without_cached_prefix(feed, row) if row.inner is None else feed
            for feed, row in zip(feeds, rows, strict=True)
        ]
        before = [row.reusable for row in rows]
        for row in rows:
            row.reusable = False  # in case the pass fails half-way
        scores = self.executor.run([replace(feed, row=self._inner(row)) for feed, row in zip(new, rows, strict=True)])
        for feed, row, reusable in zip(new, rows, before, strict=True):
            row.ids.extend(feed.ids)
            row.reusable = reusable and _is_reusable(feed)
        return scores

    @property
    def decode_ahead(self) -> AheadDecoder | None:
        decoder = ahead_decoder(self.executor)
        return None if decoder is None else AheadFunctions(decoder.knows, partial(self._decode_ahead, decoder))

    @locked
    def _decode_ahead(
        self, decode: AheadDecoder, rows: Sequence[Row], tokens: Sequence[int], choices: Sequence[Choice],
        draws: npt.NDArray[np.float64],
    ) -> Sequence[ChosenTokens]:  # fmt: skip
        cached = [self._open_row(row) for row in rows]
        before = [row.reusable for row in cached]
        for row in cached:
            row.reusable = False
        texts = decode([self._inner(row) for row in cached], tokens, choices, draws)
        for row, reusable, token, chosen in zip(cached, before, tokens, texts, strict=True):
            row.ids.extend((token, *chosen.ids[:-1]))
            row.reusable = reusable
        return texts

    def cached_length(self, ids: Sequence[int]) -> int:
        """How many tokens of a prompt need not be computed again; its last one must be, for the scores after it."""
        return max((common_prefix(kept.ids, ids[:-1]) for kept in self._closed_rows), default=0)

    def _without_cached_prefix(self, feed: Feed, row: CachedRow) -> Feed:
        """A row's first feed, less the prefix that a kept row has of it."""
        best, length = None, 0
        if _is_reusable(feed) and feed.watch is None and feed.want is not Want.ALL:
            length = self.cached_length(feed.ids)
            best = next(
                (kept for kept in self._closed_rows if length and common_prefix(kept.ids, feed.ids[:-1]) == length), None
            )
        if best is None or best.inner is None:
            row.inner = self.executor.open()
            return feed
        self._closed_rows.remove(best)
        row.inner, length = best.inner, self.executor.rewind(best.inner, length)
        row.ids = list(feed.ids[:length])
        self.reused_tokens += length
        return replace(feed, ids=feed.ids[length:])

    @locked
    def fork(self, row: Row, length: int | None = None) -> CachedRow:
        parent = self._open_row(row)
        inner = None if parent.inner is None else self.executor.fork(parent.inner, length)
        return CachedRow(inner, parent.ids[:length], parent.reusable)

    @locked
    def select(self, rows: Sequence[Row], parents: Sequence[int]) -> None:
        targets = [self._open_row(row) for row in rows]
        states = [(list(targets[parent].ids), targets[parent].reusable) for parent in parents]
        self.executor.select([self._inner(row) for row in targets], parents)
        for row, state in zip(targets, states, strict=True):
            row.ids, row.reusable = state

    @locked
    def rewind(self, row: Row, length: int) -> int:
        cached = self._open_row(row)
        remaining = 0 if cached.inner is None else self.executor.rewind(cached.inner, length)
        del cached.ids[remaining:]
        return remaining

    @locked
    def close(self, row: Row) -> None:
        closing = self._open_row(row)
        closing.open = False
        if closing.inner is None:
            return
        if not closing.reusable or not closing.ids:
            self.executor.close(closing.inner)
            return
        self._closed_rows.append(closing)
        while len(self._closed_rows) > self._rows:
            self.executor.close(self._inner(self._closed_rows.pop(0)))

    @locked
    def clear(self) -> None:
        """Release all kept rows."""
        while self._closed_rows:
            self.executor.close(self._inner(self._closed_rows.pop()))

    def unembed(self, states: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return self.executor.unembed(states)

    def describe(self) -> Description:
        return self.executor.describe()

    @staticmethod
    def _open_row(row: Row) -> CachedRow:
        if not isinstance(row, CachedRow) or not row.open:
            raise ExecutorError(ROW_NOT_OPEN)
        return row

    @staticmethod
    def _inner(row: CachedRow) -> Row:
        assert row.inner is not None
        return row.inner


def _is_reusable(feed: Feed) -> bool:
    """Whether a row's cache afterwards follows from its tokens alone."""
    return feed.parents is None and (feed.watch is None or not feed.watch.changes)
