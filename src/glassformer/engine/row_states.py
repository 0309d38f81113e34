"""The states of rows: what layers that keep a state have after a row's tokens, beside its keys and values.

A state cannot be cut at a position. So a row has snapshots: after prompts, before drafts, and every so many tokens. One that
is rewound, forked at an earlier length, or whose pass failed, goes back to its last snapshot, and before its next pass the
tokens from there on are read again; for that it keeps what it was fed. A token tree is read branch by branch, each by a fork
of the row. Where the effective pattern of such a layer is watched, its whole text goes through one pass. For every executor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from glassformer.blueprints import Blueprint
from glassformer.engine.checks import NOT_SCORED
from glassformer.engine.protocol import Feed, Logits, Row, Want
from glassformer.engine.row_history import RereadRows, RowHistory, RowSteps
from glassformer.ground.candidates import Candidates, top
from glassformer.ground.errors import ExecutorError
from glassformer.ground.sites import axes
from glassformer.ops.recur import Recur

SPACING = 256  # tokens between the snapshots of a long text, unless an executor says otherwise
MOST_SNAPSHOTS = 6  # of a row: the latest ones
MERGED = 16  # tokens at most that are read again in one pass with a draft, and so few that no prompt's end needs a snapshot


class Snapshot(NamedTuple):
    length: int  # of the row then
    memory: Any


@dataclass
class RowState:
    """What the layers of one row have."""

    memory: Any = None  # in an executor's own form; None: nothing was read yet
    length: int | None = 0  # of the text that it belongs to; None: a pass is under way, or has failed
    owned: bool = True  # whether no snapshot and no other row has the same memory
    snapshots: list[Snapshot] = field(default_factory=list)  # oldest first
    prompt: int = 0  # where the latest snapshot in a prompt was taken

    def keep(self, prompt: bool = False) -> None:
        """Take a snapshot, and drop older ones so that the gaps between them double; the latest in a prompt stays."""
        if prompt:
            self.prompt = self.length or 0
        if not self.length or (self.snapshots and self.snapshots[-1].length == self.length):
            return
        newest_first, kept = [Snapshot(self.length, self.memory), *reversed(self.snapshots)], list[Snapshot]()
        for snapshot in newest_first:
            stays = not kept or snapshot.length == self.prompt
            if stays or self.length - snapshot.length >= 2 * (self.length - kept[-1].length):
                kept = kept[: MOST_SNAPSHOTS - 1] if stays else kept
                kept.append(snapshot)
        self.snapshots, self.owned = kept[MOST_SNAPSHOTS - 1 :: -1], False

    @property
    def last_kept(self) -> int:
        return self.snapshots[-1].length if self.snapshots else 0

    def resumes_at(self, length: int) -> int:
        """Where it stands after `go_back`."""
        if self.length is not None and self.length <= length:
            return self.length
        return next((snapshot.length for snapshot in reversed(self.snapshots) if snapshot.length <= length), 0)

    def go_back(self, length: int) -> None:
        """Be as after `length` tokens, or as after the latest snapshot before."""
        while self.snapshots and self.snapshots[-1].length > length:
            self.snapshots.pop()
        if self.length is None or self.length > length:
            last = self.snapshots[-1] if self.snapshots else Snapshot(0, None)
            self.length, self.memory, self.owned = last.length, last.memory, last.memory is None

    def fork(self, length: int) -> RowState:
        """Of a row with the first `length` tokens."""
        self.owned = False
        forked = RowState(self.memory, self.length, False, list(self.snapshots), self.prompt)
        forked.go_back(length)
        return forked

    def writable(self, zeros: Callable[[], Any]) -> Any:
        """Its memory, which a pass may change; `zeros`: that of a row without tokens."""
        if self.memory is None:
            self.memory = zeros()
        elif not self.owned:
            self.memory = self.memory.copy()
        self.owned = True
        return self.memory


class PickedLogits:
    """Some of the positions that were scored, of one feed or of several."""

    def __init__(self, positions: Sequence[tuple[Logits, int]], sites: Mapping[str, Any]) -> None:
        self._positions = positions
        self.sites = sites

    def host(self, index: int = -1) -> npt.NDArray[np.float32]:
        logits, position = self._at(index)
        return logits.host(position)

    def top(self, k: int, index: int = -1) -> Candidates:
        logits, position = self._at(index)
        return logits.top(k, position)

    def _at(self, index: int) -> tuple[Logits, int]:
        if not self._positions:
            raise ExecutorError(NOT_SCORED)
        return self._positions[index]


class StatefulRows(RereadRows):
    """The part of an executor that is about states."""

    _state_size = 0  # numbers; 0: no layer keeps any
    _state_patterns: frozenset[str] = frozenset()  # the sites of effective patterns
    _spacing = SPACING

    def fork(self, row: Row, length: int | None = None) -> Row:
        raise NotImplementedError

    def close(self, row: Row) -> None:
        raise NotImplementedError

    def _set_states(self, blueprint: Blueprint) -> None:
        self._state_size = blueprint.state_size
        self._state_patterns = frozenset(op.inner_site("pattern") for op in blueprint.ops_of(Recur))

    def _new_history(self) -> RowHistory | None:
        return RowHistory(sys.maxsize) if self._state_size else super()._new_history()

    def _new_state(self) -> RowState | None:
        return RowState() if self._state_size else None

    @property
    def _state_bytes(self) -> int:
        """That a row has at most, for its state and its snapshots."""
        return 4 * self._state_size * (1 + MOST_SNAPSHOTS)

    def _resumes_at(self, row: Any, length: int) -> int:
        return length if row.state is None else row.state.resumes_at(length)

    def _keeps_history(self) -> bool:
        return self._state_size > 0 or super()._keeps_history()

    def _begin_again(self, row: Any) -> None:
        super()._begin_again(row)
        if row.state is not None:
            row.state.go_back(0)

    def _run_feeds_of(self, feeds: Sequence[Feed], rows: Sequence[Any]) -> Any:
        if not self._state_size:
            return self._run_feeds(feeds, rows)
        results: list[Any] = [None] * len(feeds)
        chains = [index for index, feed in enumerate(feeds) if feed.parents is None]
        for index, feed in enumerate(feeds):
            if feed.parents is not None:
                results[index] = self._run_tree(feed, feed.parents, rows[index])
        queues = [self._queue(feeds[index], rows[index]) for index in chains]
        lengths = [rows[index].length for index in chains]
        try:
            for index, queue in zip(chains, queues, strict=True):
                rows[index].length = rows[index].state.length if queue.start is None else queue.start
            made = self._run_queues(queues, [rows[index] for index in chains])
        except BaseException:
            for index, length in zip(chains, lengths, strict=True):
                rows[index].state.go_back(length)
                rows[index].length = length
            raise
        for index, queue, logits in zip(chains, queues, made, strict=True):
            results[index] = _last_tokens(logits, feeds[index], queue.again) if queue.again else logits
        return results

    def _run_queues(self, queues: Sequence[_Queue], rows: Sequence[Any]) -> list[Any]:
        """What each row is fed, pass after pass, with snapshots between; the results of the last feeds, all in one pass."""
        longest = max((len(queue.feeds) for queue in queues), default=0)
        results: list[Any] = []
        for turn in range(longest):
            first = [turn + len(queue.feeds) - longest for queue in queues]
            now = [(queue.feeds[place], row) for queue, row, place in zip(queues, rows, first, strict=True) if place >= 0]
            for feed, row in now:
                if _is_draft(feed):
                    row.state.keep()
                row.state.length = None
            results = self._run_feeds([feed for feed, _ in now], [row for _, row in now])
            for feed, row in now:
                row.state.length = row.length
                unkept, prompt = row.length - row.state.last_kept, len(feed.ids) > 1 and not _is_draft(feed)
                if prompt and (feed.want is Want.NONE or unkept > MERGED):
                    row.state.keep(prompt=True)
                elif unkept >= self._spacing:
                    row.state.keep()
        return results

    def _begin_steps(self, rows: Sequence[Any], tokens: Sequence[int | None], count: int) -> list[RowSteps]:
        steps = super()._begin_steps(rows, tokens, count)
        if self._state_size:
            self._catch_up([row for row in rows if row.state.length != row.length])
            for row in rows:
                row.state.length = None
        return steps

    def _end_steps(self, rows: Sequence[Any]) -> None:
        """After rows have been fed what was chosen for them."""
        for row in rows if self._state_size else ():
            row.state.length = row.length
            if row.length - row.state.last_kept >= self._spacing:
                row.state.keep()

    def _catch_up(self, rows: Sequence[Any]) -> None:
        """Let states read the tokens of their rows that they have not read yet."""
        lengths = [row.length for row in rows]
        try:
            queues = []
            for row in rows:
                row.state.go_back(row.length)
                queues.append(_Queue(self._unread(row, row.state.length)))
            for row in rows:
                row.length = row.state.length
            self._run_queues(queues, rows)
        finally:
            for row, length in zip(rows, lengths, strict=True):
                row.length = length

    def _needs_whole_text(self, feed: Feed) -> bool:
        """Whether a feed reads or changes an effective pattern, which is computed in one pass."""
        return feed.watch is not None and bool(self._state_patterns & (feed.watch.reads | set(feed.watch.changes)))

    def _queue(self, feed: Feed, row: Any) -> _Queue:
        """What a row is fed in turn: the tokens that its state has not read yet, and then those of a feed."""
        state: RowState = row.state
        state.go_back(row.length)
        if row.length and self._needs_whole_text(feed):
            return self._whole_text(feed, row)
        assert state.length is not None
        feeds, again = self._unread(row, state.length), 0
        short = not _is_draft(feed) or (bool(feeds) and len(feeds[-1].ids) <= MERGED)
        if feeds and _is_simple(feeds[-1]) and _can_follow(feed) and short:
            before = feeds.pop().ids
            feed, again = replace(feed, ids=[*before, *feed.ids]), len(before)
        return _Queue(
            [*feeds, *_at_snapshots(feed, row.length - again, self._spacing)],
            again if feed.want is Want.ALL or feed.watch is not None else 0,
        )

    def _unread(self, row: Any, start: int) -> list[Feed]:
        """Feeds of a row's tokens from a position on, as they were fed before."""
        feeds: list[Feed] = []
        for part in row.history.tokens if start < row.length else ():
            if part.start + len(part.ids) <= start:
                continue
            if part.parents is not None and list(part.parents) != list(range(-1, len(part.ids) - 1)):
                raise ExecutorError(
                    "a row that keeps a state cannot go on from several branches of a tree. Rewind it to one."
                )
            new = replace(part.after(start).feed(row, 0), parents=None)
            if feeds and _is_simple(feeds[-1]) and _is_simple(new):
                new = replace(new, ids=[*feeds.pop().ids, *new.ids])
            feeds.append(new)
        return feeds

    def _whole_text(self, feed: Feed, row: Any) -> _Queue:
        """A feed that reads an effective pattern, with all tokens before it, whose writes the pattern is made of."""
        earlier = self._unread(row, 0)
        assert feed.watch is not None
        if feed.watch.changes or feed.vectors is not None or not all(map(_is_simple, earlier)):
            raise ExecutorError(
                "the effective pattern of a layer that keeps a state is computed from the whole text, which cannot be read "
                "again here, since something of it was changed. Read the text and its pattern in one pass."
            )
        row.state.go_back(0)
        ids = [token for part in earlier for token in part.ids]
        return _Queue([replace(feed, ids=[*ids, *feed.ids])], len(ids), 0)

    def _run_tree(self, feed: Feed, parents: Sequence[int], row: Any) -> PickedLogits:
        """Each branch of a tree by a fork of the row."""
        if feed.watch is not None:
            raise ExecutorError("a tree of tokens cannot be watched in a model that keeps states. Watch a branch of it.")
        leaves = [node for node in range(len(parents)) if node not in parents]
        paths = [_path(node, parents) for node in leaves]
        forks: list[Any] = [self.fork(row) for _ in paths]
        try:
            made = self._run_rows(
                [Feed(fork, [feed.ids[node] for node in path], Want.ALL) for fork, path in zip(forks, paths, strict=True)],
                forks,
            )
            places = {
                node: (logits, place) for path, logits in zip(paths, made, strict=True) for place, node in enumerate(path)
            }
            count = {Want.ALL: len(parents), Want.LAST: 1, Want.NONE: 0}[feed.want]
            wanted = [places[node] for node in range(len(parents) - count, len(parents))]
            picked = PickedLogits([(_copied(logits, place), 0) for logits, place in wanted], {})
        finally:
            for fork in forks:
                self.close(fork)
        row.length += len(parents)
        return picked


