"""Executors around another one: the same model and rows, with something done to every pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from glassformer.engine.protocol import (
    AheadDecoder,
    Description,
    Executor,
    Feed,
    PrefixCaching,
    Row,
    Scores,
    Want,
    ahead_decoder,
    begins_at_blocks,
    least_prompt,
    max_ahead,
    prefix_caching,
    read_length,
    same_frequencies,
)  # fmt: skip
from glassformer.ground.progress import Progress

CHUNK = 256  # tokens of a prompt that are read between two reports


@dataclass(frozen=True)
class WrappedExecutor:
    """All that an executor does, done by another one."""

    executor: Executor

    @property
    def context(self) -> int:
        return self.executor.context

    def run(self, feeds: Sequence[Feed]) -> Sequence[Scores]:
        return self.executor.run(feeds)

    @property
    def least_prompt(self) -> int:
        return least_prompt(self.executor)

    @property
    def begins_at_blocks(self) -> bool:
        return begins_at_blocks(self.executor)

    @property
    def max_ahead(self) -> int:
        return max_ahead(self.executor)

    def same_frequencies(self, length: int) -> int:
        return same_frequencies(self.executor, length)

    @property
    def decode_ahead(self) -> AheadDecoder | None:
        return ahead_decoder(self.executor)

    @property
    def prefix_caching(self) -> PrefixCaching | None:
        return prefix_caching(self.executor)

    def open(self, source: Sequence[int] | None = None) -> Row:
        return self.executor.open(source)

    def fork(self, row: Row, length: int | None = None) -> Row:
        return self.executor.fork(row, length)

    def select(self, rows: Sequence[Row], parents: Sequence[int]) -> None:
        self.executor.select(rows, parents)

    def rewind(self, row: Row, length: int) -> int:
        return self.executor.rewind(row, length)

    def close(self, row: Row) -> None:
        self.executor.close(row)

    def unembed(self, states: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return self.executor.unembed(states)

    def describe(self) -> Description:
        return self.executor.describe()


@dataclass(frozen=True)
class ReportingExecutor(WrappedExecutor):
    """An executor that reads a long prompt in chunks, and reports how many of its tokens have been read."""

    progress: Progress

    def run(self, feeds: Sequence[Feed]) -> Sequence[Scores]:
        total = sum(len(feed.ids) for feed in feeds)
        feeds = [self._chunked(feed) if _can_be_cut(feed) else feed for feed in feeds]
        while inner := [feed for feed in feeds if _can_be_cut(feed)]:
            self.executor.run([replace(feed, ids=feed.ids[:CHUNK], want=Want.NONE) for feed in inner])
            feeds = [replace(feed, ids=feed.ids[CHUNK:]) if _can_be_cut(feed) else feed for feed in feeds]
            self.progress(total - sum(len(feed.ids) for feed in feeds), total)
        return self.executor.run(feeds)

    def _chunked(self, feed: Feed) -> Feed:
        """A feed that may be cut, less the prefix that is cached of it."""
        caching, feed = self.prefix_caching, replace(feed, text_length=read_length(feed, feed.row.length))
        if caching is None or feed.row.length:
            return feed
        return replace(feed, ids=feed.ids[caching.reuse_prefix(feed.row, feed.ids) :])


def _can_be_cut(feed: Feed) -> bool:
    """Whether a feed begins with a chunk of which nothing is wanted."""
    plain = feed.parents is None and feed.watch is None and feed.vectors is None and feed.begin is None
    return len(feed.ids) > CHUNK and feed.want is not Want.ALL and plain
