"""Word wrap for an answer that is streamed in pieces of words."""

from __future__ import annotations

from collections.abc import Callable

from rich.cells import cell_len
from rich.console import Console

TAB = 8


class WordWrapper:
    """Pieces of a text in, the same out for a terminal, where a word that hits the edge moves to the next line.

    Nothing is held back: a word moves by going back over it and writing it again. So the last column stays free, for
    terminals do not agree on where the cursor is after it.
    """

    def __init__(self, width: int) -> None:
        self.width = max(2, width) - 1
        self._column = 0
        self._word = ""  # the word at the end of the line, so far

    @classmethod
    def for_terminal(cls) -> Callable[[str], str]:
        """For the terminal of stdout; one that cannot move the cursor breaks lines itself."""
        console = Console()
        return str if console.is_dumb_terminal or console.legacy_windows else cls(console.width).feed

    def feed(self, piece: str) -> str:
        return "".join(map(self._character, piece))

    def _character(self, character: str) -> str:
        if character == "\n":
            self._column, self._word = 0, ""
            return character
        size = TAB - self._column % TAB if character == "\t" else cell_len(character)
        before = ""
        if self._column + size > self.width:
            carried = cell_len(self._word)
            if carried == self._column:  # a word as long as the line: it is broken
                carried, self._word = 0, ""
            before = f"\x1b[{carried}D\x1b[K\n{self._word}" if carried else "\n"
            self._column = carried
            if character in " \t":
                self._column, self._word = 0, ""
                return "\n"
        self._column += size
        self._word = "" if character in " \t" or size > 1 else self._word + character  # wide letters stand by themselves
        return before + character