class _Queue(NamedTuple):
    feeds: list[Feed]
    again: int = 0  # tokens at the beginning of the last feed whose results are not asked for
    start: int | None = None  # the row's length before the first; None: where its state stands


class _Copied:
    """One position's logits."""

    def __init__(self, values: npt.NDArray[np.float32]) -> None:
        self._values = values
        self.sites: Mapping[str, Any] = {}

    def host(self, index: int = -1) -> npt.NDArray[np.float32]:
        return self._values

    def top(self, k: int, index: int = -1) -> Candidates:
        return top(self._values, k)


def _copied(logits: Logits, place: int) -> _Copied:
    return _Copied(logits.host(place).copy())


def _is_simple(feed: Feed) -> bool:
    """Whether a feed is its tokens alone, so that it can be cut and joined."""
    return feed.watch is None and feed.vectors is None and feed.parents is None


def _can_follow(feed: Feed) -> bool:
    """Whether a feed can be read in one pass with the tokens before it: what it watches is each token's own."""
    if feed.watch is None or feed.watch.changes:
        return _is_simple(feed)
    own = all("length" in axes(site) and "keys" not in axes(site) for site in feed.watch.reads)
    return own and _is_simple(replace(feed, watch=None))


def _is_draft(feed: Feed) -> bool:
    """Whether some of a feed's tokens may be dropped again."""
    return feed.want is Want.ALL and len(feed.ids) > 1


