"""A prefix cache: a text is read from where it parts from another.

In a conversation each turn begins with all turns before it, and the texts of many clients often begin with the same
instructions; so only the new tokens go through the model. Drivers open and close rows as usual: closed rows are kept, the
latest of them, and a new row begins with the longest prefix that any row has, an open one too. Rows that lie in pages
share them.

Where a row keeps a state, which cannot be cut at a position, a prompt's last tokens are read in a pass of their own: the row
has a snapshot before them. So the same prompt begins there again, and so does the next turn of a conversation, whose text
parts from this one's where the answer begins.

Who is answered sooner, or is told how much was cached, learns what others have read. So a row has a salt, whatever says
whose it is, and shares its beginning with rows of the same salt alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from glassformer.engine.checks import locked, open_row
from glassformer.engine.prefix_tree import BLOCK, PrefixTree
from glassformer.engine.protocol import (
    Capabilities,
    Choice,
    ChosenTokens,
    Decode,
    Description,
    DeviceSampler,
    Draws,
    Enqueue,
    Executor,
    Feed,
    Logits,
    Row,
    Want,
)  # fmt: skip
from glassformer.engine.row_states import MERGED
from glassformer.ground.ownership import ForkSafeLock, NotCopied


@dataclass(eq=False)
class CachedRow:
    """A row, and the tokens that are in it."""

    inner: Row | None  # None before its first feed
    salt: Hashable = None  # whose it is
    ids: list[int] = field(default_factory=list)
    reusable: bool = True  # its cache follows from `ids` alone: no tree, no change, no encoder
    open: bool = True
    read: int = 0  # tokens at its beginning that were read as a prompt
    indexed: tuple[int, ...] = ()  # the ids under which others find it
    last_chosen: int = 0  # by the executor, and not fed yet
    rewinds: int = 0  # how often it was rewound

    @property
    def length(self) -> int:
        return 0 if self.inner is None else self.inner.length


class PrefixCache(NotCopied):
    """An `Executor` over another."""

    def __init__(self, executor: Executor, rows: int = 2, tokens: int | None = None) -> None:
        """`rows`: closed ones that are kept; two, for a text and the negative prompt that guides it. `tokens`: at most so
        many in all rows; beginnings that they share count once. What a closed row has beside its tokens counts as tokens."""
        self.executor = executor
        self.context = executor.context
        self.reused_tokens = 0  # that were not computed again
        self._min_prefill_tokens = executor.capabilities.min_prefill_tokens
        self._resumes_at = executor.capabilities.resumes_at
        self._tokens_per_row = executor.describe().tokens_per_row
        self._rows = rows
        self._tokens = tokens
        self._index: PrefixTree[CachedRow] = PrefixTree()  # of rows that have read something, open or closed
        self._closed_rows: dict[int, CachedRow] = {}  # by identity, oldest first
        self._lock = ForkSafeLock(outer=True)

    @locked
    def open(self, source: Sequence[int] | None = None, salt: Hashable = None) -> CachedRow:
        return CachedRow(None, salt) if source is None else CachedRow(self.executor.open(source), salt, reusable=False)

    @locked
    def run(self, feeds: Sequence[Feed]) -> Sequence[Logits]:
        rows = [self._open_row(feed.row) for feed in feeds]
        new = [self._without_cached_prefix(feed, row) for feed, row in zip(feeds, rows, strict=True)]
        before = [row.reusable for row in rows]
        for row in rows:
            row.reusable = False  # in case the pass fails half-way
        logits = self._run_inner(
            [
                Feed(self._inner(row), feed.ids, feed.want, feed.parents, feed.watch, None, feed.begin, feed.text_length)
                for feed, row in zip(new, rows, strict=True)
            ]
        )
        for feed, row, reusable in zip(new, rows, before, strict=True):
            if feed.begin is not None:
                continue  # the same tokens, computed from other states
            if row.read == len(row.ids) and len(feed.ids) >= self._min_prefill_tokens:
                row.read += len(feed.ids)
            row.ids.extend(feed.ids)
            row.reusable = reusable and _is_reusable(feed)
            # A prompt, which others may share. Single tokens are found when the row is closed; a draft may be dropped again.
            if len(feed.ids) >= BLOCK and feed.want is not Want.ALL:
                self._add_to_index(row)
        return logits

    def _run_inner(self, feeds: Sequence[Feed]) -> Sequence[Logits]:
        """Feeds of the executor's rows; prompts of rows that keep a state in two passes."""
        tail = max(MERGED, self._min_prefill_tokens)
        cut = [
            index
            for index, feed in enumerate(feeds)
            if self._tokens_per_row and feed.want is Want.LAST and feed.watch is None and feed.parents is None
            and feed.begin is None and len(feed.ids) > 2 * tail
        ]  # fmt: skip
        if not cut:
            return self.executor.run(feeds)
        lengths = [feeds[index].row.length for index in cut]
        parts = list(feeds)
        for index, start in zip(cut, lengths, strict=True):
            feed = feeds[index]
            parts[index] = replace(feed, text_length=max(feed.text_length, start + len(feed.ids)))
        self.executor.run([replace(parts[index], ids=parts[index].ids[:-tail], want=Want.NONE) for index in cut])
        for index in cut:
            parts[index] = replace(parts[index], ids=parts[index].ids[-tail:])
        try:
            return self.executor.run(parts)
        except BaseException:  # a pass that fails leaves rows as long as they were
            for index, start in zip(cut, lengths, strict=True):
                self.executor.rewind(feeds[index].row, start)
            raise

    @property
    def capabilities(self) -> Capabilities:
        inner = self.executor.capabilities
        sampler = None if inner.sampler is None else self._sampler(inner.sampler)
        return replace(inner, sampler=sampler, prefix_cache=self, export_kv=None)

    def _sampler(self, inner: DeviceSampler) -> DeviceSampler:
        """The executor's sampler over rows of this cache."""
        enqueue = None if inner.enqueue is None else partial(self._enqueue, inner.enqueue)
        return replace(inner, decode=partial(self._decode, inner.decode), enqueue=enqueue)

    @locked
    def _decode(
        self, decode: Decode, rows: Sequence[Row], tokens: Sequence[int], choices: Sequence[Choice], draws: Draws
    ) -> Sequence[ChosenTokens]:
        cached = self._with_inner(rows)
        before = [row.reusable for row in cached]
        for row in cached:
            row.reusable = False
        texts = decode([self._inner(row) for row in cached], tokens, choices, draws)
        for row, reusable, token, chosen in zip(cached, before, tokens, texts, strict=True):
            self._extend(row, token, chosen)
            row.reusable = reusable
        return texts

    @locked
    def _enqueue(
        self, enqueue: Enqueue, rows: Sequence[Row], tokens: Sequence[int | None], choices: Sequence[Choice], draws: Draws
    ) -> Callable[[], Sequence[ChosenTokens]]:
        cached = self._with_inner(rows)
        wait = enqueue([self._inner(row) for row in cached], tokens, choices, draws)
        return partial(self._wait, wait, cached, [row.rewinds for row in cached], tokens)

    @locked
    def _wait(
        self, wait: Callable[[], Sequence[ChosenTokens]], rows: Sequence[CachedRow], rewinds: Sequence[int],
        tokens: Sequence[int | None],
    ) -> Sequence[ChosenTokens]:  # fmt: skip
        """The tokens of queued steps; rows that were rewound or closed meanwhile do not have them."""
        texts = wait()
        for row, before, token, chosen in zip(rows, rewinds, tokens, texts, strict=True):
            if row.open and row.rewinds == before:
                self._extend(row, row.last_chosen if token is None else token, chosen)
        return texts

    def _with_inner(self, rows: Sequence[Row]) -> list[CachedRow]:
        cached = [self._open_row(row) for row in rows]
        for row in cached:
            row.inner = self.executor.open() if row.inner is None else row.inner  # a prompt of one token
        return cached

    def _extend(self, row: CachedRow, token: int, chosen: ChosenTokens) -> None:
        """Add the token that was fed, and those that were chosen and fed then."""
        row.ids.extend((token, *chosen.ids[:-1]))
        row.last_chosen = chosen.ids[-1]
        row.read = len(row.ids) if self._min_prefill_tokens == 1 else row.read

    def cached_length(self, ids: Sequence[int], salt: Hashable = None) -> int:
        """How many tokens of a prompt need not be computed again; its last one must be, for the logits after it."""
        return self._longest(ids, salt)[1]

    def _longest(self, ids: Sequence[int], salt: Hashable) -> tuple[CachedRow | None, int]:
        """The row that has most of a prompt, and how much of it can be used: what is left must be read as a prompt is."""
        row, length = self._index.longest(ids[:-1], salt)
        length = min(length, len(ids) - self._min_prefill_tokens)
        if row is not None and row.inner is not None and length > 0:
            length = self._resumes_at(row.inner, length)
        return (row, length) if length > 0 else (None, 0)

    @locked
    def reuse_prefix(self, row: Row, ids: Sequence[int]) -> int:
        """Let an empty row begin with what is cached of a prompt: the number of tokens that it holds then."""
        return self._begin_with_cached(self._open_row(row), ids)

    def _begin_with_cached(self, new: CachedRow, ids: Sequence[int]) -> int:
        if new.inner is not None or not new.reusable:
            return new.length
        other, length = self._longest(ids, new.salt)
        if other is None or other.inner is None:
            new.inner = self.executor.open()
            return 0
        if not other.open and length == other.read == other.length:  # all of it: nobody else has a use for the old row
            self._forget(other)
            new.inner = other.inner
        else:
            new.inner = self.executor.fork(other.inner, length)
        new.ids, new.read = list(ids[:length]), length
        self._add_to_index(new)
        self.reused_tokens += length
        return length

    def _without_cached_prefix(self, feed: Feed, row: CachedRow) -> Feed:
        """A row's first feed, less the prefix that is cached of it."""
        if row.inner is not None:
            return feed
        if not _is_reusable(feed) or feed.watch is not None or feed.want is Want.ALL:
            row.inner = self.executor.open()
            return feed
        return replace(feed, ids=feed.ids[self._begin_with_cached(row, feed.ids) :])

    def _add_to_index(self, row: CachedRow) -> None:
        """Let others find a row by all of it that they can use."""
        self._remove_from_index(row)
        if row.reusable and row.read:
            row.indexed = tuple(row.ids[: row.read])
            self._index.add(row.indexed, row, row.salt)

    def _remove_from_index(self, row: CachedRow) -> None:
        if row.indexed:
            self._index.remove(row.indexed, row, row.salt)
            row.indexed = ()

    def _forget(self, row: CachedRow) -> None:
        self._remove_from_index(row)
        self._closed_rows.pop(id(row), None)

    @locked
    def fork(self, row: Row, length: int | None = None) -> CachedRow:
        parent = self._open_row(row)
        inner = None if parent.inner is None else self.executor.fork(parent.inner, length)
        ids = parent.ids[:length]
        return CachedRow(inner, parent.salt, ids, parent.reusable, read=min(parent.read, len(ids)))

    @locked
    def select(self, rows: Sequence[Row], parents: Sequence[int]) -> None:
        targets = [self._open_row(row) for row in rows]
        states = [(list(row.ids), row.reusable, row.read) for row in (targets[parent] for parent in parents)]
        self.executor.select([self._inner(row) for row in targets], parents)
        for row, state in zip(targets, states, strict=True):
            self._remove_from_index(row)
            row.ids, row.reusable, row.read = state

    @locked
    def rewind(self, row: Row, length: int) -> int:
        cached = self._open_row(row)
        remaining = 0 if cached.inner is None else self.executor.rewind(cached.inner, length)
        if remaining < len(cached.indexed):
            self._remove_from_index(cached)
        del cached.ids[remaining:]
        cached.read = min(cached.read, remaining)
        cached.rewinds += 1
        return remaining

    @locked
    def close(self, row: Row) -> None:
        closing = self._open_row(row)
        closing.open = False
        self._remove_from_index(closing)
        if closing.inner is None:
            return
        if not closing.reusable or not closing.read:
            self.executor.close(closing.inner)
            return
        other, common = self._index.longest(closing.ids[: closing.read], closing.salt)
        if other is not None and not other.open:
            if common == closing.read:  # the other one holds all of it
                self.executor.close(closing.inner)
                self._closed_rows[id(other)] = self._closed_rows.pop(id(other))
                return
            if common == other.read:
                self._close_kept(other)
        self._closed_rows[id(closing)] = closing
        self._add_to_index(closing)
        while self._closed_rows and self._too_many():
            self._close_kept(next(iter(self._closed_rows.values())))

    def _too_many(self) -> bool:
        held = self._index.tokens + self._tokens_per_row * len(self._closed_rows)
        return len(self._closed_rows) > self._rows or (self._tokens is not None and held > self._tokens)

    def _close_kept(self, row: CachedRow) -> None:
        self._forget(row)
        self.executor.close(self._inner(row))

    @locked
    def clear(self) -> None:
        """Release all kept rows."""
        while self._closed_rows:
            self._close_kept(next(iter(self._closed_rows.values())))

    def unembed(self, states: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return self.executor.unembed(states)

    def describe(self) -> Description:
        return self.executor.describe()

    @staticmethod
    def _open_row(row: Row) -> CachedRow:
        return open_row(row, CachedRow)

    @staticmethod
    def _inner(row: CachedRow) -> Row:
        assert row.inner is not None
        return row.inner


def _is_reusable(feed: Feed) -> bool:
    """Whether a row's cache afterwards follows from its tokens alone."""
    return feed.parents is None and (feed.watch is None or not feed.watch.changes)
