"""How callers are told how far something is: plain functions, called as often as there is news."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[int, int], None]  # (done so far, in all)
NamedProgress: TypeAlias = Callable[[str, int, int], None]  # (what, done so far, in all)
