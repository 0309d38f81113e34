"""Texts and numbers as people read them, the same in every view."""

from __future__ import annotations

import re
from collections.abc import Sequence

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    """A text with its spaces, line breaks and tabs as visible characters."""
    return escape_control(text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")) or "∅"


def escape_control(text: str) -> str:
    r"""Control characters as their codes, since they would act on the terminal; line breaks and tabs stay.

    >>> escape_control("a\x1b[2J\n")
    'a\\x1b[2J\n'
    """
    return CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def tail(text: str, limit: int) -> str:
    """The last characters of a text, on one line.

    >>> tail("how are you today", 10)
    '…you today'
    """
    line = visible(text) if not text.strip() else escape_control(text.replace("\n", "⏎").replace("\t", "⇥"))
    return line if len(line) <= limit else f"…{line[1 - limit :]}"


def abbreviate_list(names: Sequence[str], limit: int = 3) -> str:
    """
    >>> abbreviate_list(["a", "b"]), abbreviate_list(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more')
    """
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def format_count(number: int) -> str:
    """
    >>> format_count(576), format_count(17_280), format_count(28_311_552), format_count(0)
    ('576', '17.3k', '28.3M', '')
    """
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= unit:
            return f"{number / unit:.1f}{name}"
    return str(number or "")


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


def pluralize(number: int, noun: str) -> str:
    """
    >>> pluralize(1, "token"), pluralize(1200, "token")
    ('1 token', '1,200 tokens')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
