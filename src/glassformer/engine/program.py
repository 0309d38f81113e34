"""Programs: what a blueprint is lowered to, for every engine that runs fused steps.

A program is data: steps over numbered buffers, each with what it reads and writes and the names of its weights. An engine
turns names into addresses or tensors of its own, and runs the steps one after the other. The enumerations have the numbers
of the CPU engine's `native/glass.h`, which says what each kind of step does.

Shapes: buffers (tokens, width).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from glassformer.blueprints import Rope
from glassformer.blueprints.positions import Floats, distance_biases, sinusoidal_positions


class NormKind(IntEnum):
    NO_NORM, RMS_NORM, LAYER_NORM = range(3)


class Activation(IntEnum):
    SILU, GELU, GELU_TANH, RELU, TANH, QUICK_GELU = range(6)


class Epilogue(IntEnum):
    """What a matmul is fused with."""

    NONE, ADD, ACTIVATE, GATE = range(4)


class StepKind(IntEnum):
    EMBED, NORM, MATMUL, ROPE, KV_STORE, ROPE_KV_STORE = range(6)
    ATTENTION, ATTENTION_PATTERN, WEIGHTED_VALUES, ADD, ACTIVATE, COPY = range(6, 12)
    SUM_OVER_RANKS = 12  # in place; the CPU engine, which runs on one rank, has none


class TokenScope(IntEnum):
    """Which tokens a step computes; gathered: those that are scored, written without gaps."""

    ALL, SCORED, GATHERED = range(3)


class MatrixRef(NamedTuple):
    """A matrix of the checkpoint, or several stacked, and its biases."""

    names: tuple[str, ...]
    shape: tuple[int, int]  # (outputs, inputs)
    biases: tuple[str, ...] = ()
    transposed: bool = False  # whether the family has it as (inputs, outputs)


class SinusoidTable(NamedTuple):
    """A table of positions that no checkpoint holds."""

    shape: tuple[int, int]  # (positions, hidden)

    def values(self) -> Floats:
        return sinusoidal_positions(*self.shape)


Table: TypeAlias = MatrixRef | SinusoidTable


class NormRef(NamedTuple):
    kind: NormKind
    weight: str
    bias: str | None
    offset: float  # added to the weight
    eps: float


class DistanceBias(NamedTuple):
    """A bias of attention for each head and distance, out of a table of buckets."""

    table: str
    max_distance: int  # beyond it, all distances have the same bias
    bidirectional: bool

    def values(self, table: Floats) -> Floats:
        """(heads, 2 * max_distance + 1)"""
        return distance_biases(table, self.max_distance, self.bidirectional)


@dataclass(slots=True)
class Step:
    """One step of a program; each kind uses a part of the fields."""

    kind: StepKind
    input: int = 0  # the numbers of buffers
    output: int = 0
    second_input: int = 0  # the residual to add, or a pattern
    scope: TokenScope = TokenScope.ALL
    after_cache: bool = False  # after the last keys and values are stored: needed for scored tokens and watchers only
    epilogue: Epilogue = Epilogue.NONE
    activation: Activation = Activation.SILU
    matrices: tuple[Table, ...] = ()  # of a matmul, side by side in its output; or the tables of an embedding
    norm: NormRef | None = None  # before a matmul
    query_norm: NormRef | None = None  # of heads
    key_norm: NormRef | None = None
    query_offset: int = 0  # the columns where they begin in the input
    key_offset: int = 0
    value_offset: int = 0
    layer: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_size: int = 0
    window: int = 0  # 0: none
    causal: bool = False
    cross_attention: bool = False  # keys and values are those of the source
    rope: int | None = None  # the number of one of the program's ropes
    position_offset: int = 0  # the row that the first token has in a table of positions
    scale: float = 1.0
    distance_bias: DistanceBias | None = None


@dataclass(frozen=True)
class BufferShape:
    """The columns that a token has in a buffer; `per_key`: so many for each key of the pass, as in an attention pattern."""

    columns: int
    per_key: bool = False

    def width(self, keys: int) -> int:
        return self.columns * keys if self.per_key else self.columns


@dataclass(frozen=True)
class SiteLocation:
    """Where a site's value lies: some columns of a buffer, which may be heads, or a whole attention pattern."""

    buffer: int
    column: int = 0
    width: int = 0
    heads: int | None = None
    pattern: bool = False


class PatternChange(NamedTuple):
    """A changed pattern, the buffer of the heads that follow from it, and that of everybody's heads."""

    site: str
    changed_heads: int
    heads: int


@dataclass
class Program:
    steps: list[Step] = field(default_factory=list)
    buffers: list[BufferShape] = field(default_factory=list)
    sites: dict[str, SiteLocation] = field(default_factory=dict)
    changed_sites: dict[int, list[str]] = field(default_factory=dict)  # before a step: the sites that are changed there
    pattern_changes: dict[int, list[PatternChange]] = field(default_factory=dict)  # the same, for attention patterns
    ropes: list[tuple[Rope, int]] = field(default_factory=list)  # with the size of a head
    scores: int | None = None  # the buffer of the scores
