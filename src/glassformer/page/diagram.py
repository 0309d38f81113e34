"""A diagram in both forms: SVG for a browser, lines of letters for a terminal.

In both, what flows goes up its own column to the lane of what it enters, and then across. An edge's width is its share; a
negative one has another color and is dashed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape

from rich.cells import cell_len

from glassformer.page.document import Diagram, DiagramNode
from glassformer.page.format import drawable

LETTER = 6.2  # the width of a letter of the drawing, in the SVG's units
BOX_HEIGHT, LANE, GAP = 30.0, 44.0, 8.0  # of a box; from a lane to the next one; between boxes
TRACK_GAP, TURN = 2.5, 6.0  # between edges that go upwards side by side; how round they turn
WIDEST = 10.0  # of an edge
THINNEST = 0.6
MAX_LABEL = 16  # letters of a column's name in a drawing

BAR = 10  # characters of a terminal's bar
MAX_CELL = 12  # characters from a column of a terminal's picture to the next one
LEAST_CELL = 6  # for names that run across; below they run downwards

Spans = list[tuple[str, str]]


def edge_width(value: float) -> float:
    """How wide an edge is drawn: as its share.

    >>> edge_width(1.0), edge_width(-0.5), edge_width(0.0)
    (10.0, 5.0, 0.6)
    """
    return max(THINNEST, abs(drawable(value)) * WIDEST)


def sign(value: float) -> str:
    return "less" if value < 0 else "more"


def summary(part: Diagram) -> str:
    """What a diagram shows, in words: its strongest edges."""
    best = sorted(part.edges, key=lambda edge: -abs(edge.value))[:3]
    edges = "; ".join(f"{node_name(part, edge.source)} to {node_name(part, edge.target)} {edge.note}" for edge in best)
    return f"{part.title}: {edges}" if edges else part.title


def node_name(part: Diagram, index: int, column: bool = True) -> str:
    """A box by its lane, its label and its column."""
    node = part.nodes[index]
    words = [part.lanes[node.lane], node.label]
    name = " ".join(word for word in words if word)
    return f"{name} at {part.columns[node.column]}" if column else name


# A browser ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Box:
    """Where a node stands in the drawing."""

    left: float
    top: float
    width: float

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def middle(self) -> float:
        """Of its height."""
        return self.top + BOX_HEIGHT / 2


@dataclass
class DiagramLayout:
    """Where everything stands in the drawing.

    The boxes of a column stand right-aligned in their lanes. Beside them each edge that leaves one of them goes upwards on a
    track; those from higher lanes lie further inside, so that tracks into one box do not cross. A box that no edge leaves
    is the end of all that flows: it lies over the tracks and is entered from below.
    """

    boxes: dict[int, Box] = field(default_factory=dict)
    tracks: dict[int, float] = field(default_factory=dict)  # of each edge
    middles: list[float] = field(default_factory=list)  # of each column
    ends: set[int] = field(default_factory=set)  # nodes that no edge leaves
    width: float = 0.0


def layout(part: Diagram) -> DiagramLayout:
    found = DiagramLayout(ends={edge.target for edge in part.edges} - {edge.source for edge in part.edges})
    left = LETTER * max((len(name) for name in part.lanes), default=0) + 3 * GAP
    for column in range(len(part.columns)):
        left = _lay_column(part, found, column, left) + 2 * GAP
    found.width = left
    return found


def _lay_column(part: Diagram, found: DiagramLayout, column: int, left: float) -> float:
    """Give a column's boxes and edges their places; its right end."""
    widths = {which: LETTER * max(len(node.label), len(node.note), 3) + 12 for which, node in enumerate(part.nodes)}
    entered = {edge.target for edge in part.edges}
    lanes: dict[int, list[int]] = {}
    for index, node in enumerate(part.nodes):
        if node.column == column and index not in found.ends:
            lanes.setdefault(node.lane, []).append(index)
    spans = [sum(widths[index] + GAP for index in indices) - GAP for indices in lanes.values()]
    right = left + max(LETTER * min(len(part.columns[column]), MAX_LABEL), *spans, 0.0)
    found.middles.append((left + right) / 2)
    for lane, indices in lanes.items():
        x = right
        for index in sorted(indices, key=lambda which: (which in entered, -abs(part.nodes[which].value))):  # from the right
            found.boxes[index] = Box(x - widths[index], _lane_top(part, lane), widths[index])
            x -= widths[index] + GAP
    edges = [which for which, edge in enumerate(part.edges) if part.nodes[edge.source].column == column]
    edges.sort(key=lambda which: (part.edges[which].target in found.ends, -part.nodes[part.edges[which].source].lane))
    right += 2 * GAP
    starts: dict[int, float] = {}  # of each end: the first of the tracks that lead into it
    for which in edges:
        size = edge_width(part.edges[which].value)
        starts.setdefault(part.edges[which].target, right)
        found.tracks[which] = right + size / 2
        right += size + TRACK_GAP
    for index in found.ends:
        if part.nodes[index].column == column:
            start = starts.get(index, right)
            found.boxes[index] = Box(
                start - GAP, _lane_top(part, part.nodes[index].lane), max(widths[index], right - start + 2 * GAP)
            )
            right = max(right, found.boxes[index].right)
    return right


