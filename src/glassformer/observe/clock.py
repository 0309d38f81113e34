"""A clock inside a pass: how long each part of it took, on every executor, without changing a number.

A `Change` that changes nothing and notes the time is put at the embedding, after every block and after the last norm. What
is computed stays the same bit for bit. An executor that never calls it, since it takes changes as mere data, leaves those
times unknown.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glassformer.blueprints import Blueprint
from glassformer.ground.changes import Change, Where
from glassformer.ground.sites import ENCODER, Watch

ENCODED, SCORED, CHOSEN, DECODED = "encoded", "scored", "chosen", "decoded"  # what is timed besides the sites of a pass


class Clock:
    """The seconds of one pass: up to each site, since the one before."""

    def __init__(self, blueprint: Blueprint, changes: Mapping[str, Change] | None = None) -> None:
        """`changes`: what is changed in the model anyway; at a site that is timed, both happen."""
        self.seconds: dict[str, float] = {}
        stacks = ((ENCODER, blueprint.encoder_blocks), ("", blueprint.blocks))
        timed = (name for stack, count in stacks for name in _sites(stack, count))
        sites = [site for site in timed if site in blueprint.sites]
        ticks = {site: Tick(clock=self, site=site, change=(changes or {}).get(site)) for site in sites}
        self.watch = Watch(changes={**(changes or {}), **ticks})
        self._last = 0.0

    def start(self) -> None:
        self._last = time.perf_counter()

    def lap(self, name: str, value: Any = None) -> None:
        """Note the time since the last note; a value on a device is waited for."""
        kind = getattr(getattr(value, "device", None), "type", "cpu")
        if kind != "cpu":
            getattr(sys.modules["torch"], kind).synchronize()
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last  # a long prompt goes through in pieces
        self._last = now


def _sites(stack: str, count: int) -> list[str]:
    return [f"{stack}embedding", *(f"{stack}blocks.{number}.residual" for number in range(count)), f"{stack}final"]


@dataclass(frozen=True, slots=True)
class Tick(Change):
    """Notes the time, and changes nothing but what `change` does."""

    clock: Clock | None = None
    site: str = ""
    change: Change | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        return () if self.change is None else self.change.inputs

    def apply(self, value: Any, where: Where) -> Any:
        if self.change is not None:
            value = self.change.apply(value, where)
        assert self.clock is not None
        self.clock.lap(self.site, value)
        return value
