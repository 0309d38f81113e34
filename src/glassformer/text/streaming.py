"""Text as it grows, token by token: decoded once it is whole, kept from stop strings, and told apart into thoughts and
answer.

A token can be half a character (an emoji is up to four), and some tokenizers decode a token differently after
another. So each piece is what the newest tokens add to the decode of their neighbours, and is held back while it
ends inside a character. Joined, the pieces equal the decode of all the tokens at once; only where SentencePiece's byte
tokens spell no text at all may the number of signs for that differ, because its decoder judges a run as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # what an incomplete character decodes to


class Detokenizer:
    """Tokens in one by one, text out as soon as it is whole."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._context = 0  # where the neighbourhood begins
        self._emitted = 0  # up to where text has been given out

    def feed(self, token: int) -> str:
        """The text that this token completes; often one word, sometimes nothing."""
        self._ids.append(token)
        return self._advance(self._decode(self._ids[self._context :]), hold=True)

    def finish(self) -> str:
        """What was still held back, at the end."""
        return self._advance(self._decode(self._ids[self._context :]), hold=False)

    def _advance(self, text: str, hold: bool) -> str:
        before = self._decode(self._ids[self._context : self._emitted])
        if hold and (text.endswith(INCOMPLETE) or len(text) <= len(before)):
            return ""
        self._context, self._emitted = self._emitted, len(self._ids)
        return text[len(before) :]


def ends_inside_character(raw: bytes) -> bool:
    r"""Whether bytes end with the first part of a character.

    >>> [ends_inside_character(raw) for raw in (b"a", b"a\xf0\x9f", b"\x9f")]
    [False, True, False]
    """
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return False


def shown_bytes(raw: bytes) -> str:
    r"""A token's bytes for people: whole characters as text, parts of one as `\xf0\x9f`.

    >>> shown_bytes("hé".encode()), shown_bytes(b" \xf0\x9f")
    ('hé', ' \\xf0\\x9f')
    """
    return raw.decode("utf-8", "backslashreplace")


class StopBuffer:
    """Pieces of text in, pieces out that hold no stop string; what may begin one is held back, what follows one is
    dropped."""

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


OPENING, CLOSING = "<think>", "</think>"


class ThoughtReader:
    """Pieces of text in; out come pieces of thoughts and of the answer, without the marks and the white space around them.

    Thoughts stand first, between `<think>` and `</think>`.

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
