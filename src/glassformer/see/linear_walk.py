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
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.blueprints import Blueprint, Op
from glassformer.ground.sites import axes
from glassformer.ops.embed import Embed
from glassformer.ops.op import TokenContext
from glassformer.ops.token_mixer import TokenMixer
from glassformer.see.activations import Activations
from glassformer.see.protocols import ModelLike
from glassformer.see.view import Floats

Doubles: TypeAlias = npt.NDArray[np.float64]
Rows: TypeAlias = npt.NDArray[np.intp]
STREAM_SITES = (
    "embedding",
    "middle",
    "crossed",
    "residual",
    "update",
    "attention.heads",
    "recurrent.heads",
    "cross.heads",
    "final",
)


class Arrival(NamedTuple):
    """Where the walk is: at the embedding, at what was added to the stream, or at the heads inside that."""

    kind: Literal["embedding", "update", "heads"]
    op_index: int  # what was added, or what attends
    rows: Rows
    g: Doubles  # (rows, hidden), or (rows, heads, head_size)


@dataclass
class LinearWalk:
    """Vectors on their way back. Whoever iterates over `arrivals` may send further ones on the way, to earlier ops."""

    model: ModelLike
    values: Mapping[str, Floats]
    ids: Sequence[int] = ()  # the tokens at the places of the values, for blocks that look them up by themselves
    positions: list[int] = field(default_factory=list)  # of each row: its place in the values
    constants: list[float] = field(default_factory=list)  # of each row: what biases of norms and products add
    update_constants: list[dict[int, float]] = field(default_factory=list)  # the same inside each update, by its op
    _pending: dict[int, list[tuple[Rows, Doubles]]] = field(default_factory=dict)
    _update_of: dict[int, int] = field(default_factory=dict)  # of an op inside what is added to the stream: what is added

    def __post_init__(self) -> None:
        self.model.config.check_equations("the parts of a score")
        self.model.blueprint.check_one_stream("the parts of a score")
        self.ops = self.model.blueprint.ops

    def start(self, index: int, position: int, g: Doubles) -> int:
        """Begin a row at an op's result; gives the row's index."""
        self.positions.append(position)
        self.constants.append(0.0)
        self.update_constants.append({})
        row = len(self.positions) - 1
        self._send(index, np.array([row]), g[None])
        return row

    def arrivals(self) -> Iterator[Arrival]:
        for index in range(len(self.ops) - 1, -1, -1):
            if index not in self._pending:
                continue
            op, (rows, g) = self.ops[index], self._joined(index)
            if op.site == "embedding":
                yield Arrival("embedding", index, rows, g)
            elif op.adds_to_stream:
                stream, update = op.inputs
                self._send(stream, rows, g)
                yield Arrival("update", update, rows, g)
                if has_heads(self.model.blueprint, update):
                    self._update_of[update] = update
                    self._send(update, rows, g)
            elif isinstance(op, TokenMixer):
                yield Arrival("heads", index, rows, g.reshape(len(rows), *op.head_shape))
            else:
                self._through(index, op, rows, g)

    def value(self, index: int) -> Doubles:
        """An op's result at all positions: as it was read, or computed from what was."""
        op = self.ops[index]
        if op.read_site is not None and op.read_site in self.values:
            value = self.values[op.read_site].astype(np.float64)
            return value if op.site is not None else value.reshape(len(value), -1)  # heads, which its result has joined
        if isinstance(op, Embed):
            rows = self.model.weight(op.weights[0].name, self.ids)
            assert rows is not None
            return op.scaled(rows).astype(np.float64)
        return op.value([self.value(source) for source in op.inputs], TokenContext(self.model))

    def _send(self, index: int, rows: Rows, g: Doubles) -> None:
        self._pending.setdefault(index, []).append((rows, g))

    def _joined(self, index: int) -> tuple[Rows, Doubles]:
        """All that came to an op, a row once: with an adapter beside a product, both bring a part of it."""
        parts = self._pending.pop(index)
        if len(parts) == 1:
            return parts[0]
        rows, places = np.unique(np.concatenate([rows for rows, _ in parts]), return_inverse=True)
        g = np.zeros((len(rows), parts[0][1].shape[-1]))
        np.add.at(g, places, np.concatenate([g for _, g in parts]))
        return rows, g

    def _through(self, index: int, op: Op, rows: Rows, g: Doubles) -> None:
        """On to what an op's result was computed from."""
        (width, *_) = (self.ops[source].shape[-1] for source in op.linear_inputs)
        assert isinstance(width, int)
        sent, constants = op.backwards(g, self.model, width, lambda: self._held(op)[[self.positions[row] for row in rows]])
        update = self._update_of.get(index)
        if constants is not None:
            for row, constant in zip(rows.tolist(), constants.tolist(), strict=True):
                if update is None:
                    self.constants[row] += constant
                else:
                    self.update_constants[row][update] = self.update_constants[row].get(update, 0.0) + constant
        for source in op.linear_inputs:
            if update is not None:
                self._update_of[source] = update
            self._send(source, rows, sent)

    def _held(self, op: Op) -> Doubles:
        """The input that is held while an op is a linear map of another, or of itself."""
        assert op.held_input is not None
        return self.value(op.held_input)


