"""What was read is not read again: an executor that keeps the memory of rows that were closed.

A conversation is sent anew at each turn, and begins as it did before. So a new row takes over what a closed one remembers of
the same beginning, and only the rest is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from glassformer.engine.protocol import Description, Executor, Feed, Row, Scores, Want
from glassformer.runtime import Model

MOST = 2  # closed rows that are kept: a text's, and that of the negative prompt where one guides it


@dataclass(frozen=True)
class Kept:
    """An `Executor` around another."""

    executor: Executor
    held: dict[Row, list[int]] = field(default_factory=dict)  # the tokens that open rows remember, where that is known
    left: list[tuple[Row, list[int]]] = field(default_factory=list)  # rows that were closed, newest first

    @property
    def context(self) -> int:
        return self.executor.context

    def known(self, ids: Sequence[int]) -> int:
        """How many tokens of a prompt need not be read again; its last one is, for the scores after it."""
        return max((alike(held, ids[:-1]) for _, held in self.left), default=0)

    def open(self, source: Sequence[int] | None = None) -> Row:
        row = self.executor.open(source)
        if source is None:
            self.held[row] = []
        return row

    def run(self, feeds: Sequence[Feed]) -> Sequence[Scores]:
        feeds = [self._shortened(feed) for feed in feeds]
        before = [self.held.pop(feed.row, None) for feed in feeds]  # unknown, should the pass break off
        found = self.executor.run(feeds)
        for feed, held in zip(feeds, before, strict=True):
            if held is not None and _plain(feed):
                held.extend(feed.ids)
                self.held[feed.row] = held
        return found

    def _shortened(self, feed: Feed) -> Feed:
        """A new row's first feed, without what a closed row remembers."""
        length = self.known(feed.ids)
        if not length or self.held.get(feed.row) != [] or not _plain(feed) or feed.want is Want.ALL:
            return feed
        old, held = max(self.left, key=lambda one: alike(one[1], feed.ids[:-1]))
        self.left.remove((old, held))
        self.executor.select([feed.row, old], [1, 1])
        self.executor.close(old)
        length = self.executor.rewind(feed.row, length)
        self.held[feed.row] = list(feed.ids[:length])
        return replace(feed, ids=feed.ids[length:])

    def fork(self, row: Row, length: int | None = None) -> Row:
        other = self.executor.fork(row, length)
        if (held := self.held.get(row)) is not None:
            self.held[other] = held[: other.length]
        return other

    def select(self, rows: Sequence[Row], parents: Sequence[int]) -> None:
        before = [self.held.pop(row, None) for row in rows]
        self.executor.select(rows, parents)
        for row, parent in zip(rows, parents, strict=True):
            if (held := before[parent]) is not None:
                self.held[row] = list(held)

    def rewind(self, row: Row, length: int) -> int:
        length = self.executor.rewind(row, length)
        if (held := self.held.get(row)) is not None:
            del held[length:]
        return length

    def close(self, row: Row) -> None:
        held = self.held.pop(row, None)
        if held:
            self.left.insert(0, (row, held))
        else:
            self.executor.close(row)
        while len(self.left) > MOST:
            self.executor.close(self.left.pop()[0])

    def unembed(self, states: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return self.executor.unembed(states)

    def describe(self) -> Description:
        return self.executor.describe()


def _plain(feed: Feed) -> bool:
    """Whether what a row remembers afterwards follows from its tokens alone."""
    return feed.parents is None and (feed.watch is None or not feed.watch.changes)


def alike(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two begin with alike.

    >>> alike([1, 2, 3], [1, 2, 4, 5])
    2
    """
    length = min(len(one), len(other))
    return next((at for at in range(length) if one[at] != other[at]), length)


class Keeping(Model):
    """A loaded model that keeps what it read; it shares all else with the one that was given."""

    def __init__(self, model: Model) -> None:
        vars(self).update(vars(model))

    @cached_property
    def kept(self) -> Kept:
        return Kept(super().executor)

    @property
    def executor(self) -> Executor:
        return self.kept
