"""A linear attribution graph over a prompt: a score followed back through the heads that carried it.

Direct attribution says what each head added to a score, and stops there. But a head only moves what earlier parts wrote: its
output is a sum over tokens, with the pattern's weights, of a linear map of each token's stream, which is a sum itself. With
patterns and norms frozen, each edge of this is a number, those into a node add up to those out of it, and the score is the
sum of where they all come from: embeddings of tokens, MLPs, biases (Elhage et al. 2021). MLPs are not linear, so they are
sources of their own. An edge below a threshold is not followed further, and counted as pruned.

Shapes: g (rows, heads, head_size); values (positions, width).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np

from glassformer.ground.errors import InputError
from glassformer.ground.operations import about, operation
from glassformer.page.document import Branch, Heading, Page, PagePart, Paragraph, Style
from glassformer.page.format import format_percent, pluralize, visible
from glassformer.see.activations import Activations
from glassformer.see.attribution import (
    AgainstArgument,
    CentredArgument,
    MetricArgument,
    PositionArgument,
    TokenArgument,
    additions_table,
    convention,
    final_scores,
    position_to_attribute,
    score_target,
)
from glassformer.see.linear_walk import STREAM_SITES, Arrival, Doubles, LinearWalk, part_name, stream_values
from glassformer.see.view import View

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
        token, quantity = visible(self.text), "score" if self.against is None else f"lead over {visible(self.against)}"
        where = f"after {visible(self.before)} (position {self.position})"
        title = f"{self.model}: where {token}'s {quantity} {where} came from"
        ends = sorted((node for node in self.nodes if not node.followed), key=lambda node: -abs(node.value))
        shown = ends if everything else ends[:MAX_SOURCES]
        rest = sum(node.value for node in ends[len(shown) :])
        rows = [(node_label(node), node.value) for node in shown]
        rows += [(f"{len(ends) - len(shown)} weaker sources (--all)", rest)] if len(shown) < len(ends) else []
        rows += [("pruned edges", self.pruned), ("biases", self.biases), ("rounding", self.rounding)]
        parts: list[PagePart] = [
            Paragraph(
                "a linear attribution graph, in logits: patterns and norms are held at what they were; MLPs are sources\n"
                f"{convention(self.centred, self.against)}\n"
                f"{token}: probability {format_percent(self.probability)}, rank {self.rank:,}; "
                f"{pluralize(len(self.nodes), 'node')}, {pluralize(len(self.edges), 'edge')} of at least "
                f"{self.threshold:.3g} of the {quantity}",
                "dim",
            ),
            Heading(f"through which heads it came: the strongest edges into the {quantity}, and into them"),
            _tree(self, everything),
            Heading(f"where it came from: together the {quantity}, {self.score:.2f}"),
            additions_table("source", rows),
        ]
        return Page.titled(title, *parts)

    def __repr__(self) -> str:
        return f"AttributionGraph({self.text!r}: {self.score:.2f} in {len(self.nodes)} nodes and {len(self.edges)} edges)"


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
    at, model = position_to_attribute(reading, position), reading.model
    if not 0 <= threshold <= 1:
        raise InputError(f"threshold is {threshold}; it is a share of the score, from 0 to 1.")
    held = [site for site in model.blueprint.sites if site.endswith((*STREAM_SITES, "attention.value", "attention.pattern"))]
    if (size := reading.cost(*held).bytes) > MAX_BYTES:
        raise InputError(
            f"a graph over {len(reading)} tokens needs {size / 1e9:.1f} GB of values; {MAX_BYTES / 1e9:.0f} GB is the most. "
            "Shorten the text."
        )
    values = stream_values(reading, range(len(reading)))
    target = score_target(model, final_scores(model, values, at), token, against, metric=metric, centred=centred)
    extra = reading.values("blocks.*.attention.value", "blocks.*.attention.pattern")
    search = GraphSearch(LinearWalk(model, values), extra, threshold * max(abs(target.score), 1.0))
    search.run(at, target.g)
    nodes = search.nodes(reading.texts)
    sources = sum(node.value for node in nodes if not node.followed)
    pruned, biases = sum(node.pruned for node in nodes), target.constant + sum(node.biases for node in nodes)
    return AttributionGraph(
        model.name, at, reading.texts[at], target.id, target.text, target.score, target.probability, target.rank,
        target.against, centred, threshold, tuple(nodes), tuple(search.edges), sources, pruned, biases,
        target.score - sources - pruned - biases,
    )  # fmt: skip


@dataclass
class GraphSearch:
    """A walk back from a score that goes on through each head with a share in it."""

    walk: LinearWalk
    attention: dict[str, np.ndarray]  # values and patterns, by site
    least: float  # an edge that counts
    keys: list[NodeKey] = field(default_factory=list)
    edges: list[GraphEdge] = field(default_factory=list)
    pruned: dict[int, float] = field(default_factory=dict)  # by node, of those that are followed
    readers: list[int] = field(default_factory=list)  # of each row of the walk: the node that reads
    _numbers: dict[NodeKey, int] = field(default_factory=dict)

    def run(self, position: int, g: Doubles) -> None:
        score = self._number(("score", None, None, position))
        self._follow(score, self.walk.ops[-1].inputs[0], position, g)
        for arrival in self.walk.arrivals():
            op = self.walk.ops[arrival.op_index]
            if arrival.kind == "heads":
                self._heads(arrival)
            elif arrival.kind == "embedding":
                self._sources(arrival, "embedding", None)
            elif (name := part_name(op)) not in ("attention", "cross"):
                assert name == "mlp"
                self._sources(arrival, "mlp", op.block)

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
        """Edges from a block's heads; those of attention to the text itself are followed to what they read."""
        op = self.walk.ops[arrival.op_index]
        positions = np.array([self.walk.positions[row] for row in arrival.rows])
        shares = (arrival.g * self.walk.values[op.inner_site("heads")][positions]).sum(-1)  # (rows, heads)
        name: PartName = "cross" if op.options["cross"] else "attention"
        sums: dict[int, Doubles] = {}  # by node: what its output is worth to all that read it
        for at, head in np.ndindex(*shares.shape):
            key: NodeKey = (name, op.block, head, int(positions[at]))
            if (number := self._edge(key, self.readers[arrival.rows[at]], float(shares[at, head]))) is not None:
                sums[number] = sums.get(number, 0.0) + arrival.g[at, head]
        if name == "attention":
            for number, g in sums.items():
                self._read_tokens(number, arrival.op_index, g)

    def _read_tokens(self, number: int, attend: int, g: Doubles) -> None:
        """What a head read: from each token its pattern's weight times the token's value."""
        op, (_, _, head, position) = self.walk.ops[attend], self.keys[number]
        assert head is not None
        value_op = op.inputs[2]
        groups, size = self.walk.ops[value_op].head_shape
        group = head // (op.head_shape[0] // groups)
        (site,) = (site for site in op.inner_sites if site.endswith(".pattern"))
        pattern = self.attention[site][head, position].astype(np.float64)
        shares = pattern * (self.attention[site.replace("pattern", "value")][group].astype(np.float64) @ g)
        counted = (np.abs(shares) >= self.least) & (shares != 0)
        self.pruned[number] = float(shares[~counted].sum())
        for token in np.flatnonzero(counted).tolist():
            worth = np.zeros((groups, size))
            worth[group] = pattern[token] * g
            self._follow(number, value_op, token, worth.reshape(-1))

    def _follow(self, reader: int, op: int, position: int, g: Doubles) -> None:
        self.pruned.setdefault(reader, 0.0)
        if len(self.pruned) > MAX_FOLLOWED:
            raise InputError(f"the graph has more than {MAX_FOLLOWED} heads to follow. Raise the threshold.")
        row = self.walk.start(op, position, g)
        assert row == len(self.readers)
        self.readers.append(reader)

    def _edge(self, source: NodeKey, target: int, value: float) -> int | None:
        """Note what went from a part into a node; gives the part's number, or None where it is too little to count."""
        if abs(value) < self.least or not value:
            self.pruned[target] += value
            return None
        number = self._number(source)
        self.edges.append(GraphEdge(number, target, value))
        return number

    def _number(self, key: NodeKey) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self.keys)
            self.keys.append(key)
        return self._numbers[key]
