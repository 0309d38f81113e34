"""An executor with other capabilities than it has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from glassformer.engine.protocol import Capabilities, Executor
from glassformer.engine.wrapped_executor import WrappedExecutor


@dataclass(frozen=True)
class Offering(WrappedExecutor):
    changes: dict[str, Any]

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.executor.capabilities, **self.changes)


def offering(executor: Executor, **changes: Any) -> Offering:
    """The same executor with these capabilities."""
    return Offering(executor, changes)


def step_by_step(executor: Executor) -> Offering:
    """The same executor, which chooses no token itself."""
    return Offering(executor, {"sampler": None})
