"""The checks that all executors share: of feeds, sources, rows and states. Needs no torch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from glassformer.engine.protocol import NO_EXTRAS, BlockInput, Capabilities, Feed, Source, Want
from glassformer.ground.errors import ExecutorError, InputError, SiteError, check_context, check_ids, spell
from glassformer.ground.sites import ModelSites, Watch, is_module


class HasWeightFiles(Protocol):
    def checked(self) -> AbstractContextManager[None]:
        """Around a pass: an error if a file that the weights are mapped from has changed."""


P = ParamSpec("P")
Result = TypeVar("Result")
ROW_NOT_OPEN = "the row is closed, or belongs to another executor."
NOT_SCORED = "no position of this feed was scored: it was fed with Want.NONE."


class HasLock(Protocol):
    @property
    def _lock(self) -> AbstractContextManager[object]: ...


Owner = TypeVar("Owner", bound=HasLock)


def locked(method: Callable[Concatenate[Owner, P], Result]) -> Callable[Concatenate[Owner, P], Result]:
    """A method that holds its object's `_lock`: rows of different threads share their executor's memory."""

    @functools.wraps(method)
    def locking(self: Owner, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        with self._lock:
            return method(self, *args, **kwargs)

    return locking


def unchanged_weights(model: object) -> AbstractContextManager[None]:
    """Around a pass of a model whose weights may be mapped from files."""
    files: HasWeightFiles | None = getattr(model, "weight_files", None)
    return nullcontext() if files is None else files.checked()


class HasLength(Protocol):
    length: int


class MayBeOpen(Protocol):
    open: bool


AnyRow = TypeVar("AnyRow", bound=MayBeOpen)


def open_row(row: object, row_type: type[AnyRow]) -> AnyRow:
    """A row of this type that is open."""
    if not isinstance(row, row_type) or not row.open:
        raise ExecutorError(ROW_NOT_OPEN)
    return row


@contextmanager
def restored(rows: Sequence[HasLength], lengths: Sequence[int]) -> Iterator[None]:
    """Where something fails, rows are no longer than they were."""
    try:
        yield
    except BaseException:
        for row, length in zip(rows, lengths, strict=True):
            row.length = min(row.length, length)
        raise


class InputChecks:
    """What one model can take."""

    def __init__(
        self, context: int, vocabulary: int, names: ModelSites, capabilities: Capabilities = NO_EXTRAS,
        source_context: int | None = None, global_tokens: bool = False,
    ) -> None:  # fmt: skip
        """`names`: its sites; `capabilities`: which feeds its executor takes; `source_context`: how many tokens a source may
        have, by default as many as a row; `global_tokens`: whether some of them may be global."""
        self.context = context
        self.source_context = context if source_context is None else source_context
        self.global_tokens = global_tokens
        self.capabilities = capabilities
        self.vocabulary = vocabulary
        self.names = names

    def source(self, source: Sequence[int] | None) -> Source:
        """A row's source, which a model with an encoder needs; empty for one without."""
        if self.names.has_encoder and not source:
            raise ExecutorError("this model has an encoder, so a row needs a source of at least one token.")
        if source is not None and not self.names.has_encoder:
            raise ExecutorError("this model has no encoder, so a row takes no source.")
        check_context(len(source or ()), self.source_context)
        self.check_ids(source or ())
        checked = Source.of(source or ())
        if checked.global_tokens and not self.global_tokens:
            raise ExecutorError("this model's encoder has no global tokens: leave them out.")
        return checked

    def feed(self, feed: Feed, length: int) -> Feed:
        """A feed for a row of `length` tokens, with its watch's patterns expanded."""
        if not len(feed.ids):
            raise InputError("a row was fed no tokens. Give at least one.")
        new = 0 if feed.begin is not None else len(feed.ids)
        check_context(length + new, self.context, "prompt")
        self.check_ids(feed.ids)
        if feed.vectors is not None and not self.capabilities.takes_vectors:
            raise ExecutorError("this executor takes token ids alone. Feed vectors to the plain one.")
        parents = feed.parents
        if parents is not None and (
            len(parents) != len(feed.ids) or not all(-1 <= parent < index for index, parent in enumerate(parents))
        ):
            raise InputError("in a tree, each token's parent must come before it (-1: the row so far).")
        feed = feed if feed.watch is None else replace(feed, watch=self.watch(feed.watch))
        if feed.begin is not None:
            self._check_begin(feed, feed.begin, length)
        return feed

    def steps(self, rows: Sequence[HasLength], tokens: Sequence[int | None], count: int) -> None:
        """Refuse rows that cannot be fed these tokens, and then each the tokens that are chosen for it, `count` in all."""
        check_fed_once(rows)
        self.check_ids([token for token in tokens if token is not None])
        check_context(max((row.length for row in rows), default=0) + count, self.context, "prompt")

    def _check_begin(self, feed: Feed, begin: BlockInput, length: int) -> None:
        """Refuse a feed that cannot begin at its block."""
        if not self.capabilities.begins_at_blocks:
            raise ExecutorError("this executor computes every block of a feed. Leave out its begin.")
        if not 1 <= begin.block < self.names.blocks:
            raise InputError(f"a feed is to begin at block {begin.block}; it must be one of 1 to {self.names.blocks - 1}.")
        if len(feed.ids) > length or feed.parents is not None or feed.vectors is not None:
            raise InputError(
                f"a feed that begins at a block must have some of the {length} tokens that its row has read, and neither "
                "parents nor vectors."
            )
        known = self.names.names
        before = set(known[: known.index(f"blocks.{begin.block - 1}.residual") + 1])
        if feed.watch is None:
            return
        inputs = {name for site, change in feed.watch.changes.items() if site not in before for name in change.inputs}
        if unread := sorted(before & (feed.watch.reads | inputs)):
            raise SiteError(f"a feed that begins at block {begin.block} has no {unread[0]!r} to read.")

    def watch(self, watch: Watch) -> Watch:
        """A watch with its patterns expanded, refused if it names a site that the model lacks."""
        watch = watch.expanded(self.names)
        modules = (site for site in (*watch.reads, *watch.changes) if is_module(site))
        if not self.capabilities.calls_modules and (site := next(modules, None)) is not None:
            raise ExecutorError(
                f"{site!r} is one of PyTorch's modules, and this executor calls none. Load the model with "
                f"{spell('executor', 'plain')}."
            )
        return watch

    def check_ids(self, ids: Sequence[int]) -> None:
        check_ids(ids, self.vocabulary)


