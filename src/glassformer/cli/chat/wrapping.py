"""Lines of an answer that break between words, though the answer comes in pieces of words."""

from __future__ import annotations

from collections.abc import Callable

from rich.cells import cell_len
from rich.console import Console

TAB = 8


class Wrapping:
    """Pieces of a text in, the same out for a terminal: a word that runs into the edge is taken to the next line.

    What is written is written at once. A word is taken along by going back over it, so the last column stays free: behind it
    terminals do not agree on where the cursor is.
    """

    def __init__(self, width: int) -> None:
        self.width = max(2, width) - 1
        self._at = 0  # columns of the line that are written
        self._word = ""  # what stands at its end, without a blank

    @classmethod
    def here(cls) -> Callable[[str], str]:
        """For the terminal that stdout is; one that cannot go back is left to break lines itself."""
        console = Console()
        return str if console.is_dumb_terminal or console.legacy_windows else cls(console.width).feed

    def feed(self, piece: str) -> str:
        return "".join(map(self._letter, piece))

    def _letter(self, letter: str) -> str:
        if letter == "\n":
            self._at, self._word = 0, ""
            return letter
        size = TAB - self._at % TAB if letter == "\t" else cell_len(letter)
        before = ""
        if self._at + size > self.width:
            carried = cell_len(self._word)
            if carried == self._at:  # a word as long as the line: it is broken
                carried, self._word = 0, ""
            before = f"\x1b[{carried}D\x1b[K\n{self._word}" if carried else "\n"
            self._at = carried
            if letter in " \t":
                self._at, self._word = 0, ""
                return "\n"
        self._at += size
        self._word = "" if letter in " \t" or size > 1 else self._word + letter  # wide letters stand by themselves
        return before + letter
