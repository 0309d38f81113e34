"""Executors around another one: the same model and rows, with something done to every pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from glassformer.engine.protocol import (
    Description,
    Executor,
    Feed,
    GreedyDecoder,
    Row,
    Scores,
    Want,
    greedy_decoder,
    max_ahead,
)
from glassformer.progress import Progress

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
    def max_ahead(self) -> int:
        return max_ahead(self.executor)

    @property
    def decode_greedily(self) -> GreedyDecoder | None:
        return greedy_decoder(self.executor)

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
    """An executor that reads a long prompt in chunks, and reports how many of its tokens have been read.

    The first chunk takes along what a prefix cache has of the prompt, which is found only as a whole.
    """

    progress: Progress
    cached: int = 0  # tokens at the prompt's beginning

    def run(self, feeds: Sequence[Feed]) -> Sequence[Scores]:
        total, done, size = sum(len(feed.ids) for feed in feeds), 0, self.cached + CHUNK
        while inner := [feed for feed in feeds if _is_longer(feed, size)]:
            self.executor.run([replace(feed, ids=feed.ids[:size], want=Want.NONE) for feed in inner])
            done += size * len(inner)
            self.progress(done, total)
            feeds = [replace(feed, ids=feed.ids[size:]) if _is_longer(feed, size) else feed for feed in feeds]
            size = CHUNK
        return self.executor.run(feeds)


def _is_longer(feed: Feed, size: int) -> bool:
    """Whether a feed begins with a chunk of this size of which nothing is wanted."""
    return len(feed.ids) > size and feed.want is not Want.ALL and feed.parents is None and feed.watch is None
