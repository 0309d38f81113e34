"""A model as the linear map that it is once its norms and attention patterns are frozen, walked backwards.

With each norm held at what it did to a text, and each pattern at what it was, the stream is a sum of what was added to it,
and what is read from it is linear. So whatever a score owes to an earlier part is a dot product: of what the part wrote with
a vector `g`, which says what each direction of the stream is worth to the score at that place. The walk carries these
vectors from op to op, last to first, by the blueprint alone; it knows no family. It ends at MLPs, which are not linear.

Everything is in float64: a score is often the small sum of large parts.

Shapes: g (rows, width), a row for each vector that is carried; values (positions, width), or of heads (positions, heads,
head_size).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.blueprints import Blueprint, Op
from glassformer.observe.activations import Activations
from glassformer.observe.protocols import Floats, ModelLike
from glassformer.sites import axes

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
    update_constants: list[float] = field(default_factory=list)  # the same, of biases inside what was added to the stream
    _pending: dict[int, list[tuple[Rows, Doubles]]] = field(default_factory=dict)
    _inside_update: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.ops = self.model.blueprint.ops

    def start(self, number: int, position: int, g: Doubles) -> int:
        """Begin a row at an op's result; gives the row's number."""
        self.positions.append(position)
        self.constants.append(0.0)
        self.update_constants.append(0.0)
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
                    self._inside_update.add(update)
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
                (site,) = (site for site in op.inner_sites if site.endswith(".heads"))
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
        inside = number in self._inside_update
        if bias is not None:
            constants = self.update_constants if inside else self.constants
            for row, constant in zip(rows.tolist(), (g @ bias.astype(np.float64)).tolist(), strict=True):
                constants[row] += constant
        for source in op.inputs:
            if inside:
                self._inside_update.add(source)
            self._send(source, rows, sent)


# What the walk and the circuits read off the blueprint and its weights -----------------------------------------------


def stream_values(reading: Activations, positions: Sequence[int]) -> dict[str, Floats]:
    """The values that a walk needs, at some positions: heads as (positions, heads, head_size)."""
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
