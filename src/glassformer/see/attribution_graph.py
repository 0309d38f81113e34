"""A linear attribution graph over a prompt: a score followed back through the heads that carried it.

Direct attribution says what each head added to a score, and stops there. But a head only moves what earlier parts wrote: its
output is a sum over tokens, with the pattern's weights, of a linear map of each token's stream, which is a sum itself. With
patterns and norms frozen, each edge of this is a value, those into a node add up to those out of it, and the score is the
sum of where they all come from: embeddings of tokens, MLPs, biases (Elhage et al. 2021). MLPs are not linear, so they are
sources of their own. An edge below a threshold is not followed further, and counted as pruned.

Shapes: g (rows, heads, head_size); values (positions, width).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, cast

import numpy as np

from glassformer.ground.errors import InputError
from glassformer.ground.operations import about, operation
from glassformer.ops.token_mixer import TokenMixer
from glassformer.page.document import Diagram, DiagramEdge, DiagramNode, Heading, Page, Paragraph
from glassformer.page.format import pluralize, visible
from glassformer.see.activations import Activations
from glassformer.see.attribution import (
    AgainstArgument,
    AttributedScore,
    CentredArgument,
    MetricArgument,
    PositionArgument,
    ScoreTarget,
    TokenArgument,
    additions_table,
    score_target,
)
from glassformer.see.linear_walk import STREAM_SITES, Arrival, Doubles, has_heads, part_name
from glassformer.see.view import View

MAX_SOURCES = 12  # unless everything is shown
DRAWN_EDGES, MAX_DRAWN_EDGES = 24, 80  # by default, and where everything is shown: more lie over one another
PartName = Literal["score", "embedding", "attention", "recurrent", "cross", "mlp", "layer input"]


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

    source: int  # its index among the nodes
    target: int
    value: float


@dataclass(frozen=True)
class AttributionGraph(AttributedScore, View):
    """A token's score, followed back through attention heads to where it came from."""

    SCHEMA = "glassformer.attribution-graph/1"

    threshold: float  # edges below this share of the score (or of 1, if that is more) are pruned
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]
    sources: float  # the sum of the nodes where the graph ends; with the next three it is the score
    pruned: float
    biases: float
    rounding: float

    def page(self, everything: bool = False) -> Page:
        quantity = self.quantity
        ends = sorted((node for node in self.nodes if not node.followed), key=lambda node: -abs(node.value))
        shown = ends if everything else ends[:MAX_SOURCES]
        rest = sum(node.value for node in ends[len(shown) :])
        rows = [(node_label(node), node.value) for node in shown]
        rows += [(f"{len(ends) - len(shown)} weaker sources (--all)", rest)] if len(shown) < len(ends) else []
        rows += [("pruned edges", self.pruned), ("biases", self.biases), ("rounding", self.rounding)]
        drawn = strongest_edges(self, MAX_DRAWN_EDGES if everything else DRAWN_EDGES)
        return Page.titled(
            f"{self.model}: where {visible(self.text)}'s {quantity} {self.place} came from",
            Paragraph(
                "a linear attribution graph, in logits: patterns and norms are held at what they were; MLPs are sources\n"
                f"{self.about}; {pluralize(len(self.nodes), 'node')}, {pluralize(len(self.edges), 'edge')} of at least "
                f"{self.threshold:.3g} of the {quantity}",
                "dim",
            ),
            Heading(f"through which heads it came: the strongest edges into the {quantity}, and into them"),
            diagram(self, drawn),
            Paragraph(_drawn_text(self, drawn, quantity), "dim"),
            Heading(f"where it came from: together the {quantity}, {self.score:.2f}"),
            additions_table("source", rows),
        )

    def __repr__(self) -> str:
        return f"AttributionGraph({self.text!r}: {self.score:.2f} in {len(self.nodes)} nodes and {len(self.edges)} edges)"


def node_label(node: GraphNode) -> str:
    where = f"at {visible(node.token)} ({node.position})"
    if node.block is None:
        return f"{node.name} {where}"
    return f"block {node.block} {node.name}" + ("" if node.head is None else f" head {node.head}") + f" {where}"


def _drawn_text(view: AttributionGraph, drawn: Sequence[GraphEdge], quantity: str) -> str:
    """How a drawing is read, and what of the score does not stand in it."""
    rest = view.score - sum(edge.value for edge in drawn if edge.target == 0)
    return (
        "up a column flows what parts wrote for their token; heads carry it across from the tokens that they read.\n"
        f"{len(drawn)} of {pluralize(len(view.edges), 'edge')}, the strongest on their way to the {quantity}; "
        f"all others into it come to {rest:+.2f}"
    )


