"""An executor under a change: the same model, with some of its values zeroed, scaled or replaced in every pass.

Drivers (the loop, beams, a draft, a tree, a view) use it like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from glassformer.engine.protocol import Description, Executor, Feed, Row, Scores
from glassformer.sites import Change, Watch


@dataclass(frozen=True)
class ChangedExecutor:
    executor: Executor
    changes: Mapping[str, Change]  # by site, patterns expanded

    @property
    def context(self) -> int:
        return self.executor.context

    def run(self, feeds: Sequence[Feed]) -> Sequence[Scores]:
        return self.executor.run([replace(feed, watch=self._with_changes(feed.watch)) for feed in feeds])

    def _with_changes(self, watch: Watch | None) -> Watch:
        """Where a feed's watch changes the same site, that change wins."""
        return Watch(changes=self.changes) if watch is None else Watch(watch.reads, {**self.changes, **watch.changes})

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
        about = self.executor.describe()
        return replace(about, notes=(*about.notes, f"changed: {', '.join(self.changes)}"))
