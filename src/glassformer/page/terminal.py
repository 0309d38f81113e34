"""Pages in the terminal, with rich. They fit the width there is, and read without colour."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import singledispatch
from itertools import zip_longest

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.rule import Rule
from rich.segment import Segment
from rich.text import Text

from glassformer.page.document import (
    Branch,
    Cell,
    Fold,
    Gaze,
    Grid,
    Heading,
    Long,
    Mosaic,
    Page,
    Passage,
    Strip,
    Table,
    Words,
)

STYLES = {"": "", "strong": "bold", "dim": "dim", "special": "bold magenta", "chosen": "bold green", "out": "dim"}
KINDS = {"code": "cyan", "bar": "green"}
SHADES = " ·░▒▓█"  # of a value from 0 to 1
BETWEEN = "  "
LUXURY = 3  # columns that are kept no more than this go before any other is cut
BAR = 20
LEAST = {"bar": 6, "code": 20}  # characters that these need at least
NARROW = 6  # characters that a column is left with when nothing else helps
LETTERS = 12  # of a name that stands on end
CELLS = 10  # characters of a grid's cell that holds a text

Spans = list[tuple[str, str]]  # one line: texts and their styles


def width() -> int:
    """The terminal's, or 100 columns where there is none."""
    return max(40, min(200, shutil.get_terminal_size((100, 24)).columns))


def plain(what: RenderableType, width: int = 100) -> str:
    """As text, without colours."""
    console = Console(width=width, color_system=None, force_terminal=False, force_jupyter=False)
    with console.capture() as captured:
        console.print(what)
    return captured.get()


@dataclass(frozen=True)
class Drawn:
    """A page for rich to print."""

    page: Page

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in self.page.parts:
            for line in draw(part, options.max_width):
                if not isinstance(line, list):
                    yield line
                    continue
                for text, style in line:
                    yield Segment(text, console.get_style(style) if style else None)
                yield Segment.line()


@singledispatch
def draw(part: object, width: int) -> Iterator[RenderableType | Spans]:
    """A part's lines, or what rich makes lines of."""
    raise NotImplementedError(type(part).__name__)


@draw.register
def _(part: Heading, width: int) -> Iterator[RenderableType | Spans]:
    yield Rule(part.text, align="left")


@draw.register
def _(part: Words, width: int) -> Iterator[RenderableType | Spans]:
    yield Text(part.text, STYLES[part.style])


@draw.register
def _(part: Passage, width: int) -> Iterator[RenderableType | Spans]:
    shown = Text(part.text)
    for piece in set(part.marked):
        shown.highlight_regex(re.escape(piece), STYLES["special"])
    yield Padding(shown, (0, 2))


@draw.register
def _(part: Fold, width: int) -> Iterator[RenderableType | Spans]:
    yield Rule(part.title, align="left")
    for inner in part.parts:
        yield from draw(inner, width)


# Tables -------------------------------------------------------------------------------------------------------------


@draw.register
def _(part: Table, width: int) -> Iterator[RenderableType | Spans]:
    """Laid out here, since a text may have a hundred thousand tokens."""
    shown, short, widths = fitted(part, width)
    columns = [part.columns[at] for at in shown]
    if any(column.name for column in columns):
        names = [told(column.name, size, column.kind == "number") for column, size in zip(columns, widths, strict=True)]
        yield [(BETWEEN.join(names).rstrip(), "dim")]
    for row in part.rows:
        cells = [lines(spelt(row.cells[at], short, size), size, column.kind)
                 for at, column, size in zip(shown, columns, widths, strict=True)]  # fmt: skip
        styles = [STYLES[row.style] or KINDS.get(column.kind, "") for column in columns]
        for line in zip_longest(*cells, fillvalue=""):
            spans = [told(text, size, column.kind == "number", column.ends) + BETWEEN
                     for text, size, column in zip(line, widths, columns, strict=True)]  # fmt: skip
            yield stripped(list(zip(spans, styles, strict=True)))
    gone = [column.name for at, column in enumerate(part.columns) if at not in shown and column.name]
    if gone:
        yield [(f"no room for: {', '.join(gone)}"[:width], "dim")]


