"""What a picture consists of, before it is known where it will be seen.

    observe's data ── show/<view>.py ──▶ Page ── terminal.py ▶ lines of text · html.py ▶ a page of a browser

Numbers become words in a view's module, once, so that every form shows the same ones. Widths, colours and characters are
the renderers' business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Style: TypeAlias = Literal["", "strong", "dim", "special", "chosen", "out"]
Kind: TypeAlias = Literal["text", "token", "number", "code", "bar"]


@dataclass(frozen=True, slots=True)
class Long:
    """Something that has a shorter form; where a column has no room, all of its cells take theirs."""

    text: str
    short: str


Cell: TypeAlias = str | float | Long  # a float: the length of a bar, from 0 to 1


@dataclass(frozen=True, slots=True)
class Heading:
    text: str


@dataclass(frozen=True, slots=True)
class Words:
    """A sentence or a few; line breaks are kept."""

    text: str
    style: Style = ""


@dataclass(frozen=True, slots=True)
class Passage:
    """A text as it is, with some of its pieces marked."""

    text: str
    marked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Column:
    name: str = ""
    kind: Kind = "text"
    keep: int = 9  # where there is no room, the column with the lowest goes first; 9 stays
    least: int = 0  # characters that it may be cut down to; 0: it is never cut
    ends: bool = False  # where it is cut, its end is what stays


@dataclass(frozen=True, slots=True)
class Row:
    cells: tuple[Cell, ...]
    style: Style = ""


@dataclass(frozen=True, slots=True)
class Table:
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """Values from 0 to 1 in rows and columns, as shades; with texts, if there are any, in the cells.

    Below 0 a shade is of the other kind; what is beyond 1 either way is as strong as can be. Where not all columns fit, the
    last ones are shown, and the first too if it is to stay.
    """

    down: tuple[str, ...]
    across: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]  # None: there is nothing, and nothing is shown
    texts: tuple[tuple[str, ...], ...] = ()
    notes: tuple[tuple[str, ...], ...] = ()  # what a browser says of the cell that is pointed at, instead of its value
    first: bool = False
    spare: bool = False  # texts can be spared, so that all columns fit
    whole: bool = False  # all columns are shown, band below band where they do not fit


@dataclass(frozen=True, slots=True)
class Mosaic:
    """Many small maps in rows and columns; in a terminal, which cannot draw them, a word on where to see them."""

    down: tuple[str, ...]
    across: tuple[str, ...]
    maps: npt.NDArray[np.uint8]  # (rows, columns, height, width), 255 the strongest


@dataclass(frozen=True, slots=True)
class Strip:
    """A text, token by token, each as strong as its value from 0 to 1, with a word on it."""

    tokens: tuple[str, ...]
    values: tuple[float, ...]
    notes: tuple[str, ...]
    links: tuple[str, ...] = ()  # the names of the folds that the tokens lead to


@dataclass(frozen=True, slots=True)
class Gaze:
    """A text whose tokens can be pointed at, and below it what the one that is pointed at looked at.

    Only a browser can be pointed at; elsewhere the grid beside it says the same.
    """

    tokens: tuple[str, ...]
    seen: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]  # (tokens, seen) from 0 to 1; None: it cannot be seen from there
    notes: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """A node of a tree, and what hangs on it."""

    text: str
    note: str = ""
    style: Style = ""
    value: float | None = None  # how strong its bar is, from 0 to 1
    children: tuple[Branch, ...] = ()


@dataclass(frozen=True, slots=True)
class Fold:
    """Parts under a heading of their own, which a page in a browser can open and close."""

    title: str
    parts: tuple[Part, ...]
    open: bool = False
    name: str = ""  # what leads to it


Part: TypeAlias = Heading | Words | Passage | Table | Grid | Mosaic | Strip | Gaze | Branch | Fold


@dataclass(frozen=True, slots=True)
class Page:
    title: str
    parts: tuple[Part, ...]


def middle(rows: Sequence[Row], most: int) -> tuple[Row, ...]:
    """Rows without those in the middle that are too many, and with a word on how many these are."""
    if len(rows) <= most:
        return tuple(rows)
    half = most // 2
    blank = ("",) * max(0, len(rows[0].cells) - 3)
    said = Row(("…", f"{len(rows) - 2 * half:,} more", "(--all)", *blank)[: len(rows[0].cells)], "dim")
    return (*rows[:half], said, *rows[-half:])
