"""An executor that keeps what it has read: a text that begins like the last one is read from where they part.

In a conversation each turn begins with all turns before it, so that only what is new goes through the model. Drivers open
and close rows as ever: a closed row is kept for a while, and a new row's first tokens are looked for in those.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from glassformer.engine.checks import STRANGE, in_turn
from glassformer.engine.protocol import Description, Executor, Feed, Row, Scores, Want, alike
from glassformer.errors import ExecutorError


@dataclass(eq=False)
class CachedRow:
    """A row, and the tokens that are in it."""

    inner: Row | None  # none before its first tokens come
    ids: list[int] = field(default_factory=list)
    plain: bool = True  # one text, not a tree, and no encoder's: it can be found again
    open: bool = True

    @property
    def length(self) -> int:
        return 0 if self.inner is None else self.inner.length


class PrefixCache:
    """An `Executor` over another."""

    def __init__(self, executor: Executor, rows: int = 2) -> None:
        """`rows`: closed ones that are kept; two are a text's, and that of the negative prompt where one guides it."""
        self.executor = executor
        self.context = executor.context
        self.spared = 0  # tokens that did not have to be read again
        self._rows = rows
        self._kept: list[CachedRow] = []  # closed, the last one last
        self._turn = threading.Lock()

    @in_turn
    def open(self, source: Sequence[int] | None = None) -> CachedRow:
        return CachedRow(None) if source is None else CachedRow(self.executor.open(source), plain=False)

    @in_turn
    def run(self, feeds: Sequence[Feed]) -> Sequence[Scores]:
        rows = [self._mine(feed.row) for feed in feeds]
        inner = [self._begun(feed, row) if row.inner is None else feed for feed, row in zip(feeds, rows, strict=True)]
        laid = [replace(feed, row=self._inner(row)) for feed, row in zip(inner, rows, strict=True)]
        before = [row.plain for row in rows]
        for row in rows:
            row.plain = False  # should the pass break off, nobody knows what is in it
        found = self.executor.run(laid)
        for feed, row, plain in zip(inner, rows, before, strict=True):
            row.ids.extend(feed.ids)
            row.plain = plain and _follows(feed)
        return found

    def known(self, ids: Sequence[int]) -> int:
        """How many tokens of a prompt need not be read again; its last one is, for the scores after it."""
        return max((alike(kept.ids, ids[:-1]) for kept in self._kept), default=0)

    def _begun(self, feed: Feed, row: CachedRow) -> Feed:
        """A row's first feed, less what a kept row holds of it. Its last token is always read: it is to be scored."""
        best, length = None, 0
        if _follows(feed) and feed.watch is None and feed.want is not Want.ALL:
            length = self.known(feed.ids)
            best = next((kept for kept in self._kept if length and alike(kept.ids, feed.ids[:-1]) == length), None)
        if best is None or best.inner is None:
            row.inner = self.executor.open()
            return feed
        self._kept.remove(best)
        row.inner, length = best.inner, self.executor.rewind(best.inner, length)
        row.ids = list(feed.ids[:length])
        self.spared += length
        return replace(feed, ids=feed.ids[length:])

    @in_turn
    def fork(self, row: Row, length: int | None = None) -> CachedRow:
        mine = self._mine(row)
        inner = None if mine.inner is None else self.executor.fork(mine.inner, length)
        return CachedRow(inner, mine.ids[:length], mine.plain)

    @in_turn
    def select(self, rows: Sequence[Row], parents: Sequence[int]) -> None:
        mine = [self._mine(row) for row in rows]
        texts = [list(mine[parent].ids) for parent in parents]
        self.executor.select([self._inner(row) for row in mine], parents)
        for row, text in zip(mine, texts, strict=True):
            row.ids = text

    @in_turn
    def rewind(self, row: Row, length: int) -> int:
        mine = self._mine(row)
        kept = 0 if mine.inner is None else self.executor.rewind(mine.inner, length)
        del mine.ids[kept:]
        return kept

    @in_turn
    def close(self, row: Row) -> None:
        mine = self._mine(row)
        mine.open = False
        if mine.inner is None:
            return
        if not mine.plain or not mine.ids:
            self.executor.close(mine.inner)
            return
        self._kept.append(mine)
        while len(self._kept) > self._rows:
            self.executor.close(self._inner(self._kept.pop(0)))

    @in_turn
    def forget(self) -> None:
        """Give all that is kept back."""
        while self._kept:
            self.executor.close(self._inner(self._kept.pop()))

    def unembed(self, states: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return self.executor.unembed(states)

    def describe(self) -> Description:
        return self.executor.describe()

    @staticmethod
    def _mine(row: Row) -> CachedRow:
        if not isinstance(row, CachedRow) or not row.open:
            raise ExecutorError(STRANGE)
        return row

    @staticmethod
    def _inner(row: CachedRow) -> Row:
        assert row.inner is not None
        return row.inner


def _follows(feed: Feed) -> bool:
    """Whether what a row remembers afterwards follows from its tokens alone."""
    return feed.parents is None and (feed.watch is None or not feed.watch.changes)
