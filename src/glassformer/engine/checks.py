"""What every executor asks of a feed before it runs it, in the same words. Needs no torch."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from glassformer.engine.protocol import Feed, Want
from glassformer.errors import ExecutorError, InputError
from glassformer.sites import Watch

P = ParamSpec("P")
Found = TypeVar("Found")


class Shared(Protocol):
    """What several threads may use."""

    _turn: threading.Lock


Own = TypeVar("Own", bound=Shared)


def in_turn(move: Callable[Concatenate[Own, P], Found]) -> Callable[Concatenate[Own, P], Found]:
    """A move of the protocol that one thread makes at a time: rows of different threads share their executor's memory."""

    @functools.wraps(move)
    def waiting(self: Own, /, *args: P.args, **kwargs: P.kwargs) -> Found:
        with self._turn:
            return move(self, *args, **kwargs)

    return waiting


class Checks:
    """The limits of one model, and the refusals that follow from them."""

    def __init__(self, context: int, vocabulary: int, blocks: int, encoder: int) -> None:
        self.context = context
        self.vocabulary = vocabulary
        self.blocks = blocks
        self.encoder = encoder

    def source(self, source: Sequence[int] | None) -> tuple[int, ...]:
        """What an encoder is to read; none for a model without one."""
        if self.encoder and not source:
            raise ExecutorError("this model has an encoder, so a row needs a source of at least one token.")
        if source is not None and not self.encoder:
            raise ExecutorError("this model has no encoder, so a row takes no source.")
        if len(source or ()) > self.context:
            raise InputError(
                f"{len(source or ())} tokens do not fit into the model's context of {self.context}. Shorten the text."
            )
        self.ids(source or ())
        return tuple(source or ())

    def feed(self, feed: Feed, length: int) -> Feed:
        """A feed for a row of so many tokens, its watch's patterns spelt out."""
        if not len(feed.ids):
            raise InputError("a row was fed no tokens. Give at least one.")
        if length + len(feed.ids) > self.context:
            raise InputError(
                f"{length + len(feed.ids)} tokens do not fit into the model's context of {self.context}. Shorten the prompt."
            )
        self.ids(feed.ids)
        parents = feed.parents
        if parents is not None and (
            len(parents) != len(feed.ids) or not all(-1 <= parent < number for number, parent in enumerate(parents))
        ):
            raise InputError("in a tree, each token's parent must come before it (-1: the row so far).")
        return feed if feed.watch is None else replace(feed, watch=self.watch(feed.watch))

    def watch(self, watch: Watch) -> Watch:
        """The watch with its patterns spelt out, refused if it names a site that is not there."""
        return watch.checked(self.blocks, self.encoder)

    def ids(self, ids: Sequence[int]) -> None:
        for token in ids:
            if not 0 <= token < self.vocabulary:
                raise InputError(f"token id {token} is outside the vocabulary of {self.vocabulary}.")


def stream(states: npt.NDArray[np.float32], hidden: int) -> npt.NDArray[np.float32]:
    """States that are to be read out, refused if they are not the model's."""
    if states.ndim != 2 or states.shape[1] != hidden:
        raise InputError(f"states of shape {states.shape} were to be read out; they must be (rows, {hidden}).")
    return np.ascontiguousarray(states, np.float32)


def once(rows: Sequence[object]) -> None:
    """Refuse a row that is fed twice."""
    if len({id(row) for row in rows}) < len(rows):
        raise ExecutorError("a row was fed twice in one pass. Feed it once, with all its tokens.")


def wanted(feed: Feed) -> range:
    """The columns of a feed that are to be scored."""
    length = len(feed.ids)
    if feed.want is Want.LAST:
        return range(length - 1, length)
    return range(length) if feed.want is Want.ALL else range(length, length)


STRANGE = "the row is closed, or belongs to another executor."
UNSCORED = "no position of this feed was scored: it was fed with Want.NONE."
