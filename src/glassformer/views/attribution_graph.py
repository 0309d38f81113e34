"""A linear attribution graph: from which parts, at which tokens, and through which heads a token's score came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from glassformer.page.document import Branch, Column, Heading, Page, PagePart, Paragraph, Style, Table, TableRow
from glassformer.page.format import format_percent, pluralize, visible
from glassformer.views.attribution import convention
from glassformer.views.view import View

MAX_SOURCES, MAX_CHILDREN, MAX_DEPTH = 12, 4, 4  # unless everything is shown
PartName = Literal["score", "embedding", "attention", "cross", "mlp"]


@dataclass(frozen=True)
class GraphNode:
    """A part of the model at one token; the score itself is node 0."""

    name: PartName
    block: int | None
    head: int | None
    position: int
    token: str
    value: float  # what it gave to the score: the sum of its edges to others
    followed: bool  # whether it is a sum of edges, pruned and biases; otherwise it is where the graph ends
    pruned: float  # what came in through edges below the threshold
    biases: float  # what biases on the way in added


@dataclass(frozen=True)
class GraphEdge:
    """How much of the score went from one node into another."""

    source: int  # its place among the nodes
    target: int
    value: float


@dataclass(frozen=True)
class AttributionGraph(View):
    """A token's score, followed back through attention heads to where it came from."""

    SCHEMA = "glassformer.attribution-graph/1"

    model: str
    position: int
    before: str  # the token at the position
    id: int
    text: str
    score: float  # its own; if it is compared with another token, its lead over that
    probability: float
    rank: int
    against: str | None
    centred: bool  # whether the mean over the vocabulary was subtracted from the score
    threshold: float  # edges below this share of the score (or of 1, if that is more) are pruned
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]
    sources: float  # the sum of the nodes where the graph ends; with the next three it is the score
    pruned: float
    biases: float
    rounding: float

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    def __repr__(self) -> str:
        return f"AttributionGraph({self.text!r}: {self.score:.2f} in {len(self.nodes)} nodes and {len(self.edges)} edges)"


def draw(view: AttributionGraph, everything: bool = False) -> Page:
    token, quantity = visible(view.text), "score" if view.against is None else f"lead over {visible(view.against)}"
    where = f"after {visible(view.before)} (position {view.position})"
    title = f"{view.model}: where {token}'s {quantity} {where} came from"
    ends = sorted((node for node in view.nodes if not node.followed), key=lambda node: -abs(node.value))
    shown = ends if everything else ends[:MAX_SOURCES]
    rest = sum(node.value for node in ends[len(shown) :])
    rows = [(node_label(node), node.value) for node in shown]
    rows += [(f"{len(ends) - len(shown)} weaker sources (--all)", rest)] if len(shown) < len(ends) else []
    rows += [("pruned edges", view.pruned), ("biases", view.biases), ("rounding", view.rounding)]
    parts: list[PagePart] = [
        Heading(title),
        Paragraph(
            "a linear attribution graph, in logits: patterns and norms are held at what they were; MLPs are sources\n"
            f"{convention(view.centred, view.against)}\n"
            f"{token}: probability {format_percent(view.probability)}, rank {view.rank:,}; "
            f"{pluralize(len(view.nodes), 'node')}, {pluralize(len(view.edges), 'edge')} of at least "
            f"{view.threshold:.3g} of the {quantity}",
            "dim",
        ),
        Heading(f"through which heads it came: the strongest edges into the {quantity}, and into them"),
        _tree(view, everything),
        Heading(f"where it came from: together the {quantity}, {view.score:.2f}"),
        _table(rows),
    ]
    return Page(title, tuple(parts))


def node_label(node: GraphNode) -> str:
    where = f"at {visible(node.token)} ({node.position})"
    if node.block is None:
        return f"{node.name} {where}"
    return f"block {node.block} {node.name}" + ("" if node.head is None else f" head {node.head}") + f" {where}"


def _tree(view: AttributionGraph, everything: bool) -> Branch:
    incoming: dict[int, list[GraphEdge]] = {}
    for edge in sorted(view.edges, key=lambda edge: -abs(edge.value)):
        incoming.setdefault(edge.target, []).append(edge)
    most = max((abs(edge.value) for edge in view.edges), default=1.0) or 1.0
    drawn: set[int] = set()

    def branches(number: int, depth: int) -> tuple[Branch, ...]:
        edges = incoming.get(number, [])
        shown = edges if everything else edges[:MAX_CHILDREN]
        children = []
        for edge in shown:
            node, note = view.nodes[edge.source], f"{edge.value:+.2f}"
            below: tuple[Branch, ...] = ()
            if node.followed and edge.source in drawn:
                note += ", see above"
            elif node.followed and (everything or depth < MAX_DEPTH):
                drawn.add(edge.source)
                below = branches(edge.source, depth + 1)
            style: Style = "dim" if edge.value < 0 else ""
            children.append(Branch(node_label(node), note, style, abs(edge.value) / most, below))
        if rest := edges[len(shown) :]:
            children.append(Branch("…", f"{sum(edge.value for edge in rest):+.2f} by {len(rest)} more (--all)", "dim"))
        return tuple(children)

    return Branch(visible(view.text), f"{view.score:+.2f}", "strong", None, branches(0, 1))


def _table(rows: Sequence[tuple[str, float]]) -> Table:
    most = max((abs(value) for _, value in rows), default=1.0) or 1.0
    columns = (Column("source"), Column("adds", "number"), Column("", "signed bar", priority=8))
    return Table(columns, tuple(TableRow((name, f"{round(value, 2) + 0.0:+.2f}", value / most)) for name, value in rows))