def strongest_edges(view: AttributionGraph, count: int) -> list[GraphEdge]:
    """The edges of most worth, best first, each of which leads on to the score through others of them."""
    incoming: dict[int, list[GraphEdge]] = {}
    for edge in view.edges:
        incoming.setdefault(edge.target, []).append(edge)
    found: list[GraphEdge] = []
    reached: set[int] = set()
    waiting: list[tuple[float, int, int]] = []  # the edge's worth, less first; its ends

    def reach(node: int) -> None:
        reached.add(node)
        for edge in incoming.get(node, []):
            heapq.heappush(waiting, (-abs(edge.value), edge.target, edge.source))

    values = {(edge.target, edge.source): edge for edge in view.edges}
    reach(0)
    while waiting and len(found) < count:
        _, target, source = heapq.heappop(waiting)
        found.append(values[target, source])
        if source not in reached:
            reach(source)
    return found


def diagram(view: AttributionGraph, edges: Sequence[GraphEdge]) -> Diagram:
    """Some edges as a drawing: a column for each token, a lane for each block, and the score on top."""
    numbers = list(dict.fromkeys([0, *(end for edge in edges for end in (edge.target, edge.source))]))
    nodes = [replace(view.nodes[0], value=view.score), *(view.nodes[index] for index in numbers[1:])]
    positions = sorted({node.position for node in nodes})
    heights = sorted({_height(node) for node in nodes})
    most = max((abs(edge.value) for edge in edges), default=1.0) or 1.0
    largest = max((abs(node.value) for node in nodes), default=1.0) or 1.0
    texts = {node.position: visible(node.token) for node in nodes}
    boxes = tuple(
        DiagramNode(
            _box_label(view, node), positions.index(node.position), heights.index(_height(node)), node.value / largest,
            f"{node.value:+.2f}",
        )
        for node in nodes
    )  # fmt: skip
    places = {index: place for place, index in enumerate(numbers)}
    lines = tuple(
        DiagramEdge(places[edge.source], places[edge.target], edge.value / most, f"{edge.value:+.2f}") for edge in edges
    )
    lanes = {_height(node): "" if node.block is None else f"block {node.block}" for node in nodes}
    columns = tuple(texts[position] for position in positions)
    title = f"through which parts and heads the score of {visible(view.text)} came"
    return Diagram(title, columns, tuple(lanes[height] for height in heights), boxes, lines)


def _height(node: GraphNode) -> float:
    """Of its lane: embeddings lie below all blocks, the score above."""
    return math.inf if node.name == "score" else -1 if node.block is None else node.block


def _box_label(view: AttributionGraph, node: GraphNode) -> str:
    if node.name == "score":
        return visible(view.text)
    if node.head is None:
        return node.name
    return f"head {node.head}" if node.name == "attention" else f"{node.name} head {node.head}"


THRESHOLD = 0.02
MAX_BYTES = 1_000_000_000  # of values that are held
MAX_FOLLOWED = 500  # heads that are followed back

NodeKey = tuple[PartName, int | None, int | None, int]  # name, block, head, position


@operation(
    route="graph",
    example='glass graph --raw "The capital of France is"   ·   '
    'glass graph --raw "The capital of France is" --wrote " Paris" --against " Rome"',
)
def graph(
    reading: Activations,
    position: PositionArgument = -1,
    token: TokenArgument = None,
    against: AgainstArgument = None,
    *,
    metric: MetricArgument = "lead",
    centred: CentredArgument = False,
    threshold: Annotated[
        float,  # a lower one than is served has more edges than anybody looks at
        about("Edges below this share of it are pruned, and summed up.", served_minimum=0.001, served_maximum=1),
    ] = THRESHOLD,
) -> AttributionGraph:
    """Follow a token's lead back through the heads that carried it, to the tokens and MLPs it came from."""
    if not 0 <= threshold <= 1:
        raise InputError(f"threshold is {threshold}; it is a share of the score, from 0 to 1.")
    reading.model.config.check_equations("the parts of a score")
    extra = ("attention.value", "attention.pattern")
    held = [site for site in reading.model.blueprint.sites if site.endswith((*STREAM_SITES, *extra))]
    if (size := reading.cost(*held).bytes) > MAX_BYTES:
        raise InputError(
            f"a graph over {len(reading)} tokens needs {size / 1e9:.1f} GB of values; {MAX_BYTES / 1e9:.0f} GB is the most. "
            "Shorten the text."
        )
    target = score_target(reading, position, token, against, metric=metric, centred=centred, all_positions=True)
    attention, score = reading.values(*(f"blocks.*.{site}" for site in extra)), target.score
    search = GraphSearch(target, attention, threshold * max(abs(score.score), 1.0))
    nodes = search.nodes(reading.texts)
    sources = sum(node.value for node in nodes if not node.followed)
    pruned, biases = sum(node.pruned for node in nodes), target.constant + sum(node.biases for node in nodes)
    return AttributionGraph(
        **vars(score), threshold=threshold, nodes=tuple(nodes), edges=tuple(search.edges), sources=sources, pruned=pruned,
        biases=biases, rounding=score.score - sources - pruned - biases,
    )  # fmt: skip


