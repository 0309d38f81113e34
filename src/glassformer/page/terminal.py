"""Pages in the terminal, with rich. They fit its width, and can be read without color."""

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

from glassformer.page.chart import text_chart
from glassformer.page.diagram import text_diagram, text_layout
from glassformer.page.document import (
    Branch,
    Cell,
    Collapsible,
    Column,
    Diagram,
    Grid,
    Heading,
    HoverMap,
    LineChart,
    Page,
    Paragraph,
    Preformatted,
    Shortenable,
    Table,
    ThumbnailGrid,
    TokenStrip,
    escape_page,
)
from glassformer.page.format import drawable
from glassformer.page.palette import TERMINAL_NEGATIVE, TERMINAL_POSITIVE

RICH_STYLES = {"": "", "strong": "bold", "dim": "dim", "special": "bold magenta", "chosen": "bold green", "out": "dim"}
KIND_STYLES = {"code": "cyan", "bar": TERMINAL_POSITIVE, "signed bar": TERMINAL_POSITIVE}
SHADES = " ·░▒▓█"  # of a value from 0 to 1
GAP = "  "  # between columns
LOW_PRIORITY = 3  # columns of at most this priority are dropped before any other is cut
BAR_WIDTH = 20
BAR_WIDTHS = {"bar": BAR_WIDTH, "signed bar": 2 * BAR_WIDTH + 1}
MIN_WIDTHS = {"bar": 6, "signed bar": 13, "code": 20}
MIN_COLUMN_WIDTH = 6  # the width below which a column is not cut even when nothing else helps
MAX_ROTATED_LABEL = 12  # characters of a column's label that runs downwards
TEXT_CELL_WIDTH = 10  # of a grid

Spans = list[tuple[str, str]]  # one line: texts and their styles


def terminal_width() -> int:
    """The terminal's, or 100 columns where there is none."""
    return max(40, min(200, shutil.get_terminal_size((100, 24)).columns))


def plain_text(renderable: RenderableType, width: int = 100) -> str:
    """What rich prints, without colors."""
    console = Console(width=width, color_system=None, force_terminal=False, force_jupyter=False)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


@dataclass(frozen=True)
class TerminalPage:
    """A page for rich to print."""

    page: Page

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in escape_page(self.page).parts:
            for line in render(part, options.max_width):
                if isinstance(line, list):
                    yield from (Segment(text, console.get_style(style) if style else None) for text, style in line)
                    yield Segment.line()
                    continue
                for segments in console.render_lines(line, options, pad=False):
                    yield from strip_segments(segments)
                    yield Segment.line()


def strip_segments(segments: list[Segment]) -> list[Segment]:
    """A line without trailing spaces."""
    kept = list(segments)
    while kept and not kept[-1].text.rstrip(" "):
        kept.pop()
    return [*kept[:-1], Segment(kept[-1].text.rstrip(" "), kept[-1].style)] if kept else []


@singledispatch
def render(part: object, width: int) -> Iterator[RenderableType | Spans]:
    """A part's lines, or what rich renders as lines."""
    raise NotImplementedError(type(part).__name__)


@render.register
def _(part: Heading, width: int) -> Iterator[RenderableType | Spans]:
    yield Rule(Text(part.text, "rule.text"), align="left")


@render.register
def _(part: Paragraph, width: int) -> Iterator[RenderableType | Spans]:
    yield Text(part.text, RICH_STYLES[part.style])


@render.register
def _(part: Preformatted, width: int) -> Iterator[RenderableType | Spans]:
    text = Text(part.text)
    for piece in set(part.highlights):
        text.highlight_regex(re.escape(piece), RICH_STYLES["special"])
    yield Padding(text, (0, 2))


@render.register
def _(part: Collapsible, width: int) -> Iterator[RenderableType | Spans]:
    yield Rule(Text(part.title, "rule.text"), align="left")
    for inner in part.parts:
        yield from render(inner, width)


# Tables -------------------------------------------------------------------------------------------------------------


