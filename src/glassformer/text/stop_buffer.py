"""Text that may turn out to be the beginning of a stop string, held back until that is clear."""

from __future__ import annotations

from collections.abc import Sequence


class StopBuffer:
    """Pieces of text in, pieces out that hold no stop string; what follows one is dropped."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self.stops = tuple(stops)
        self.stopped: str | None = None  # the stop string that was met
        self._pending = ""

    def feed(self, piece: str) -> str:
        """What can be given out now."""
        if not self.stops:
            return piece
        if self.stopped is not None:
            return ""
        text = self._pending + piece
        matches = [(text.index(stop), stop) for stop in self.stops if stop in text]
        if matches:
            end, self.stopped = min(matches)
            self._pending = ""
            return text[:end]
        held_back = max(overlap(text, stop) for stop in self.stops)
        self._pending = text[len(text) - held_back :]
        return text[: len(text) - held_back]

    def finish(self) -> str:
        """What was held back and is no stop string, at the end."""
        pending, self._pending = self._pending, ""
        return pending


def overlap(text: str, stop: str) -> int:
    """How many characters at a text's end are the beginning of a stop string.

    >>> overlap("a line\\n", "\\n\\n"), overlap("abc", "x")
    (1, 0)
    """
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-size:]):
            return size
    return 0
