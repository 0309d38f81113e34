"""How callers are told how far something is: plain functions, called as often as there is news."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeAlias

Progress: TypeAlias = Callable[[int, int], None]  # (done so far, in all)
NamedProgress: TypeAlias = Callable[[str, int, int], None]  # (what, done so far, in all)


def shown_progress() -> NamedProgress:
    """Bars on stderr or in a notebook, as the hub's library shows its own; for whoever fetches something from Python.

    HF_HUB_DISABLE_PROGRESS_BARS=1 switches them off, as it does the hub's.
    """
    new_bar: Any = import_module("huggingface_hub.utils").tqdm  # imported only where something is fetched
    bars: dict[str, Any] = {}

    def progress(what: str, done: int, total: int) -> None:
        if what not in bars:
            bars[what] = new_bar(total=total, desc=what, unit="B", unit_scale=True)
        bars[what].update(min(done, total) - bars[what].n)
        if done >= total:
            bars[what].close()

    return progress