@render.register
def _(part: Table, width: int) -> Iterator[RenderableType | Spans]:
    """Laid out here rather than by rich, which is slow with the hundred thousand tokens of a long text."""
    shown, short, widths = fit_columns(part, width)
    columns = [part.columns[index] for index in shown]
    if any(column.name for column in columns):
        names = [fit_text(column.name, size, column.kind == "number") for column, size in zip(columns, widths, strict=True)]
        yield [(GAP.join(names).rstrip(), "dim")]
    for row in part.rows:
        cells = [wrap_cell(cell_text(row.cells[index], short, size, column.kind), size, column)
                 for index, column, size in zip(shown, columns, widths, strict=True)]  # fmt: skip
        styles = [RICH_STYLES[row.style] or _cell_style(row.cells[index], part.columns[index]) for index in shown]
        for line in zip_longest(*cells, fillvalue=""):
            spans = [fit_text(text, size, column.kind == "number", column.keep_end) + GAP
                     for text, size, column in zip(line, widths, columns, strict=True)]  # fmt: skip
            yield strip_line(list(zip(spans, styles, strict=True)))
    dropped = [column.name for index, column in enumerate(part.columns) if index not in shown and column.name]
    if dropped:
        yield [(f"no room for: {', '.join(dropped)}"[:width], "dim")]


def _cell_style(cell: Cell, column: Column) -> str:
    return TERMINAL_NEGATIVE if isinstance(cell, float) and cell < 0 else KIND_STYLES.get(column.kind, "")


def wrap_cell(text: str, width: int, column: Column) -> list[str]:
    """A cell's lines: code is wrapped where it does not fit, between words if possible; all else is one line."""
    if not (column.wraps or column.kind == "code") or len(text) <= width:
        return [text]
    breaks = " (." if column.kind == "code" else " "
    end = max(text.rfind(character, 0, width) for character in breaks) + 1
    end = end if end > width // 2 else width
    return [text[:end], *wrap_cell(text[end:], width, column)]


def strip_line(line: Spans) -> Spans:
    """The line without trailing spaces."""
    while line and not line[-1][0].rstrip():
        line.pop()
    if line:
        line[-1] = (line[-1][0].rstrip(), line[-1][1])
    return line


def fit_columns(table: Table, width: int) -> tuple[list[int], bool, list[int]]:
    """Which columns are shown, whether in their short forms, and how wide each is.

    Where it is narrow, columns of low priority are dropped first; then what can be cut is cut, then short forms are taken,
    then other columns are dropped.
    """
    shown = list(range(len(table.columns)))
    while True:
        last = min(shown, key=lambda column_index: (table.columns[column_index].priority, -column_index))
        low = table.columns[last].priority <= LOW_PRIORITY
        for short in (False, True):
            widths = [natural_width(table, column_index, short) for column_index in shown]
            for index in sorted(range(len(shown)), key=lambda index: -widths[index]) if not low else ():
                over = max(0, total_width(widths) - width)
                widths[index] -= min(over, max(0, widths[index] - minimum_width(table, shown[index], short)))
            bars = [index for index, column_index in enumerate(shown) if table.columns[column_index].kind == "bar"]
            for index in bars:  # one scale for all
                widths[index] = min(widths[bar] for bar in bars)
            if total_width(widths) <= width:
                return shown, short, widths
        if table.columns[last].priority >= 9:  # nothing can be dropped: cut the widest
            while total_width(widths) > width and max(widths) > MIN_COLUMN_WIDTH:
                widths[widths.index(max(widths))] -= 1
            return shown, True, widths
        shown.remove(last)


def minimum_width(table: Table, column_index: int, short: bool) -> int:
    """How narrow a column may become. Texts that have a short form take it before they are wrapped."""
    column = table.columns[column_index]
    least = column.min_width or MIN_WIDTHS.get(column.kind, 1000)
    long = (len(cell.text) for row in table.rows if isinstance(cell := row.cells[column_index], Shortenable))
    return least if short else max(least, *long, 0)


