"""An executor under a change: the same model, with some of its values zeroed, scaled or replaced in every pass.

Drivers (the loop, beams, a draft, a tree, a view) use it like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from glassformer.engine.protocol import Capabilities, Description, Feed, Logits
from glassformer.engine.wrapped_executor import WrappedExecutor
from glassformer.ground.changes import Change
from glassformer.ground.sites import Watch


@dataclass(frozen=True)
class ChangedExecutor(WrappedExecutor):
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
