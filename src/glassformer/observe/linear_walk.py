"""A model as the linear map that it is once its norms and attention patterns are frozen, walked backwards.

With each norm held at what it did to a text, and each pattern at what it was, the stream is a sum of what was added to it,
and what is read from it is linear. So whatever a score owes to an earlier part is a dot product: of what the part wrote with
a vector `g`, which says what each direction of the stream is worth to the score at that place. The walk carries these
vectors from op to op, last to first, by the blueprint alone; it knows no family. It ends at MLPs, which are not linear.
`direct_effect` goes the same way forwards: from what a part wrote to what of it is in the final state.

Everything is in float64: a score is often the small sum of large parts.

Shapes: g (rows, width), a row for each vector that is carried; values (positions, width), or of heads (positions, heads,
head_size).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.blueprints import Blueprint, Op
from glassformer.ground.sites import axes
from glassformer.observe.activations import Activations
from glassformer.observe.protocols import Floats, ModelLike

Doubles: TypeAlias = npt.NDArray[np.float64]
Rows: TypeAlias = npt.NDArray[np.intp]
STREAM_SITES = ("embedding", "middle", "crossed", "residual", "update", "attention.heads", "cross.heads", "final")


class Arrival(NamedTuple):
    """Where the walk is: at the embedding, at what was added to the stream, or at the heads inside that."""

    kind: Literal["embedding", "update", "heads"]
    number: int  # of the op: what was added, or what attends
    rows: Rows
    g: Doubles  # (rows, hidden), or (rows, heads, head_size)


@dataclass
class LinearWalk:
    """Vectors on their way back. Whoever iterates over `arrivals` may send further ones on the way, to earlier ops."""

    model: ModelLike
    values: Mapping[str, Floats]
    positions: list[int] = field(default_factory=list)  # of each row: its place in the values
    constants: list[float] = field(default_factory=list)  # of each row: what biases of norms and products add
    update_constants: list[dict[int, float]] = field(default_factory=list)  # the same inside each update, by its op
    _pending: dict[int, list[tuple[Rows, Doubles]]] = field(default_factory=dict)
    _update_of: dict[int, int] = field(default_factory=dict)  # of an op inside what is added to the stream: what is added

    def __post_init__(self) -> None:
        self.ops = self.model.blueprint.ops

    def start(self, number: int, position: int, g: Doubles) -> int:
        """Begin a row at an op's result; gives the row's number."""
        self.positions.append(position)
        self.constants.append(0.0)
        self.update_constants.append({})
        row = len(self.positions) - 1
        self._send(number, np.array([row]), g[None])
        return row

    def arrivals(self) -> Iterator[Arrival]:
        for number in range(len(self.ops) - 1, -1, -1):
            if number not in self._pending:
                continue
            op, (rows, g) = self.ops[number], self._joined(number)
            if op.site == "embedding":
                yield Arrival("embedding", number, rows, g)
            elif op.kind == "add" and not op.options.get("adapter"):
                stream, update = op.inputs
                self._send(stream, rows, g)
                yield Arrival("update", update, rows, g)
                if part_name(self.ops[update]) in ("attention", "cross"):
                    self._update_of[update] = update
                    self._send(update, rows, g)
            elif op.kind == "attend":
                heads, size = head_shape(op)
                yield Arrival("heads", number, rows, g.reshape(len(rows), heads, size))
            else:
                self._through(number, op, rows, g)

    def value(self, number: int) -> Doubles:
        """An op's result at all positions: as it was read, or computed from what was."""
        op = self.ops[number]
        if op.site is not None and op.site in self.values:
            return self.values[op.site].astype(np.float64)
        match op.kind:
            case "add":
                return self.value(op.inputs[0]) + self.value(op.inputs[1])
            case "attend":
                site = heads_site(op)
                return self.values[site].reshape(len(self.values[site]), -1).astype(np.float64)
            case "linear":
                matrix, bias = matrix_and_bias(self.model, op)
                product = self.value(op.inputs[0]) @ matrix.T
                return (product if bias is None else product + bias) * float(op.options["scale"])
            case _:
                assert op.kind in ("identity", "sum"), op.kind
                return self.value(op.inputs[0])

    def _send(self, number: int, rows: Rows, g: Doubles) -> None:
        self._pending.setdefault(number, []).append((rows, g))

    def _joined(self, number: int) -> tuple[Rows, Doubles]:
        """All that came to an op, a row once: with an adapter beside a product, both bring a part of it."""
        parts = self._pending.pop(number)
        if len(parts) == 1:
            return parts[0]
        rows, places = np.unique(np.concatenate([rows for rows, _ in parts]), return_inverse=True)
        g = np.zeros((len(rows), parts[0][1].shape[-1]))
        np.add.at(g, places, np.concatenate([g for _, g in parts]))
        return rows, g

    def _through(self, number: int, op: Op, rows: Rows, g: Doubles) -> None:
        """On to what an op's result was computed from."""
        bias: Floats | None = None
        match op.kind:
            case "norm":
                weight, bias = norm_weights(self.model, op)
                sent = norm_backwards(op, weight, g, self.value(op.inputs[0])[[self.positions[row] for row in rows]])
            case "linear" | "heads" if op.weights:
                g = g * float(op.options.get("scale", 1.0))
                matrix, bias = matrix_and_bias(self.model, op)
                sent = g @ matrix
            case "heads":  # some of the heads that a product makes
                width = self.ops[op.inputs[0]].shape[-1]
                assert isinstance(width, int)
                sent = np.zeros((len(rows), width))
                heads, size = head_shape(op)
                fused_part(op, sent.reshape(len(rows), -1, size))[...] = g.reshape(len(rows), heads, size)
            case _:
                assert op.kind in ("add", "identity", "sum"), op.kind
                sent = g
        update = self._update_of.get(number)
        if bias is not None:
            for row, constant in zip(rows.tolist(), (g @ bias.astype(np.float64)).tolist(), strict=True):
                if update is None:
                    self.constants[row] += constant
                else:
                    self.update_constants[row][update] = self.update_constants[row].get(update, 0.0) + constant
        for source in op.inputs:
            if update is not None:
                self._update_of[source] = update
            self._send(source, rows, sent)


