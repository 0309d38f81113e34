"""Rows whose keys and values lie in pages: how they are opened, forked, selected, rewound and closed. For every engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

from glassformer.engine import checks
from glassformer.engine.protocol import NO_SOURCE, Row, Source
from glassformer.engine.row_history import RowHistory, forked
from glassformer.engine.row_states import RowState, StatefulRows
from glassformer.ground.ownership import ForkSafeLock, NotCopied

PAGE = 64  # tokens of a page
BYTES = {"f32": 4, "f16": 2, "bf16": 2, "q8": 1}  # of a number


@dataclass(frozen=True)
class PageFormat:
    """What a page holds of each token: a key and a value for each layer and KV head."""

    layers: int
    kv_heads: int
    head_size: int
    cache: str  # what they are stored in
    latent: int = 0  # values are the first so many numbers of the keys; 0: they lie beside them
    shapes: tuple[tuple[int, int], ...] = ()  # of each layer: how many KV heads, and of which size; empty: all alike

    @property
    def token_bytes(self) -> int:
        return sum(heads * self.head_bytes(size) for heads, size in self.layer_shapes)

    @property
    def layer_shapes(self) -> tuple[tuple[int, int], ...]:
        return self.shapes or self.layers * ((self.kv_heads, self.head_size),)

    def head_bytes(self, size: int) -> int:
        """Of a token's key and value, in a head of this size."""
        vectors = 1 if self.latent else 2
        return vectors * (size * BYTES[self.cache] + (4 if self.cache == "q8" else 0))

    @property
    def bytes(self) -> int:
        return PAGE * self.token_bytes


class Pages(Protocol):
    """The pages of one row, in order."""

    def reserve(self, begin: int, end: int) -> None:
        """Make tokens [begin, end) writable: shared pages are copied, missing ones made."""

    def share(self, length: int) -> Self:
        """The pages of another row with the same first `length` tokens."""

    def truncate(self, length: int) -> None:
        """Release the pages after the first `length` tokens."""


PagesType = TypeVar("PagesType", bound=Pages)


@dataclass(eq=False, slots=True)
class PagedRow(Generic[PagesType]):
    pages: PagesType
    source_pages: PagesType | None = None
    length: int = 0
    open: bool = True
    source: Source = NO_SOURCE  # token ids for the encoder
    encoded: bool = False
    history: RowHistory | None = None  # where it may have to be read anew
    state: RowState | None = None  # where layers keep one

    def fork(self, length: int) -> Self:
        source = self.source_pages.share(len(self.source)) if self.source_pages is not None else None
        history, state = forked(self.history, length), None if self.state is None else self.state.fork(length)
        return type(self)(self.pages.share(length), source, length, True, self.source, self.encoded, history, state)

    def take_over(self, other: Self) -> None:
        """Hold what another row holds, which is not used any more."""
        self.release()
        self.pages, self.source_pages = other.pages, other.source_pages
        self.length, self.source, self.encoded = other.length, other.source, other.encoded
        self.history, self.state = other.history, other.state

    def release(self) -> None:
        self.pages.truncate(0)
        if self.source_pages is not None:
            self.source_pages.truncate(0)


RowType = TypeVar("RowType", bound=PagedRow[Any])


class PagedRows(NotCopied, StatefulRows, Generic[RowType]):
    """The part of an executor that is about rows."""

    _row_type: type[RowType]
    _checks: checks.InputChecks
    _lock: ForkSafeLock

    def _new_pages(self, stack: str = "") -> Any:
        """Pages of a stack's row without tokens."""
        raise NotImplementedError

    def open(self, source: Sequence[int] | None = None) -> RowType:
        ids = self._checks.source(source)
        pages, source_pages = self._new_pages(), self._new_pages() if ids else None
        return self._row_type(pages, source_pages, source=ids, history=self._new_history(), state=self._new_state())

    @checks.locked
    def fork(self, row: Row, length: int | None = None) -> RowType:
        parent = self._open_row(row)
        return parent.fork(parent.length if length is None else max(0, min(length, parent.length)))

    @checks.locked
    def select(self, rows: Sequence[Row], parents: Sequence[int]) -> None:
        targets = [self._open_row(row) for row in rows]
        forks = [targets[parent].fork(targets[parent].length) for parent in parents]
        for row, fork in zip(targets, forks, strict=True):
            row.take_over(fork)

    @checks.locked
    def rewind(self, row: Row, length: int) -> int:
        cached = self._open_row(row)
        cached.length = max(0, min(cached.length, length))
        cached.pages.truncate(cached.length)
        cached.history = forked(cached.history, cached.length)
        if cached.state is not None:
            cached.state.go_back(cached.length)
        return cached.length

    @checks.locked
    def close(self, row: Row) -> None:
        closing = self._open_row(row)
        closing.open = False
        closing.release()

    def _open_row(self, row: Row) -> RowType:
        return checks.open_row(row, self._row_type)