def total_width(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def natural_width(table: Table, column_index: int, short: bool) -> int:
    """How wide a column is where there is room."""
    kind = table.columns[column_index].kind
    if kind in BAR_WIDTHS:
        return BAR_WIDTHS[kind]
    sizes = (cell_len(cell_text(row.cells[column_index], short, 0, kind)) for row in table.rows)
    return max(cell_len(table.columns[column_index].name), *sizes, 0)


def cell_text(cell: Cell, short: bool, width: int, kind: str) -> str:
    if isinstance(cell, Shortenable):
        return cell.short if short else cell.text
    if isinstance(cell, str):
        return cell
    return signed_bar(cell, width) if kind == "signed bar" else "█" * round(drawable(cell) * width)


def signed_bar(value: float, width: int) -> str:
    """A bar that grows from a line in the middle, to the left if it is negative.

    >>> signed_bar(-0.5, 9), signed_bar(1.0, 9)
    ('  ██│', '    │████')
    """
    half = (width - 1) // 2
    bar = "█" * round(abs(drawable(value)) * half)
    return f"{bar:>{half}}│" if value < 0 else f"{'':{half}}│{bar}"


def fit_text(text: str, width: int, right: bool = False, keep_end: bool = False) -> str:
    """A text padded or cut to exactly `width` columns of the terminal."""
    size = cell_len(text)
    if size > width and keep_end:
        text = text[-max(1, width - 1) :]
        return fit_text("…" + text[cell_len(text) - width + 1 :] if width > 1 else "…", width)
    if size > width:
        return set_cell_size(text, width - 1) + "…" if width > 1 else "…"[:width]
    return " " * (width - size) + text if right else text + " " * (width - size)


# Grids and trees ----------------------------------------------------------------------------------------------------


@render.register
def _(part: Grid, width: int) -> Iterator[RenderableType | Spans]:
    labels = min(max(map(cell_len, part.row_labels), default=0), 16)
    cell = _cell_width(part, width - labels - 1)
    fit = max(1, (width - labels - 1) // cell)
    if part.all_columns:
        for start in range(0, len(part.column_labels), fit):
            yield from _grid_lines(part, range(start, min(start + fit, len(part.column_labels))), labels, cell)
        return
    shown = list(range(max(0, len(part.column_labels) - fit), len(part.column_labels)))
    if len(shown) < len(part.column_labels):
        shown = [0, *shown[1:]] if part.keep_first else shown
        which = f"the first and the last {len(shown) - 1}" if part.keep_first else f"the last {len(shown)}"
        yield [(f"{len(shown)} of {len(part.column_labels)} columns: {which}"[:width], "dim")]
    yield from _grid_lines(part, shown, labels, cell)


def _grid_lines(part: Grid, shown: Sequence[int], labels: int, cell: int) -> Iterator[Spans]:
    """The lines of some of a grid's columns."""
    yield from _column_labels([part.column_labels[column] for column in shown], labels, cell)
    for index, name in enumerate(part.row_labels):
        line: Spans = [(fit_text(name, labels, right=True) + " ", "dim")]
        for column in shown:
            value = part.values[index][column]
            text = part.texts[index][column] if cell > 2 else ""
            line.append((_shaded(value, text, cell), "" if value is None else _shade_style(value)))
        yield strip_line(line)


@render.register
def _(part: ThumbnailGrid, width: int) -> Iterator[RenderableType | Spans]:
    rows, columns = part.maps.shape[:2]
    yield Text(f"all {rows} × {columns} maps as small pictures: --save maps.html", "dim")


@render.register
def _(part: LineChart, width: int) -> Iterator[RenderableType | Spans]:
    yield from ([(line, "")] for line in text_chart(part, width))


@render.register
def _(part: Diagram, width: int) -> Iterator[RenderableType | Spans]:
    """A line for each box below its streams; at its end, where there is room, what it goes into."""
    layout = text_layout(part, width)
    for picture, node, name, into in text_diagram(part, layout):
        color = TERMINAL_POSITIVE if node.value >= 0 else TERMINAL_NEGATIVE
        size = max(MIN_COLUMN_WIDTH, min(layout.names, width - len(picture) - layout.notes - 4)) if picture else 0
        line = [
            (picture, "dim"),
            (fit_text(name, size or min(cell_len(name), width - layout.notes - 4)) + GAP, ""),
            (fit_text(node.note, layout.notes, right=True) + GAP, ""),
            (fit_text("█" * round(abs(drawable(node.value)) * layout.bar), layout.bar), color),
        ]
        used = sum(cell_len(text) for text, _ in line)
        if into and width - used > MIN_COLUMN_WIDTH:
            more = f" and {len(into) - 1} more" if len(into) > 1 else ""
            line.append((fit_text(f" → {into[0]}{more}", width - used).rstrip(), "dim"))
        yield strip_line(_cut(line, width))
    if layout.cell:
        yield from _column_labels(part.columns, -1, layout.cell)


def _cut(line: Spans, width: int) -> Spans:
    """As much of a line as fits."""
    cut: Spans = []
    for text, style in line:
        cut.append((text if cell_len(text) <= width else fit_text(text, max(0, width)), style))
        width -= cell_len(cut[-1][0])
    return cut


@render.register
def _(part: HoverMap, width: int) -> Iterator[RenderableType | Spans]:
    yield from ()


def _cell_width(part: Grid, room: int) -> int:
    """How wide a cell is: one of 2 characters is only a shade, wider ones have a text."""
    if not part.texts or not part.texts_optional:
        return TEXT_CELL_WIDTH if part.texts else 2
    least = 2 + max((cell_len(text) for row in part.texts for text in row), default=0)
    even = room // max(1, len(part.column_labels))
    return 2 if even < least else min(even, max(least, 1 + max(map(cell_len, part.column_labels), default=0)))


def _column_labels(names: Sequence[str], labels: int, cell: int) -> Iterator[Spans]:
    """The columns' labels; where cells are narrow, they run downwards."""
    if cell > 2:
        yield [(" " * (labels + 1) + "".join(fit_text(name, cell - 1) + " " for name in names).rstrip(), "dim")]
        return
    letters = [[*name[:MAX_ROTATED_LABEL]] for name in names]
    for line in range(max(map(len, letters), default=0)):
        row = (label[line] if line < len(label) else "" for label in letters)
        yield [((" " * (labels + 1) + "".join(fit_text(letter, cell) for letter in row)).rstrip(), "dim")]


def _shaded(value: float | None, text: str, cell: int) -> str:
    if value is None:
        return " " * cell
    shade = SHADES[min(len(SHADES) - 1, int(abs(drawable(value)) * len(SHADES)))]
    if cell > 2:
        return fit_text(shade + text, cell - 1) + " "
    return shade * 2 if value >= 0 or shade == " " else f"-{shade}"


def _shade_style(value: float) -> str:
    strong = "dim" if abs(value) < 0.2 else "" if abs(value) < 0.6 else "bold"
    return strong if value >= 0 else f"{strong} {TERMINAL_NEGATIVE}".strip()


@render.register
def _(part: TokenStrip, width: int) -> Iterator[RenderableType | Spans]:
    """One token a line, its value as a bar; where some are negative, bars grow from a line in the middle."""
    sizes = [cell_len(token) for token in part.tokens]
    labels = min(max(sizes, default=0), max(MIN_COLUMN_WIDTH, width // 3))
    notes = max(map(cell_len, part.notes), default=0)
    room = max(0, min(BAR_WIDTH * 2, width - labels - notes - 2 * len(GAP)))
    kind = "signed bar" if room > 2 and any(value < 0 for value in part.values) else "bar"
    for token, value, note in zip(part.tokens, part.values, part.notes, strict=True):
        yield [
            (fit_text(token, labels) + GAP, _shade_style(value)),
            (fit_text(note, notes, right=True) + GAP, "dim"),
            (cell_text(value, False, room, kind), TERMINAL_POSITIVE if value >= 0 else TERMINAL_NEGATIVE),
        ]


@render.register
def _(part: Branch, width: int) -> Iterator[RenderableType | Spans]:
    yield _branch_line(part, "", width)
    yield from _child_lines(part, "", width)


def _child_lines(branch: Branch, before: str, width: int) -> Iterator[Spans]:
    for index, child in enumerate(branch.children):
        last = index == len(branch.children) - 1
        yield _branch_line(child, before + ("└─ " if last else "├─ "), width)
        yield from _child_lines(child, before + ("   " if last else "│  "), width)


def _branch_line(branch: Branch, before: str, width: int) -> Spans:
    room = max(MIN_COLUMN_WIDTH, width - cell_len(before) - cell_len(branch.note) - len(GAP))
    text = fit_text(branch.text, min(room, cell_len(branch.text)))
    return [(before, "dim"), (text, RICH_STYLES[branch.style]), (GAP + branch.note if branch.note else "", "dim")]