def _lane_top(part: Diagram, lane: int) -> float:
    return (len(part.lanes) - 1 - lane) * LANE + (LANE - BOX_HEIGHT) / 2


def svg_diagram(part: Diagram) -> str:
    """The diagram as an SVG that follows the page's colors."""
    places, height = layout(part), LANE * len(part.lanes) + 24
    edges = sorted(range(len(part.edges)), key=lambda which: abs(part.edges[which].value))  # the strongest over the others
    drawn = [
        *(_svg_lane(name, index, height, places.width) for index, name in enumerate(part.lanes)),
        *(_svg_column(name, x, height) for name, x in zip(part.columns, places.middles, strict=True)),
        *(_svg_edge(part, index, places) for index in edges),
        *(_svg_node(part, index, box) for index, box in sorted(places.boxes.items())),
    ]
    size = f'viewBox="0 0 {places.width:.0f} {height:.0f}" style="width:{places.width:.0f}px"'
    return (
        f'<figure class="diagram"><div class="wide" tabindex="0"><svg {size} role="img" '
        f'aria-label="{escape(summary(part))}">{"".join(drawn)}</svg></div></figure>'
    )


def _svg_lane(name: str, index: int, height: float, width: float) -> str:
    y = height - 24 - LANE * index
    middle = y - LANE / 2 + 4
    return f'<path class="rule" d="M0 {y:.1f}H{width:.1f}"/><text class="lane" x="0" y="{middle:.1f}">{escape(name)}</text>'


def _svg_column(name: str, x: float, height: float) -> str:
    short = name if len(name) <= MAX_LABEL else name[: MAX_LABEL - 1] + "…"
    return f'<text class="column" x="{x:.1f}" y="{height - 8:.1f}">{escape(short)}<title>{escape(name)}</title></text>'


def _svg_edge(part: Diagram, index: int, places: DiagramLayout) -> str:
    """Out of its box to the right, up on its track, and into the other box: from below, or from a side."""
    edge = part.edges[index]
    target, x = places.boxes[edge.target], places.tracks[index]
    lane, column = part.nodes[edge.source].lane, part.nodes[edge.source].column
    leaving = [
        which for which, other in enumerate(part.edges)
        if (part.nodes[other.source].lane, part.nodes[other.source].column) == (lane, column)
    ]  # fmt: skip
    start = places.boxes[edge.source]
    y = start.middle + _offset(index, leaving, places)
    path = f"M{start.right:.1f} {y:.1f}H{x - TURN:.1f}Q{x:.1f} {y:.1f} {x:.1f} {y - TURN:.1f}"
    if edge.target in places.ends and part.nodes[edge.target].column == column:
        path += f"V{target.top + BOX_HEIGHT:.1f}"
    else:
        left = x < target.left
        others = [
            which for which, other in enumerate(part.edges)
            if other.target == edge.target and (places.tracks[which] < target.left) == left
        ]  # fmt: skip
        y, end, turn = target.middle + _offset(index, others, places), target.left if left else target.right, TURN
        path += f"V{y + TURN:.1f}Q{x:.1f} {y:.1f} {x + (turn if left else -turn):.1f} {y:.1f}H{end:.1f}"
    note = f"{node_name(part, edge.source)} → {node_name(part, edge.target)}: {edge.note}"
    width = f'stroke-width="{edge_width(edge.value):.2f}"'
    return f'<path class="edge {sign(edge.value)}" {width} d="{path}"><title>{escape(note)}</title></path>'