def lines(text: str, width: int, kind: str) -> list[str]:
    """A cell's lines: code is folded where it does not fit, between words if there are any; all else is one line."""
    if kind != "code" or len(text) <= width:
        return [text]
    end = max(text.rfind(" ", 0, width), text.rfind("(", 0, width), text.rfind(".", 0, width)) + 1
    end = end if end > width // 2 else width
    return [text[:end], *lines(text[end:], width, kind)]


def stripped(line: Spans) -> Spans:
    """Without blanks at its end."""
    while line and not line[-1][0].rstrip():
        line.pop()
    if line:
        line[-1] = (line[-1][0].rstrip(), line[-1][1])
    return line


def fitted(table: Table, width: int) -> tuple[list[int], bool, list[int]]:
    """Which columns are shown, whether in their short forms, and how wide each is.

    Where it is narrow, luxuries go first; then what can be cut is cut, then short forms are taken, then columns go.
    """
    shown = list(range(len(table.columns)))
    while True:
        last = min(shown, key=lambda at: (table.columns[at].keep, -at))
        luxury = table.columns[last].keep <= LUXURY
        for short in (False, True):
            widths = [natural(table, at, short) for at in shown]
            for number in sorted(range(len(shown)), key=lambda number: -widths[number]) if not luxury else ():
                over = max(0, spread(widths) - width)
                widths[number] -= min(over, max(0, widths[number] - least(table, shown[number], short)))
            bars = [number for number, at in enumerate(shown) if table.columns[at].kind == "bar"]
            for number in bars:  # one scale for all
                widths[number] = min(widths[one] for one in bars)
            if spread(widths) <= width:
                return shown, short, widths
        if table.columns[last].keep >= 9:  # nothing can go: all give way
            while spread(widths) > width and max(widths) > NARROW:
                widths[widths.index(max(widths))] -= 1
            return shown, True, widths
        shown.remove(last)


def least(table: Table, at: int, short: bool) -> int:
    """How narrow a column may become. What has a short form takes that before it is folded."""
    column = table.columns[at]
    found = column.least or LEAST.get(column.kind, 1000)
    long = (len(cell.text) for row in table.rows if isinstance(cell := row.cells[at], Long))
    return found if short else max(found, *long, 0)


def spread(widths: Sequence[int]) -> int:
    return sum(widths) + len(BETWEEN) * (len(widths) - 1)


def natural(table: Table, at: int, short: bool) -> int:
    """How wide a column would like to be."""
    if table.columns[at].kind == "bar":
        return BAR
    sizes = (cell_len(spelt(row.cells[at], short, BAR)) for row in table.rows)
    return max(cell_len(table.columns[at].name), *sizes, 0)


def spelt(cell: Cell, short: bool, width: int) -> str:
    if isinstance(cell, Long):
        return cell.short if short else cell.text
    return cell if isinstance(cell, str) else "█" * round(cell * width)


def told(text: str, width: int, right: bool = False, ends: bool = False) -> str:
    """A text in exactly so many columns of the terminal."""
    size = cell_len(text)
    if size > width and ends:
        text = text[-max(1, width - 1) :]
        return told("…" + text[cell_len(text) - width + 1 :] if width > 1 else "…", width)
    if size > width:
        return set_cell_size(text, width - 1) + "…" if width > 1 else "…"[:width]
    return " " * (width - size) + text if right else text + " " * (width - size)


# Pictures -----------------------------------------------------------------------------------------------------------


