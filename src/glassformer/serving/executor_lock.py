"""Several threads use one executor, a pass each in the order in which they came."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.engine.checks import NOT_SCORED
from glassformer.engine.protocol import Capabilities, Feed, Logits, Want, copied
from glassformer.engine.wrapped_executor import WrappedExecutor
from glassformer.ground.candidates import Candidates, top
from glassformer.ground.errors import ExecutorError, GlassError


class ExecutorLock:
    """A lock that is given to those who wait for it in the order in which they came; Python's own gives no such promise."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tickets = 0
        self._serving = 0
        self._closing: GlassError | None = None

    def close(self, error: GlassError) -> None:
        """Give it to nobody any more: whoever waits or comes for it gets the error."""
        with self._changed:
            self._closing = error
            self._changed.notify_all()

    def __enter__(self) -> None:
        with self._changed:
            ticket = self._tickets
            self._tickets += 1
            self._changed.wait_for(lambda: self._serving == ticket or self._closing is not None)
            if self._closing is not None:
                raise self._closing

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._serving += 1
            self._changed.notify_all()


@dataclass(frozen=True)
class LockedExecutor(WrappedExecutor):
    """An executor whose passes take turns with those of other threads; its scores stay valid."""

    lock: ExecutorLock

    def run(self, feeds: Sequence[Feed]) -> Sequence[Logits]:
        with self.lock:
            return [CopiedScores.of(scores, feed) for scores, feed in zip(self.executor.run(feeds), feeds, strict=True)]

    def unembed(self, states: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        with self.lock:
            return self.executor.unembed(states)

    @property
    def capabilities(self) -> Capabilities:
        """A turn is one pass, so that no tokens are chosen ahead."""
        return replace(self.executor.capabilities, sampler=None)


@dataclass(frozen=True)
class CopiedScores:
    """Scores of a pass that others have followed."""

    sites: Mapping[str, Any]
    positions: Sequence[npt.NDArray[np.float32]]

    @classmethod
    def of(cls, scores: Logits, feed: Feed) -> CopiedScores:
        count = {Want.NONE: 0, Want.LAST: 1, Want.ALL: len(feed.ids)}[feed.want]
        positions = [scores.host(index).copy() for index in range(-count, 0)]
        return cls({site: copied(value) for site, value in scores.sites.items()}, positions)

    def host(self, index: int = -1) -> npt.NDArray[np.float32]:
        if not self.positions:
            raise ExecutorError(NOT_SCORED)
        return self.positions[index]

    def top(self, k: int, index: int = -1) -> Candidates:
        return top(self.host(index), k)
