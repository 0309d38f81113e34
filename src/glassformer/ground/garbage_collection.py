"""Python's garbage collection: paused during start-up and wherever many lasting objects are made.

A start makes some hundred thousand objects, and searching them again and again took a tenth of it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = gc.get_threshold()  # Python's own
STARTING_THRESHOLD = 100_000  # more objects than a start leaves


@contextmanager
def collection_paused() -> Iterator[None]:
    """No collection inside; what is made there should be gone at the end, or the next collection looks through it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def collect_rarely() -> None:
    """While a program starts."""
    gc.set_threshold(STARTING_THRESHOLD)


def collect_as_usual() -> None:
    """Once it has started: what is there now is kept to the end, and not looked through again."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