@draw.register
def _(part: Grid, width: int) -> Iterator[RenderableType | Spans]:
    labels = min(max(map(cell_len, part.down), default=0), 16)
    cell = _cell(part, width - labels - 1)
    fit = max(1, (width - labels - 1) // cell)
    if part.whole:
        for at in range(0, len(part.across), fit):
            yield from _band(part, range(at, min(at + fit, len(part.across))), labels, cell)
        return
    shown = list(range(max(0, len(part.across) - fit), len(part.across)))
    if len(shown) < len(part.across):
        shown = [0, *shown[1:]] if part.first else shown
        kept = f"the first and the last {len(shown) - 1}" if part.first else f"the last {len(shown)}"
        yield [(f"{len(shown)} of {len(part.across)} columns: {kept}"[:width], "dim")]
    yield from _band(part, shown, labels, cell)


def _band(part: Grid, shown: Sequence[int], labels: int, cell: int) -> Iterator[Spans]:
    """Some of a grid's columns."""
    yield from _across([part.across[at] for at in shown], labels, cell)
    for number, name in enumerate(part.down):
        line: Spans = [(told(name, labels, right=True) + " ", "dim")]
        for at in shown:
            value = part.values[number][at]
            text = part.texts[number][at] if cell > 2 else ""
            line.append((_shaded(value, text, cell), "" if value is None else _strength(value)))
        yield stripped(line)


@draw.register
def _(part: Mosaic, width: int) -> Iterator[RenderableType | Spans]:
    rows, columns = part.maps.shape[:2]
    yield Text(f"all {rows} × {columns} maps as small pictures: --save maps.html", "dim")


@draw.register
def _(part: Gaze, width: int) -> Iterator[RenderableType | Spans]:
    yield from ()


def _cell(part: Grid, room: int) -> int:
    """How wide a cell is: narrow ones are a shade, wider ones have a text."""
    if not part.texts or not part.spare:
        return CELLS if part.texts else 2
    least = 2 + max((cell_len(text) for row in part.texts for text in row), default=0)
    each = room // max(1, len(part.across))
    return 2 if each < least else min(each, max(least, 1 + max(map(cell_len, part.across), default=0)))


def _across(names: Sequence[str], labels: int, cell: int) -> Iterator[Spans]:
    """The columns' names; where cells are narrow, down the page."""
    if cell > 2:
        yield [(" " * (labels + 1) + "".join(told(name, cell - 1) + " " for name in names).rstrip(), "dim")]
        return
    letters = [[*name[:LETTERS]] for name in names]
    for line in range(max(map(len, letters), default=0)):
        found = (letter[line] if line < len(letter) else "" for letter in letters)
        yield [((" " * (labels + 1) + "".join(told(one, cell) for one in found)).rstrip(), "dim")]


def _shaded(value: float | None, text: str, cell: int) -> str:
    if value is None:
        return " " * cell
    shade = SHADES[min(len(SHADES) - 1, int(abs(value) * len(SHADES)))]
    if cell > 2:
        return told(shade + text, cell - 1) + " "
    return shade * 2 if value >= 0 or shade == " " else f"-{shade}"


def _strength(value: float) -> str:
    strong = "dim" if abs(value) < 0.2 else "" if abs(value) < 0.6 else "bold"
    return strong if value >= 0 else f"{strong} red".strip()


@draw.register
def _(part: Strip, width: int) -> Iterator[RenderableType | Spans]:
    """One token a line, strongest marked by its bar."""
    sizes = [cell_len(token) for token in part.tokens]
    labels = min(max(sizes, default=0), max(NARROW, width // 3))
    notes = max(map(cell_len, part.notes), default=0)
    room = max(0, min(BAR * 2, width - labels - notes - 2 * len(BETWEEN)))
    for token, value, note in zip(part.tokens, part.values, part.notes, strict=True):
        yield [
            (told(token, labels) + BETWEEN, _strength(value)),
            (told(note, notes, right=True) + BETWEEN, "dim"),
            ("█" * round(value * room), "green"),
        ]


@draw.register
def _(part: Branch, width: int) -> Iterator[RenderableType | Spans]:
    yield _twig(part, "", width)
    yield from _boughs(part, "", width)


def _boughs(branch: Branch, before: str, width: int) -> Iterator[Spans]:
    for number, child in enumerate(branch.children):
        last = number == len(branch.children) - 1
        yield _twig(child, before + ("└─ " if last else "├─ "), width)
        yield from _boughs(child, before + ("   " if last else "│  "), width)


def _twig(branch: Branch, before: str, width: int) -> Spans:
    room = max(NARROW, width - cell_len(before) - cell_len(branch.note) - len(BETWEEN))
    text = told(branch.text, min(room, cell_len(branch.text)))
    return [(before, "dim"), (text, STYLES[branch.style]), (BETWEEN + branch.note if branch.note else "", "dim")]
