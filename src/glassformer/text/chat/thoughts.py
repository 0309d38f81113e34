"""A model's thoughts, told from its answer as the text grows: what stands first, between `<think>` and `</think>`."""

from __future__ import annotations

from glassformer.text.stop_buffer import overlap

OPENING, CLOSING = "<think>", "</think>"


class ThoughtReader:
    """Pieces of text in; out come pieces of thoughts and of the answer, without the marks and the white space around them.

    >>> ThoughtReader().feed("<think>\\nEasy.\\n</think>\\n\\nParis.", last=True)
    ('Easy.', 'Paris.')
    """

    def __init__(self, *, begun: bool = False) -> None:
        """`begun`: whether the prompt ends with the opening mark."""
        self._thinking: bool | None = True if begun else None  # None: it may still begin
        self._held = ""
        self._trims = begun  # whether white space comes that is no part of either

    def feed(self, piece: str, *, last: bool = False) -> tuple[str, str]:
        """(thoughts, answer) that are certain now; all of them with the last piece."""
        self._held += piece
        thoughts = ""
        if self._thinking is None:
            start = self._held.lstrip()
            if start.startswith(OPENING):
                self._held, self._thinking, self._trims = start[len(OPENING) :], True, True
            elif last or not OPENING.startswith(start):
                self._thinking = False
            else:  # nothing yet, or the beginning of the mark
                return "", ""
        if self._thinking:
            thoughts, closing, rest = self._held.partition(CLOSING)
            if not closing and not last:  # white space at the end may be the last
                thoughts = thoughts[: len(thoughts) - overlap(thoughts, CLOSING)].rstrip()
                self._held = self._held[len(thoughts) :]
                return self._trimmed(thoughts), ""
            thoughts = self._trimmed(thoughts).rstrip()
            self._held, self._thinking, self._trims = rest, False, True
        answer, self._held = self._trimmed(self._held), ""
        return thoughts, answer

    def _trimmed(self, text: str) -> str:
        if self._trims:
            text = text.lstrip()
            self._trims = not text
        return text