def residual_states(states: npt.NDArray[np.float32], hidden: int) -> npt.NDArray[np.float32]:
    """States to unembed, refused if their shape is not the model's."""
    if not isinstance(states, np.ndarray) or states.ndim != 2 or states.shape[1] != hidden:
        shape = getattr(states, "shape", None)
        raise InputError(f"states of shape {shape} were to be read out; they must be (rows, {hidden}).")
    return np.ascontiguousarray(states, np.float32)


def block_states(begin: BlockInput, tokens: int, hidden: int) -> npt.NDArray[np.float32]:
    """What enters the block that a feed begins at, refused if its shape is not that of the feed's tokens."""
    states = np.asarray(begin.states, np.float32)
    if states.shape != (tokens, hidden):
        raise InputError(f"states of shape {states.shape} enter block {begin.block}; they must be {(tokens, hidden)}.")
    return states


@contextmanager
def rewound(feeds: Sequence[Feed], rows: Sequence[HasLength]) -> Iterator[None]:
    """Around a pass: rows whose last tokens are computed again stand before them, and have them again at its end."""
    again = [(row, len(feed.ids)) for feed, row in zip(feeds, rows, strict=True) if feed.begin is not None]
    lengths = [row.length for row, _ in again]
    for row, count in again:
        row.length -= count
    try:
        yield
    finally:
        for (row, _), length in zip(again, lengths, strict=True):
            row.length = length


def check_fed_once(rows: Sequence[object]) -> None:
    """Refuse a row that is fed twice."""
    if len({id(row) for row in rows}) < len(rows):
        raise ExecutorError("a row was fed twice in one pass. Feed it once, with all its tokens.")


def scored_columns(feed: Feed) -> range:
    """The columns of a feed that are to be scored: always the last ones."""
    length = len(feed.ids)
    if feed.want is Want.LAST:
        return range(length - 1, length)
    return range(length) if feed.want is Want.ALL else range(length, length)
