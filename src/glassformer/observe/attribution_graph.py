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
from typing import Annotated

import numpy as np

from glassformer.ground.errors import InputError
from glassformer.ground.operations import about, operation
from glassformer.observe.activations import Activations
from glassformer.observe.attribution import (
    AgainstArgument,
    CentredArgument,
    MetricArgument,
    PositionArgument,
    TokenArgument,
    final_scores,
    position_to_attribute,
    score_target,
)
from glassformer.observe.linear_walk import (
    STREAM_SITES,
    Arrival,
    Doubles,
    LinearWalk,
    part_name,
    stream_values,
)
from glassformer.views.attribution_graph import AttributionGraph, GraphEdge, GraphNode, PartName

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
            op = self.walk.ops[arrival.number]
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
            GraphNode(*key, texts[key[-1]], values[at], at in self.pruned, self.pruned.get(at, 0.0), biases[at])
            for at, key in enumerate(self.keys)
        ]

    def _sources(self, arrival: Arrival, name: PartName, block: int | None) -> None:
        """Edges from a part that is not followed further."""
        positions = [self.walk.positions[row] for row in arrival.rows]
        shares = (arrival.g * self.walk.value(arrival.number)[positions]).sum(-1)
        for row, share, position in zip(arrival.rows.tolist(), shares.tolist(), positions, strict=True):
            self._edge((name, block, None, position), self.readers[row], share)

    def _heads(self, arrival: Arrival) -> None:
        """Edges from a block's heads; those of attention to the text itself are followed to what they read."""
        op = self.walk.ops[arrival.number]
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
                self._read_tokens(number, arrival.number, g)

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
