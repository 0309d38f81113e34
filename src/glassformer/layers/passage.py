"""What goes through a forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from glassformer.cache import Cache
from glassformer.layers.mask import Mask
from glassformer.layers.positions import Rotary
from glassformer.sites import Tap


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass: everything that its layers need to know, and nothing ambient."""

    mask: Mask
    rotary: Mapping[str, Rotary] = field(default_factory=dict)
    cache: Cache | None = None
    tap: Tap | None = None  # None when nobody watches
