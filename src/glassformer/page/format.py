"""Texts and numbers as people read them, the same in every view."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

ACTING = re.compile(  # control characters but tab and line feed; separators of lines; bidi controls; surrogates
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
BLANK_LETTERS = re.compile(  # marks and letters that draw nothing: joiners, fillers, variation selectors
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
NO_BREAK_SPACE = "⍽"


def visible(text: str) -> str:
    r"""A token's text with all that is invisible as pictures or codes, spaces too.

    >>> visible(" a\xa0b\u200b\n")
    '␣a⍽b\\u200b⏎'
    """
    return reveal_line(text).replace(" ", "␣") or "∅"


def reveal_line(text: str) -> str:
    """A text on one line, with all that is invisible but spaces as pictures or codes."""
    return one_line(reveal(text))


def reveal(text: str) -> str:
    r"""A text with all that is invisible but spaces, line breaks and tabs as pictures or codes.

    >>> reveal("a\xa0b\u202ec\n")
    'a⍽b\\u202ec\n'
    """
    if not text.isprintable():
        text = "".join(
            character if character in "\n\t" or character.isprintable() else _picture(character) for character in text
        )
    return BLANK_LETTERS.sub(lambda match: _picture(match[0]), text)


def escape_control(text: str) -> str:
    r"""A text in which nothing acts on a terminal or on the order of the letters; line breaks and tabs stay.

    >>> escape_control("a\x1b[2J\n")
    'a\\x1b[2J\n'
    """
    return text if text.isprintable() else ACTING.sub(lambda match: _picture(match[0]), text)


def to_json(value: Any, **options: Any) -> str:
    r"""JSON in which nothing acts on a terminal, and that can be encoded; options: those of json.dumps.

    >>> to_json(["é", "\u202e", "\ud800"])
    '["é", "\\u202e", "\\ud800"]'
    """
    return ACTING.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False, **options))


def one_line(text: str) -> str:
    """A text with its line breaks and tabs as pictures."""
    return text.replace("\n", "⏎").replace("\t", "⇥")


def _picture(character: str) -> str:
    """What is shown in place of an invisible character: its code, as Python writes it."""
    if character == "\xa0":
        return NO_BREAK_SPACE
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def tail(text: str, limit: int) -> str:
    """The last characters of a text, on one line.

    >>> tail("how are you today", 10)
    '…you today'
    """
    line = reveal_line(text) if text.strip(" \n\t") else visible(text)
    return line if len(line) <= limit else f"…{line[1 - limit :]}"


def abbreviate_list(names: Sequence[str], limit: int = 3) -> str:
    """
    >>> abbreviate_list(["a", "b"]), abbreviate_list(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more')
    """
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def drawable(value: float) -> float:
    """What can be drawn of a value from -1 to 1: of one that is no number, nothing.

    >>> drawable(0.5), drawable(float("nan")), drawable(float("-inf"))
    (0.5, 0.0, -1.0)
    """
    return 0.0 if math.isnan(value) else max(-1.0, min(1.0, value))


def format_count(count: int) -> str:
    """
    >>> format_count(576), format_count(17_280), format_count(28_311_552), format_count(0)
    ('576', '17.3k', '28.3M', '')
    """
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= unit:
            return f"{count / unit:.1f}{name}"
    return str(count or "")


def format_bytes(size: float) -> str:
    """
    >>> format_bytes(576), format_bytes(17_280), format_bytes(28_311_552), format_bytes(0)
    ('576 B', '17.3 kB', '28.3 MB', '')
    """
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size:.0f} B" if size else ""


def format_seconds(time: float | None) -> str:
    """
    >>> format_seconds(0.0000123), format_seconds(0.0123), format_seconds(1.5), format_seconds(None)
    ('12 µs', '12.3 ms', '1.50 s', '')
    """
    if time is None:
        return ""
    if time < 0.001:
        return f"{time * 1e6:.0f} µs"
    return f"{time * 1e3:.1f} ms" if time < 1 else f"{time:.2f} s"


def format_percent(probability: float) -> str:
    """
    >>> format_percent(0.25), format_percent(0.0001)
    ('25.0%', '<0.1%')
    """
    return f"{probability:.1%}" if probability >= 0.0005 else "<0.1%"


def format_shape(shape: Sequence[int | str]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def pluralize(count: int, noun: str) -> str:
    """
    >>> pluralize(1, "token"), pluralize(1200, "token")
    ('1 token', '1,200 tokens')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