def _at_snapshots(feed: Feed, start: int, spacing: int) -> Iterator[Feed]:
    """A long prompt, cut where snapshots of it are taken."""
    length, text = len(feed.ids), max(feed.text_length, start + len(feed.ids))
    first = 0
    if _is_simple(feed) and feed.want is not Want.ALL:
        for end in range(spacing - start % spacing, length, spacing):
            yield replace(feed, ids=feed.ids[first:end], want=Want.NONE, text_length=text)
            first = end
    yield feed if not first else replace(feed, ids=feed.ids[first:])


def _path(node: int, parents: Sequence[int]) -> list[int]:
    path = [node]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    return path[::-1]


def _last_tokens(logits: Any, feed: Feed, again: int) -> PickedLogits:
    """The results for a feed's own tokens, out of a pass over tokens before them too."""
    count = len(feed.ids)
    scored = {Want.ALL: count, Want.LAST: 1, Want.NONE: 0}[feed.want]
    sites = {}
    for site, value in logits.sites.items():
        own = axes(site)
        size = scored if site == "scores" else count
        index = tuple(
            slice(value.shape[place] - size, None) if name == "length" else slice(None) for place, name in enumerate(own)
        )
        sites[site] = value[index]
    first = again if feed.want is Want.ALL else 0
    return PickedLogits([(logits, first + place) for place in range(scored)], sites)