# Forwards ------------------------------------------------------------------------------------------------------------


def direct_effect(model: ModelLike, number: int, x: Floats | Doubles, values: Mapping[str, Floats] | None = None) -> Doubles:
    """What an op's result x (rows, width) is in the final state (rows, hidden), by the direct path and without biases.

    Norms are held at what they did to `values`, of the sites in `direct_sites` and with a row for each of x. Without values
    nothing is divided: a norm is its weight and, for a layer norm, the removal of the mean.
    """
    walk, carried = LinearWalk(model, values or {}), {number: x.astype(np.float64)}
    for later in direct_path(model.blueprint, number):
        op = walk.ops[later]
        x = sum((carried[source] for source in op.inputs if source in carried), np.zeros(()))
        match op.kind:
            case "norm":
                weight, _ = norm_weights(model, op)
                divisor = np.ones(()) if values is None else norm_divisor(op, walk.value(op.inputs[0]))
                carried[later] = (x if op.options["how"] == "rms" else x - x.mean(-1, keepdims=True)) * weight / divisor
            case "linear":
                matrix, _ = matrix_and_bias(model, op)
                carried[later] = x @ matrix.T * float(op.options["scale"])
            case _:
                assert op.kind in ("add", "identity", "sum"), op.kind
                carried[later] = x
    return np.asarray(carried[walk.ops[-1].inputs[0]])


def direct_path(blueprint: Blueprint, number: int) -> list[int]:
    """The ops through which an op's result comes into the final state, in order: not through later attention or MLPs."""
    ops, last = blueprint.ops, blueprint.ops[-1].inputs[0]
    behind = {last}  # what the walk back goes through
    for later in range(last, number, -1):
        op = ops[later]
        if later in behind and op.kind != "attend":
            behind.update(op.inputs)
            if op.kind == "add" and not op.options.get("adapter") and part_name(ops[op.inputs[1]]) == "mlp":
                behind.discard(op.inputs[1])
    reached = {number}
    for later in range(number + 1, last + 1):
        if later in behind and reached.intersection(ops[later].inputs):
            reached.add(later)
    return sorted(reached - {number})


