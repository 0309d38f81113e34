"""A clock inside a pass: how long each part of it took, on every executor, without changing a number.

A `Change` that changes nothing and notes the time is put at the embedding, behind every block and behind the last norm. An
executor comes by there in any case; what it computes stays the same bit for bit. One that never comes by, since it would
take a change for mere data, leaves those times unknown.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from glassformer.blueprints import Blueprint
from glassformer.sites import ENCODER, Change, Watch

READ, SCORED, CHOSEN, WRITTEN = "read", "scored", "chosen", "written"  # what is timed beside the sites of a pass


class Clock:
    """The seconds of one pass: up to each site, since the one before."""

    def __init__(self, blueprint: Blueprint, changes: Mapping[str, Change] | None = None) -> None:
        """`changes`: what is changed in the model anyhow; where that is at a clock's place, both happen."""
        self.seconds: dict[str, float] = {}
        stacks = ((ENCODER, blueprint.encoder), ("", blueprint.blocks))
        inner = (name for stack, count in stacks for name in _sites(stack, count))
        places = [site for site in inner if site in blueprint.sites]
        ticks = {site: Tick(clock=self, site=site, also=(changes or {}).get(site)) for site in places}
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
    """A change that changes nothing, unless `also` something is to be changed there; and notes the time."""

    clock: Clock | None = None
    site: str = ""
    also: Change | None = None

    def apply(self, value: Any, names: Any, start: int) -> Any:
        if self.also is not None:
            arrays = isinstance(value, np.ndarray) and self.also.shift is not None
            change = replace(self.also, shift=np.asarray(self.also.shift)) if arrays else self.also
            value = change.apply(value, names, start)
        assert self.clock is not None
        self.clock.lap(self.site, value)
        return value