def _offset(index: int, edges: list[int], places: DiagramLayout) -> float:
    """How far from a box's middle an edge leaves or enters it, of several: the further to the left, the higher."""
    order = sorted(edges, key=lambda which: places.tracks[which])
    step = min(WIDEST, (BOX_HEIGHT - WIDEST) / max(1, len(order) - 1))
    return step * (order.index(index) - (len(order) - 1) / 2)


def _svg_node(part: Diagram, index: int, box: Box) -> str:
    node, middle = part.nodes[index], box.left + box.width / 2
    place = f'x="{box.left:.1f}" y="{box.top:.1f}" width="{box.width:.1f}" height="{BOX_HEIGHT:.0f}" rx="4"'
    shade = f'<rect class="{sign(node.value)}" {place} fill-opacity="{abs(drawable(node.value)):.2f}"/>'
    texts = [node.label, node.note] if node.note else [node.label]
    first = box.middle + 4 - 6 * (len(texts) - 1)
    lines = "".join(
        f'<text x="{middle:.1f}" y="{first + 12 * line:.1f}">{escape(text)}</text>' for line, text in enumerate(texts)
    )
    title = f"<title>{escape(f'{node_name(part, index)} {node.note}'.strip())}</title>"
    return f'<g><rect class="ground" {place}/>{shade}{lines}{title}</g>'


# A terminal ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextLayout:
    """How a diagram is laid out in letters."""

    cell: int  # characters from a column to the next one; 0: there is no room for columns
    names: int  # of a box
    notes: int
    bar: int


def text_layout(part: Diagram, width: int) -> TextLayout:
    names = max((cell_len(node_name(part, index, False)) for index in range(len(part.nodes))), default=0)
    notes = max((cell_len(node.note) for node in part.nodes), default=0)
    count, longest = max(1, len(part.columns)), max(map(cell_len, part.columns), default=0)
    room = (width - names - notes - BAR - 6) // count
    if room >= min(longest + 1, LEAST_CELL):
        return TextLayout(min(room, max(3, longest + 1), MAX_CELL), names, notes, BAR)
    return TextLayout(2 if room >= 2 else 0, names, notes, BAR)


def text_diagram(part: Diagram, layout: TextLayout) -> Iterator[tuple[str, DiagramNode, str, tuple[str, ...]]]:
    """A line for each box, from the top: its columns as a picture, the box, its name, and where what it gives goes."""
    order = sorted(range(len(part.nodes)), key=lambda which: (-part.nodes[which].lane, -abs(part.nodes[which].value)))
    lines = {index: line for line, index in enumerate(order)}
    sources: dict[int, set[int]] = {}  # of each box: the columns that something comes across from
    targets: dict[int, list[int]] = {}
    tops = [len(order)] * len(part.columns)  # the line where a column's stream is last used
    for edge in sorted(part.edges, key=lambda edge: -abs(edge.value)):
        column = part.nodes[edge.source].column
        targets.setdefault(edge.source, []).append(edge.target)
        tops[column] = min(tops[column], lines[edge.target])
        if column != part.nodes[edge.target].column:
            sources.setdefault(edge.target, set()).add(column)
    for index, node in enumerate(part.nodes):
        tops[node.column] = min(tops[node.column], lines[index])
    for line, index in enumerate(order):
        node = part.nodes[index]
        picture = _rails(part, node, sources.get(index, set()), [line > top for top in tops], layout.cell)
        into = tuple(node_name(part, target, False) for target in targets.get(index, []))
        yield picture, node, node_name(part, index, not layout.cell), into


def _rails(part: Diagram, node: DiagramNode, sources: set[int], below: list[bool], cell: int) -> str:
    """A line of the columns' streams; `below`: whether a stream goes on upwards from this line."""
    ends = {node.column, *sources}
    first, last = min(ends), max(ends)
    cells = []
    for column in range(len(part.columns)):
        across = first <= column < last
        if column == node.column:
            mark = "●" if node.value >= 0 else "○"
        elif column in sources:
            left = column < node.column
            outer = column == (first if left else last)
            going_on = ("├" if left else "┤") if outer else "┼"
            mark = going_on if below[column] else ("╰" if left else "╯") if outer else "┴"
        else:
            mark = "│" if below[column] else "─" if first < column < last else " "  # what goes across passes behind
        cells.append(mark + ("─" if across else " ") * max(0, cell - 1))
    return "".join(cells) if cell else ""