def direct_sites(blueprint: Blueprint, number: int) -> set[str]:
    """The sites whose values `direct_effect` needs."""
    norms = (op for op in (blueprint.ops[later] for later in direct_path(blueprint, number)) if op.kind == "norm")
    return set().union(*(_value_sites(blueprint, op.inputs[0]) for op in norms))


def _value_sites(blueprint: Blueprint, number: int) -> set[str]:
    """The sites that `LinearWalk.value` computes an op's result from."""
    op = blueprint.ops[number]
    if op.site is not None:
        return {op.site}
    if op.kind == "attend":
        return {heads_site(op)}
    return set().union(*(_value_sites(blueprint, source) for source in (op.inputs if op.kind == "add" else op.inputs[:1])))


# What the walk and the circuits read off the blueprint and its weights -----------------------------------------------


def stream_values(reading: Activations, positions: Sequence[int], sites: Iterable[str] | None = None) -> dict[str, Floats]:
    """The values that a walk needs, or those of some sites, at some positions: heads as (positions, heads, head_size)."""
    if sites is None:
        sites = [s for s in reading.model.blueprint.sites if s.endswith(STREAM_SITES) and not s.startswith("encoder.")]
    values = reading.values_at(positions, *sites)
    return {site: value.swapaxes(0, 1) if "heads" in axes(site) else value for site, value in values.items()}


def part_name(op: Op) -> str:
    """What an addition to the stream is called: 'attention', 'cross' or 'mlp'."""
    site = (op.site or "").split(".")
    return site[2] if len(site) > 3 else op.kind


def attention_op(blueprint: Blueprint, block: int) -> int:
    """The number of the op by which a block's tokens attend to each other."""
    return next(
        number
        for number, op in enumerate(blueprint.ops)
        if op.kind == "attend" and op.block == block and not op.stack and not op.options["cross"]
    )


def heads_site(op: Op) -> str:
    """Where the outputs of the heads of an op that attends can be read."""
    (site,) = (site for site in op.inner_sites if site.endswith(".heads"))
    return site


def head_shape(op: Op) -> tuple[int, int]:
    """How many heads an op has, and of which size."""
    shape = op.shape if op.kind != "attend" else next(s for name, s in op.inner_sites.items() if name.endswith(".heads"))
    _, heads, _, size = shape
    assert isinstance(heads, int)
    assert isinstance(size, int)
    return heads, size


def fused_part(op: Op, heads: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Those heads of a fused product that are an op's own: (…, heads, head_size)."""
    first, step = op.options["first"], op.options["step"]
    count, _ = head_shape(op)
    return heads[..., first : first + step * count : step, :]


def matrix_and_bias(model: ModelLike, op: Op) -> tuple[Floats, Floats | None]:
    """A product's matrix as (outputs, inputs), those of several modules joined, and its bias."""
    matrices = [weight for weight in op.weights if len(weight.shape) == 2]
    parts = [model.weight(weight.name) for weight in matrices]
    stored = [part for part in parts if part is not None]
    assert len(stored) == len(matrices)
    matrix = stored[0] if len(stored) == 1 else np.concatenate(stored)
    biases = [model.weight(weight.name) for weight in op.weights if weight not in matrices]
    return matrix.T if op.options.get("columns") else matrix, biases[0] if biases else None


def norm_weights(model: ModelLike, op: Op) -> tuple[Doubles, Floats | None]:
    """What a norm multiplies by, and what it adds."""
    size = op.shape[-1]
    assert isinstance(size, int)
    weight, *bias = (model.weight(weight.name) for weight in op.weights) if op.weights else (None,)
    scale = np.ones(size) if weight is None else weight.astype(np.float64) + float(op.options.get("offset", 0))
    return scale, bias[0] if bias else None


def norm_backwards(op: Op, weight: Doubles, g: Doubles, x: Doubles) -> Doubles:
    """Back through a norm that is frozen at what it did to x."""
    scaled = g * weight
    return (scaled if op.options["how"] == "rms" else scaled - scaled.mean(-1, keepdims=True)) / norm_divisor(op, x)


def norm_divisor(op: Op, x: Doubles) -> Doubles:
    """What a norm divides x by: (rows, 1)."""
    squares = (x * x).mean(-1, keepdims=True) if op.options["how"] == "rms" else x.var(-1, keepdims=True)
    return np.asarray(np.sqrt(squares + op.options["eps"]))