# Forwards ------------------------------------------------------------------------------------------------------------


def direct_effect(model: ModelLike, index: int, x: Floats | Doubles, values: Mapping[str, Floats] | None = None) -> Doubles:
    """What an op's result x (rows, width) is in the final state (rows, hidden), by the direct path and without biases.

    Norms are held at what they did to `values`, of the sites in `direct_sites` and with a row for each of x. Without values
    nothing is divided: a norm is its weight and, for a layer norm, the removal of the mean.
    """
    walk, carried = LinearWalk(model, values or {}), {index: x.astype(np.float64)}
    for later in direct_path(model.blueprint, index):
        op = walk.ops[later]
        x = sum((carried[source] for source in op.linear_inputs if source in carried), np.zeros(()))
        held = None if values is None or op.held_input is None else walk.value(op.held_input)
        carried[later] = op.linear(x, model, held)
    return np.asarray(carried[walk.ops[-1].inputs[0]])


def direct_path(blueprint: Blueprint, index: int) -> list[int]:
    """The ops through which an op's result comes into the final state, in order: not through later attention or MLPs."""
    ops, last = blueprint.ops, blueprint.ops[-1].inputs[0]
    behind = {last}  # what the walk back goes through
    for later in range(last, index, -1):
        op = ops[later]
        if later in behind and not isinstance(op, TokenMixer):
            behind.update(op.linear_inputs)
            if (
                op.adds_to_stream
                and part_name(ops[op.inputs[1]]) != "layer input"
                and not has_heads(blueprint, op.inputs[1])
            ):
                behind.discard(op.inputs[1])
    reached = {index}
    for later in range(index + 1, last + 1):
        if later in behind and reached.intersection(ops[later].linear_inputs):
            reached.add(later)
    return sorted(reached - {index})


def direct_sites(blueprint: Blueprint, index: int) -> set[str]:
    """The sites whose values `direct_effect` needs."""
    path = (blueprint.ops[later] for later in direct_path(blueprint, index))
    held = (op.held_input for op in path if op.held_input is not None)
    return set().union(*(_value_sites(blueprint, source) for source in held))


def _value_sites(blueprint: Blueprint, index: int) -> set[str]:
    """The sites that `LinearWalk.value` computes an op's result from."""
    op = blueprint.ops[index]
    if op.read_site is not None:
        return {op.read_site}
    return set().union(*(_value_sites(blueprint, source) for source in op.inputs))


# What the walk and the circuits read off the blueprint and its weights -----------------------------------------------


def stream_values(reading: Activations, positions: Sequence[int], sites: Iterable[str] | None = None) -> dict[str, Floats]:
    """The values that a walk needs, or those of some sites, at some positions: heads as (positions, heads, head_size)."""
    if sites is None:
        sites = [s for s in reading.model.blueprint.sites if s.endswith(STREAM_SITES) and not s.startswith("encoder.")]
    values = reading.values_at(positions, *sites)
    return {site: value.swapaxes(0, 1) if "heads" in axes(site) else value for site, value in values.items()}


def part_name(op: Op) -> str:
    """What an addition to the stream is called: 'attention', 'recurrent', 'cross', 'mlp'; 'layer input', without a site."""
    site = (op.site or "").split(".")
    return site[2] if len(site) > 3 else "layer input"


def attention_op(blueprint: Blueprint, block: int, prefix: str = "attention", stack: str = "") -> int | None:
    """The index of the op by which a block's tokens read each other, and whose sites begin so; None where they have no heads
    for it, as in a block that only has a convolution, or an MLP."""
    return next(
        (
            index
            for index, op in enumerate(blueprint.ops)
            if isinstance(op, TokenMixer) and (op.block, op.site_prefix, op.stack) == (block, prefix, stack)
        ),
        None,
    )


def has_heads(blueprint: Blueprint, update: int) -> bool:
    """Whether what is added to the stream is a sum of what heads wrote."""
    op = blueprint.ops[update]
    name = part_name(op)
    return op.block is not None and attention_op(blueprint, op.block, name, op.stack) is not None


BLOCK_ROWS = 8192


def vocabulary_blocks(model: ModelLike, table: str) -> Iterator[tuple[range, Floats]]:
    """The rows of a table by name: which, and their values in float32."""
    (count,) = {weight.shape[0] for weight in model.blueprint.weights if weight.name == table}
    for start in range(0, count, BLOCK_ROWS):
        rows = range(start, min(start + BLOCK_ROWS, count))
        block = model.weight(table, rows)
        assert block is not None
        yield rows, block