@dataclass
class GraphSearch:
    """A walk back from a score that goes on through each head with a share in it."""

    target: ScoreTarget
    attention: dict[str, np.ndarray]  # values and patterns, by site
    threshold: float  # the smallest edge that counts
    keys: list[NodeKey] = field(default_factory=list)
    edges: list[GraphEdge] = field(default_factory=list)
    pruned: dict[int, float] = field(default_factory=dict)  # by node, of those that are followed
    readers: list[int] = field(default_factory=list)  # of each row of the walk: the node that reads
    indices: dict[NodeKey, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.walk, position = self.target.walk, self.target.index
        score = self._index(("score", None, None, position))
        self._follow(score, self.walk.ops[-1].inputs[0], position, self.target.g)
        for arrival in self.walk.arrivals():
            op = self.walk.ops[arrival.op_index]
            if arrival.kind == "heads":
                self._heads(arrival)
            elif arrival.kind == "embedding":
                self._sources(arrival, "embedding", None)
            elif not has_heads(self.walk.model.blueprint, arrival.op_index):
                self._sources(arrival, cast(PartName, part_name(op)), op.block)

    def nodes(self, texts: tuple[str, ...]) -> list[GraphNode]:
        values, biases = ([0.0] * len(self.keys) for _ in range(2))
        for row, reader in enumerate(self.readers):
            biases[reader] += self.walk.constants[row] + sum(self.walk.update_constants[row].values())
        values[0] = self.pruned[0] + biases[0]
        for edge in self.edges:
            values[edge.source] += edge.value
            values[0] += edge.value if edge.target == 0 else 0.0
        return [
            GraphNode(*key, texts[key[-1]], values[index], index in self.pruned, self.pruned.get(index, 0.0), biases[index])
            for index, key in enumerate(self.keys)
        ]

    def _sources(self, arrival: Arrival, name: PartName, block: int | None) -> None:
        """Edges from a part that is not followed further."""
        positions = [self.walk.positions[row] for row in arrival.rows]
        shares = (arrival.g * self.walk.value(arrival.op_index)[positions]).sum(-1)
        for row, share, position in zip(arrival.rows.tolist(), shares.tolist(), positions, strict=True):
            self._edge((name, block, None, position), self.readers[row], share)

    def _heads(self, arrival: Arrival) -> None:
        """Edges from a block's heads; those of attention to the text itself are followed to what they read. What a state is
        written with is no linear map of the stream, so that its heads are sources."""
        op = self.walk.ops[arrival.op_index]
        positions = np.array([self.walk.positions[row] for row in arrival.rows])
        shares = (arrival.g * self.walk.values[op.inner_site("heads")][positions]).sum(-1)  # (rows, heads)
        assert isinstance(op, TokenMixer)
        name = cast(PartName, op.site_prefix)
        sums: dict[int, Doubles] = {}  # by node: what its output is worth to all that read it
        for row, head in np.ndindex(*shares.shape):
            key: NodeKey = (name, op.block, head, int(positions[row]))
            if (node := self._edge(key, self.readers[arrival.rows[row]], float(shares[row, head]))) is not None:
                sums[node] = sums.get(node, 0.0) + arrival.g[row, head]
        if name == "attention" and op.linear_values:
            for node, g in sums.items():
                self._read_tokens(node, arrival.op_index, g)

    def _read_tokens(self, node: int, attend: int, g: Doubles) -> None:
        """What a head read: from each token its pattern's weight times the token's value."""
        op, (_, _, head, position) = self.walk.ops[attend], self.keys[node]
        assert head is not None
        value_op = op.inputs[2]
        groups, size = self.walk.ops[value_op].head_shape
        values = self.walk.ops[value_op].site  # an earlier block's, where several share theirs
        assert values is not None
        group = head // (op.head_shape[0] // groups)
        (site,) = (site for site in op.inner_sites if site.endswith(".pattern"))
        pattern = self.attention[site][head, position].astype(np.float64)
        shares = pattern * (self.attention[values][group].astype(np.float64) @ g)
        counted = (np.abs(shares) >= self.threshold) & (shares != 0)
        self.pruned[node] = float(shares[~counted].sum())
        for token in np.flatnonzero(counted).tolist():
            worth = np.zeros((groups, size))
            worth[group] = pattern[token] * g
            self._follow(node, value_op, token, worth.reshape(-1))

    def _follow(self, reader: int, op: int, position: int, g: Doubles) -> None:
        self.pruned.setdefault(reader, 0.0)
        if len(self.pruned) > MAX_FOLLOWED:
            raise InputError(f"the graph has more than {MAX_FOLLOWED} heads to follow. Raise the threshold.")
        row = self.walk.start(op, position, g)
        assert row == len(self.readers)
        self.readers.append(reader)

    def _edge(self, source: NodeKey, target: int, value: float) -> int | None:
        """Note what went from a part into a node; gives the part's index, or None where it is too little to count."""
        if abs(value) < self.threshold or not value:
            self.pruned[target] += value
            return None
        index = self._index(source)
        self.edges.append(GraphEdge(index, target, value))
        return index

    def _index(self, key: NodeKey) -> int:
        if key not in self.indices:
            self.indices[key] = len(self.keys)
            self.keys.append(key)
        return self.indices[key]
