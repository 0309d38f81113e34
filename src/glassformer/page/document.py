"""What a page consists of, whichever renderer shows it.

    a view's data ── see/<topic>.py ──▶ Page ── terminal.py ▶ lines of text · html.py ▶ HTML

Numbers become text in the view's module, once, so that every renderer shows the same ones. Widths, colors and characters
are the renderers' business.

Texts may come from anywhere, so a renderer shows `escape_page` of a page: nothing in it acts on a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from glassformer.page.format import escape_control, one_line

Style: TypeAlias = Literal["", "strong", "dim", "special", "chosen", "out"]
Item = TypeVar("Item")
ColumnKind: TypeAlias = Literal["text", "token", "number", "code", "bar", "signed bar"]


@dataclass(frozen=True, slots=True)
class Shortenable:
    """A text with a short form; where a column has no room, all of its cells take their short forms."""

    text: str
    short: str


Cell: TypeAlias = str | float | Shortenable  # a float: the length of a bar, from 0 to 1; of a signed bar, from -1 to 1


@dataclass(frozen=True, slots=True)
class Heading:
    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """One or more sentences; line breaks are kept."""

    text: str
    style: Style = ""


@dataclass(frozen=True, slots=True)
class Preformatted:
    """A text as it is, with every occurrence of some pieces highlighted."""

    text: str
    highlights: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Column:
    name: str = ""
    kind: ColumnKind = "text"
    priority: int = 9  # where there is no room, the column with the lowest is dropped first; 9 is never dropped
    min_width: int = 0  # characters that it may be cut down to; 0: it is never cut
    keep_end: bool = False  # cut at the start, not at the end
    wraps: bool = False  # what does not fit goes on in further lines, as code does


@dataclass(frozen=True, slots=True)
class TableRow:
    cells: tuple[Cell, ...]
    style: Style = ""


@dataclass(frozen=True, slots=True)
class Table:
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]

    @classmethod
    def of(
        cls, items: Iterable[Item], *columns: tuple[Column, Callable[[Item], Cell]],
        style: Callable[[Item], Style] | None = None, limit: int | None = None,
    ) -> Table:  # fmt: skip
        """A row for each item: each column with what it says of one. Of more than `limit` items the middle is left out."""
        rows = [TableRow(tuple(cell(item) for _, cell in columns), style(item) if style else "") for item in items]
        return cls(tuple(column for column, _ in columns), tuple(rows) if limit is None else elide_middle(rows, limit))


@dataclass(frozen=True, slots=True)
class Grid:
    """A heat map: values from -1 to 1 as shades, with optional texts in the cells.

    Negative values have a color of their own; values beyond ±1 are clipped. Where not all columns fit, the last ones are
    shown.
    """

    row_labels: tuple[str, ...]
    column_labels: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]  # None: an empty cell
    texts: tuple[tuple[str, ...], ...] = ()
    notes: tuple[tuple[str, ...], ...] = ()  # the cells' tooltips in a browser; by default their values
    keep_first: bool = False  # where not all columns fit, the first one stays too
    texts_optional: bool = False  # texts are dropped where all columns fit without them
    all_columns: bool = False  # show all columns, in several bands where they do not fit


@dataclass(frozen=True, slots=True)
class ThumbnailGrid:
    """Many small images in rows and columns; a terminal, which cannot draw them, says how to see them."""

    row_labels: tuple[str, ...]
    column_labels: tuple[str, ...]
    maps: npt.NDArray[np.uint8]  # (rows, columns, height, width), 255 the strongest


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart."""

    name: str
    points: tuple[tuple[float, float], ...]  # from left to right
    marked: bool = False  # each point is a measurement of its own


@dataclass(frozen=True, slots=True)
class LineChart:
    """Numbers over other numbers, such as losses over steps."""

    title: str
    lines: tuple[Line, ...]
    x_name: str
    from_zero: bool = False  # the vertical axis begins there


