"""Executors around another one: the same model and rows, with something done to every pass.

Drivers (the loop, beams, a draft, a tree, a view) use them like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from glassformer.engine.protocol import Capabilities, Description, Executor, Feed, Logits, Row, Source, Want, read_length
from glassformer.ground.changes import Change
from glassformer.ground.progress import Progress
from glassformer.ground.sites import Watch

CHUNK = 256  # tokens of a prompt that are read between two reports


@dataclass(frozen=True)
class WrappedExecutor:
    """All that an executor does, done by another one."""

    executor: Executor

    @property
    def context(self) -> int:
        return self.executor.context

    @property
    def capabilities(self) -> Capabilities:
        return self.executor.capabilities

    def run(self, feeds: Sequence[Feed]) -> Sequence[Logits]:
        return self.executor.run(feeds)

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
class ChangedExecutor(WrappedExecutor):
    """An executor under a change: the same model, with some of its values zeroed, scaled or replaced in every pass."""

    changes: Mapping[str, Change]  # by site, patterns expanded

    def run(self, feeds: Sequence[Feed]) -> Sequence[Logits]:
        return self.executor.run([replace(feed, watch=self._with_changes(feed.watch)) for feed in feeds])

    @property
    def capabilities(self) -> Capabilities:
        """Every pass is changed, so that none can be left to the executor; and what was read before was not changed."""
        return replace(self.executor.capabilities, sampler=None, prefix_cache=None)

    def _with_changes(self, watch: Watch | None) -> Watch:
        """Where a feed's watch changes the same site, that change wins."""
        return Watch(changes=self.changes) if watch is None else Watch(watch.reads, {**self.changes, **watch.changes})

    def describe(self) -> Description:
        about = self.executor.describe()
        return replace(about, notes=(*about.notes, f"changed: {', '.join(self.changes)}"))


@dataclass(frozen=True)
class GlobalTokensExecutor(WrappedExecutor):
    """An executor of a model whose sources have a global token, also where nobody has chosen any."""

    def open(self, source: Sequence[int] | None = None) -> Row:
        return self.executor.open(source and Source.by_default(source))


@dataclass(frozen=True)
class ReportingExecutor(WrappedExecutor):
    """An executor that reads a long prompt in chunks, and reports how many of its tokens have been read."""

    progress: Progress

    def run(self, feeds: Sequence[Feed]) -> Sequence[Logits]:
        total = sum(len(feed.ids) for feed in feeds)
        feeds = [self._chunked(feed) if _can_be_cut(feed) else feed for feed in feeds]
        while inner := [feed for feed in feeds if _can_be_cut(feed)]:
            self.executor.run([replace(feed, ids=feed.ids[:CHUNK], want=Want.NONE) for feed in inner])
            feeds = [replace(feed, ids=feed.ids[CHUNK:]) if _can_be_cut(feed) else feed for feed in feeds]
            self.progress(total - sum(len(feed.ids) for feed in feeds), total)
        return self.executor.run(feeds)

    def _chunked(self, feed: Feed) -> Feed:
        """A feed that may be cut, less the prefix that is cached of it."""
        cache, feed = self.capabilities.prefix_cache, replace(feed, text_length=read_length(feed, feed.row.length))
        if cache is None or feed.row.length:
            return feed
        return replace(feed, ids=feed.ids[cache.reuse_prefix(feed.row, feed.ids) :])


def _can_be_cut(feed: Feed) -> bool:
    """Whether a feed begins with a chunk of which nothing is wanted."""
    plain = feed.parents is None and feed.watch is None and feed.vectors is None and feed.begin is None
    return len(feed.ids) > CHUNK and feed.want is not Want.ALL and plain
