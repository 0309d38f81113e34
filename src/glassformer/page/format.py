"""Texts and numbers as they are told everywhere."""

from __future__ import annotations

import re
from collections.abc import Sequence

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    """Spaces and line breaks that can be seen."""
    return tame(text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")) or "∅"


def tame(text: str) -> str:
    r"""Control characters by their numbers, for they would act on the terminal; line breaks and tabs stay.

    >>> tame("a\x1b[2J\n")
    'a\\x1b[2J\n'
    """
    return CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def brief(text: str, most: int) -> str:
    """The end of a text, on one line.

    >>> brief("how are you today", 10)
    '…you today'
    """
    line = visible(text) if not text.strip() else tame(text.replace("\n", "⏎").replace("\t", "⇥"))
    return line if len(line) <= most else f"…{line[1 - most :]}"


def few(names: Sequence[str], most: int = 3) -> str:
    """
    >>> few(["a", "b"]), few(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more')
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def count(parameters: int) -> str:
    """
    >>> count(576), count(17_280), count(28_311_552), count(0)
    ('576', '17.3k', '28.3M', '')
    """
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if parameters >= unit:
            return f"{parameters / unit:.1f}{name}"
    return str(parameters or "")


def storage(size: float) -> str:
    """
    >>> storage(576), storage(17_280), storage(28_311_552), storage(0)
    ('576 B', '17.3 kB', '28.3 MB', '')
    """
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size:.0f} B" if size else ""


def seconds(time: float | None) -> str:
    """
    >>> seconds(0.0000123), seconds(0.0123), seconds(1.5), seconds(None)
    ('12 µs', '12.3 ms', '1.50 s', '')
    """
    if time is None:
        return ""
    if time < 0.001:
        return f"{time * 1e6:.0f} µs"
    return f"{time * 1e3:.1f} ms" if time < 1 else f"{time:.2f} s"


def share(probability: float) -> str:
    """
    >>> share(0.25), share(0.0001)
    ('25.0%', '<0.1%')
    """
    return f"{probability:.1%}" if probability >= 0.0005 else "<0.1%"


def size(shape: Sequence[int | str]) -> str:
    return "[" + ", ".join(str(one) for one in shape) + "]"


def many(number: int, what: str) -> str:
    """
    >>> many(1, "token"), many(1200, "token")
    ('1 token', '1,200 tokens')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"