@dataclass(frozen=True, slots=True)
class TokenStrip:
    """A text, token by token, each shaded by its value from -1 to 1, with a note; negative ones have a color and a minus."""

    tokens: tuple[str, ...]
    values: tuple[float, ...]
    notes: tuple[str, ...]
    links: tuple[str, ...] = ()  # anchors that the tokens link to; empty: none


@dataclass(frozen=True, slots=True)
class HoverMap:
    """A text whose tokens can be hovered over, and below it what the hovered token attended to.

    Only a browser shows it; a terminal has the grid next to it, which holds the same values.
    """

    tokens: tuple[str, ...]
    targets: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]  # (tokens, targets) from 0 to 1; None: masked
    notes: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """A node of a tree, with its children."""

    text: str
    note: str = ""
    style: Style = ""
    value: float | None = None  # the length of its bar, from 0 to 1
    children: tuple[Branch, ...] = ()


@dataclass(frozen=True, slots=True)
class DiagramNode:
    """A box of a diagram."""

    label: str
    column: int
    lane: int
    value: float = 0.0  # its share of what flows, from -1 to 1
    note: str = ""  # the same in figures


@dataclass(frozen=True, slots=True)
class DiagramEdge:
    """What flows from one box into another one."""

    source: int  # index among the nodes
    target: int
    value: float  # from -1 to 1: the edge's width, and its color by its sign
    note: str = ""


@dataclass(frozen=True, slots=True)
class Diagram:
    """Boxes in columns and lanes, and what flows between them: up a column, and across where it enters another one.

    Each lane names what its boxes have in common, such as a block, and each column what stands below it, such as a token.
    """

    title: str  # what somebody is told who cannot see it
    columns: tuple[str, ...]  # from left to right
    lanes: tuple[str, ...]  # from the bottom upwards
    nodes: tuple[DiagramNode, ...]
    edges: tuple[DiagramEdge, ...]


@dataclass(frozen=True, slots=True)
class Collapsible:
    """Parts under a heading, which a browser can expand and collapse."""

    title: str
    parts: tuple[PagePart, ...]
    expanded: bool = False
    anchor: str = ""  # what links lead to


PagePart: TypeAlias = (
    Heading
    | Paragraph
    | Preformatted
    | Table
    | Grid
    | ThumbnailGrid
    | LineChart
    | TokenStrip
    | HoverMap
    | Branch
    | Diagram
    | Collapsible
)


@dataclass(frozen=True, slots=True)
class Page:
    title: str
    parts: tuple[PagePart, ...]

    @classmethod
    def titled(cls, title: str, *parts: PagePart) -> Page:
        """A page whose title stands above its parts too."""
        return cls(title, (Heading(title), *parts))

    @property
    def body(self) -> tuple[PagePart, ...]:
        """What stands below the title: the parts without a first one that only repeats it."""
        first = self.parts[0] if self.parts else None
        return self.parts[1:] if isinstance(first, (Heading, Paragraph)) and first.text == self.title else self.parts


def elide_middle(rows: Sequence[TableRow], limit: int) -> tuple[TableRow, ...]:
    """At most `limit` rows: the first and the last ones, and between them a row that says how many are left out."""
    if len(rows) <= limit:
        return tuple(rows)
    half = limit // 2
    blank = ("",) * max(0, len(rows[0].cells) - 3)
    gap = TableRow(("…", f"{len(rows) - 2 * half:,} more", "(--all)", *blank)[: len(rows[0].cells)], "dim")
    return (*rows[:half], gap, *rows[-half:])


def escape_page(page: Page) -> Page:
    """A page in which no text acts on a terminal, and only paragraphs have several lines."""
    escaped: Page = _escape(page)
    return escaped


def _escape(value: Any, lines: bool = False) -> Any:
    """A part, or what it consists of; `lines`: line breaks stay."""
    if isinstance(value, str):
        return value if value.isprintable() else escape_control(value if lines else one_line(value))
    if isinstance(value, (tuple, list)):
        return tuple(_escape(item, lines) for item in value)
    if is_dataclass(value):
        lines = isinstance(value, (Paragraph, Preformatted))
        return type(value)(*(_escape(getattr(value, field.name), lines) for field in fields(value)))  # type: ignore[misc]
    return value
