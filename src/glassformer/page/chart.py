"""A line chart in both forms: SVG for a browser, dots of Braille characters for a terminal. One scale serves both.

The first line is drawn through its points; lines whose points are marked are few measurements, and each can be read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from glassformer.page.document import Line, LineChart

WIDTH, HEIGHT = 720, 200  # of the drawing area, in the SVG's units
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 10, 36  # around it: the axes' labels
TICKS = 5  # on an axis, about
ROWS = 10  # of characters
MAX_COLUMNS = 72
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a Braille character, by row and column
BLANK = 0x2800
MARK = "○"


@dataclass(frozen=True)
class Scale:
    """Where numbers stand between the ends of an axis, and which of them are written beside it."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        """From 0 to 1."""
        return (value - self.low) / (self.high - self.low)


def scale(values: Sequence[float], ticks: int = TICKS, from_zero: bool = False) -> Scale:
    """An axis over some numbers, with ticks at round ones.

    >>> scale([0.3, 9.2]).ticks, scale([7.0]).ticks
    ((2.0, 4.0, 6.0, 8.0), (6.5, 7.0, 7.5))
    """
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    low = min(0.0, low) if from_zero else low
    if low == high:
        room = abs(low) / 10 or 1.0
        low, high = low - room, high + room
    step = _round_step((high - low) / ticks)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Scale(low, high, tuple(round(index * step, 12) for index in range(first, last + 1)))


def _round_step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is no less."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def scales(chart: LineChart) -> tuple[Scale, Scale]:
    points = [point for line in chart.lines for point in line.points]
    return scale([x for x, _ in points], 2 * TICKS), scale([y for _, y in points], from_zero=chart.from_zero)


def tick_text(value: float) -> str:
    """
    >>> tick_text(2000.0), tick_text(0.0015), tick_text(-0.0)
    ('2,000', '0.0015', '0')
    """
    return f"{value + 0.0:,.0f}" if value == int(value) else f"{value:.4g}"


# A browser ----------------------------------------------------------------------------------------------------------


def svg_chart(chart: LineChart) -> str:
    """The chart as an SVG that follows the page's colors; who cannot see it hears where each line begins and ends."""
    across, up = scales(chart)
    parts = [*_svg_axes(chart, across, up)]
    for index, line in enumerate(chart.lines):
        places = [(LEFT + across.at(x) * WIDTH, TOP + (1 - up.at(y)) * HEIGHT) for x, y in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline class="line line-{index}" points="{path}"/>')
        if line.marked or len(places) == 1:
            parts += (_svg_mark(index, line, *pair) for pair in zip(places, line.points, strict=True))
    legend = "".join(
        f'<span class="key"><svg viewBox="0 0 20 10" aria-hidden="true"><polyline class="line line-{index}" '
        f'points="0,5 20,5"/></svg>{escape(line.name)}</span>'
        for index, line in enumerate(chart.lines)
        if len(chart.lines) > 1
    )
    size = f"0 0 {LEFT + WIDTH + RIGHT} {TOP + HEIGHT + BOTTOM}"
    return (
        f'<figure class="chart"><figcaption>{escape(chart.title)}{legend}</figcaption>'
        f'<svg viewBox="{size}" role="img" aria-label="{escape(summary(chart))}">{"".join(parts)}</svg></figure>'
    )


def _svg_axes(chart: LineChart, across: Scale, up: Scale) -> Iterator[str]:
    bottom = TOP + HEIGHT
    for value in up.ticks:
        y = TOP + (1 - up.at(value)) * HEIGHT
        yield f'<line class="rule" x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="up" x="{LEFT - 8}" y="{y + 4:.1f}">{tick_text(value)}</text>'
    for value in across.ticks:
        x = LEFT + across.at(value) * WIDTH
        yield f'<line class="rule" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
        yield f'<text class="across" x="{x:.1f}" y="{bottom + 18}">{tick_text(value)}</text>'
    yield f'<text class="name" x="{LEFT + WIDTH}" y="{bottom + 33}">{escape(chart.x_name)}</text>'


def _svg_mark(index: int, line: Line, place: tuple[float, float], point: tuple[float, float]) -> str:
    note = f"{line.name} {point[1]:.4g} at {tick_text(point[0])}"
    return (
        f'<circle class="mark-{index}" cx="{place[0]:.1f}" cy="{place[1]:.1f}" r="3"><title>{escape(note)}</title></circle>'
    )


def summary(chart: LineChart) -> str:
    """What a chart shows, in words."""
    lines = [f"{line.name} from {line.points[0][1]:.4g} to {line.points[-1][1]:.4g}" for line in chart.lines if line.points]
    return f"{chart.title}: {'; '.join(lines)}"


# A terminal ---------------------------------------------------------------------------------------------------------


def text_chart(chart: LineChart, width: int) -> Iterator[str]:
    """The chart in lines of at most `width` columns."""
    across, up = scales(chart)
    labels = {round((1 - up.at(value)) * (ROWS - 1)): tick_text(value) for value in up.ticks}
    left = max(map(len, labels.values()), default=0)
    columns = max(8, min(MAX_COLUMNS, width - left - 3 - len(chart.x_name)))
    cells = [[BLANK] * columns for _ in range(ROWS)]
    marks: dict[tuple[int, int], str] = {}
    for line in chart.lines:
        places = [(across.at(x), 1 - up.at(y)) for x, y in line.points]
        if line.marked:
            marks |= {(round(y * (ROWS - 1)), round(x * (columns - 1))): MARK for x, y in places}
        else:
            _draw_dots(cells, [(x * (2 * columns - 1), y * (4 * ROWS - 1)) for x, y in places])
    legend = "   ".join(f"{MARK if line.marked else '⣀⠤⠒'} {line.name}" for line in chart.lines)
    yield f"{chart.title}   {legend}" if len(chart.lines) > 1 else chart.title
    for row, characters in enumerate(cells):
        drawn = (marks.get((row, column)) or chr(code) for column, code in enumerate(characters))
        text = "".join(drawn).replace(chr(BLANK), " ").rstrip()
        yield f"{labels.get(row, ''):>{left}} ┤{text}" if row in labels else f"{'':{left}} │{text}"
    yield f"{'':{left}} └{_across_line(across, columns)} {chart.x_name}"[:width]


def _draw_dots(cells: list[list[int]], places: Sequence[tuple[float, float]]) -> None:
    """A line through places, given in dots."""
    for start, end in pairwise([places[0], *places] if places else []):
        count = max(1, math.ceil(max(abs(end[0] - start[0]), abs(end[1] - start[1]))))
        for index in range(count + 1):
            x, y = (round(a + (b - a) * index / count) for a, b in zip(start, end, strict=True))
            cells[y // 4][x // 2] |= DOTS[y % 4][x % 2]


def _across_line(across: Scale, columns: int) -> str:
    """The numbers below a chart, as many as do not touch."""
    line = " " * columns
    free = 0
    for value in across.ticks:
        text = tick_text(value)
        start = min(max(0, round(across.at(value) * (columns - 1)) - len(text) // 2), columns - len(text))
        if start >= free:
            line = line[:start] + text + line[start + len(text) :]
            free = start + len(text) + 2
    return line.rstrip()
