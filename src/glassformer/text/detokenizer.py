"""Incremental decode: tokens in one by one, text out as soon as it is whole.

A token can be half a character (an emoji is up to four), and some tokenizers decode a token differently after
another. So each piece is what the newest tokens add to the decode of their neighbours, and is held back while it
ends inside a character. Joined, the pieces equal the decode of all the tokens at once; only where SentencePiece's byte
tokens spell no text at all may the number of signs for that differ, because its decoder judges a run as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # what an incomplete character decodes to


class Detokenizer:
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
