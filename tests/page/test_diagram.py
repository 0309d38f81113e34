"""Diagrams in both forms: widths follow shares, edges lead from box to box, and a terminal's picture has the same."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from rich.cells import cell_len

from glassformer.page.diagram import BOX_HEIGHT, edge_width, layout, svg_diagram
from glassformer.page.document import Diagram, DiagramEdge, DiagramNode, Page
from glassformer.page.terminal import TerminalPage, plain_text

FLOW = Diagram(
    "how it came",
    ("the", "cat", "sat"),
    ("", "block 0", "block 1", "score"),
    (
        DiagramNode("sat", 2, 3, 1.0, "+4.0"),
        DiagramNode("head 1", 2, 2, 0.75, "+3.0"),
        DiagramNode("mlp", 0, 1, 0.5, "+2.0"),
        DiagramNode("mlp", 2, 2, -0.25, "-1.0"),
        DiagramNode("embedding", 2, 0, 0.25, "+1.0"),
    ),
    (
        DiagramEdge(1, 0, 1.0, "+3.0"),
        DiagramEdge(2, 1, 0.5, "+2.0"),
        DiagramEdge(3, 0, -0.25, "-1.0"),
        DiagramEdge(4, 1, 0.2, "+0.8"),
    ),
)


def shown(part: Diagram, width: int) -> list[str]:
    return plain_text(TerminalPage(Page("", (part,))), width).splitlines()


def test_an_edges_width_is_its_share_and_its_color_its_sign() -> None:
    drawing = ET.fromstring(svg_diagram(FLOW))
    edges = [path for path in drawing.iter("path") if "edge" in path.attrib["class"]]
    found = {edge[0].text: (float(edge.attrib["stroke-width"]), edge.attrib["class"]) for edge in edges}
    assert found == {
        "block 1 head 1 at sat → score sat at sat: +3.0": (10.0, "edge more"),
        "block 0 mlp at the → block 1 head 1 at sat: +2.0": (5.0, "edge more"),
        "block 1 mlp at sat → score sat at sat: -1.0": (2.5, "edge less"),
        "embedding at sat → block 1 head 1 at sat: +0.8": (2.0, "edge more"),
    }
    assert edges[-1].attrib["stroke-width"] == "10.00", "the strongest lies over the others"
    assert edge_width(-2.0) == edge_width(1.0) > edge_width(0.5) > edge_width(float("nan")) > 0


def test_edges_begin_and_end_at_their_boxes_and_go_up_beside_one_another() -> None:
    places = layout(FLOW)
    drawing = ET.fromstring(svg_diagram(FLOW))
    assert sorted(places.boxes) == list(range(len(FLOW.nodes)))
    for path in drawing.iter("path"):
        if "edge" not in path.attrib["class"]:
            continue
        title = path[0].text or ""
        (index,) = (
            at for at, edge in enumerate(FLOW.edges) if title.endswith(edge.note) and FLOW.nodes[edge.source].label in title
        )
        edge, steps = FLOW.edges[index], re.findall(r"([MHQV])([\d. -]+)", path.attrib["d"])
        source, target = places.boxes[edge.source], places.boxes[edge.target]
        x, y = map(float, steps[0][1].split())
        assert x == pytest.approx(source.right, abs=0.1)
        assert source.top <= y <= source.top + BOX_HEIGHT
        command, last = steps[-1]
        if edge.target == 0:
            assert command == "V"
            assert float(last) == pytest.approx(target.top + BOX_HEIGHT, abs=0.1)
            assert target.left <= places.tracks[index] <= target.right
        else:
            assert command == "H"
            assert float(last) == pytest.approx(target.left if index == 1 else target.right, abs=0.1)
    spans = sorted((places.tracks[at] - edge_width(edge.value) / 2, places.tracks[at] + edge_width(edge.value) / 2)
                   for at, edge in enumerate(FLOW.edges))  # fmt: skip
    assert all(end < start for (_, end), (start, _) in pairwise(spans))


def test_boxes_do_not_overlap_and_lie_inside_the_drawing() -> None:
    places = layout(FLOW)
    boxes = sorted(places.boxes.values(), key=lambda box: (box.top, box.left))
    for one, other in pairwise(boxes):
        assert one.top != other.top or one.right < other.left
    assert max(box.right for box in boxes) <= places.width


def test_a_terminals_picture_goes_up_its_columns_and_across() -> None:
    assert shown(FLOW, 80) == [
        "        ●   score sat       +4.0  ██████████",
        "╰───────●   block 1 head 1  +3.0  ████████   → score sat",
        "│       ○   block 1 mlp     -1.0  ██         → score sat",
        "●       │   block 0 mlp     +2.0  █████      → block 1 head 1",
        "│       ●   embedding       +1.0  ██         → block 1 head 1",
        "the cat sat",
    ]


@pytest.mark.parametrize("width", [20, 30, 44, 60, 80, 200])
def test_a_picture_fits_every_width_and_names_columns_where_it_has_no_room_for_them(width: int) -> None:
    lines = shown(FLOW, width)
    assert max(map(cell_len, lines)) <= width
    assert any("│" in line for line in lines) or any("at " in line or "…" in line for line in lines)
