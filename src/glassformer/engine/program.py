"""Programs: what a blueprint is lowered to, for every engine that runs fused steps.

A program is data: steps over numbered buffers, each with what it reads and writes and the names of its weights. An engine
turns names into addresses or tensors of its own, and runs the steps one after the other. The enumerations have the numbers
of the CPU engine's `native/glass.h`, which says what each kind of step does.

Shapes: buffers (tokens, width).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.ops.positions import DistanceBuckets, Floats, PositionScale, SinusoidTable, distance_biases
from glassformer.ops.rope import Rope


class NormKind(IntEnum):
    NO_NORM, RMS_NORM, LAYER_NORM, L2_NORM = range(4)


class Activation(IntEnum):
    SILU, GELU, GELU_TANH, RELU, TANH, QUICK_GELU, RELU2, SIGMOID, XIELU, NO_ACTIVATION, SCALE, CLIP = range(12)


class Epilogue(IntEnum):
    """What a matmul is fused with."""

    NONE, ADD, ACTIVATE, GATE = range(4)


NO_KEYS = -1  # in place of the column where keys begin: there are queries alone
NO_POSITIONS = -1  # of an embedding: its tables are those of tokens and of token types


class StepKind(IntEnum):
    EMBED, NORM, MATMUL, ROPE, KV_STORE, ROPE_KV_STORE = range(6)
    ATTENTION, ATTENTION_PATTERN, WEIGHTED_VALUES, ADD, ACTIVATE, COPY = range(6, 12)
    SUM_OVER_RANKS = 12  # in place; the CPU engine, which runs on one rank, has none
    GATE = 13  # act(input) * second input; the GPU engine, which has no adapters beside, has none
    HEAD_MATMUL = 14
    ROUTE, EXPERT_MATMUL, EXPERT_SUM = range(15, 18)
    CAUSAL_CONV, TIME_STEP, DECAY = range(18, 21)
    RECUR, RECUR_PATTERN, RECUR_VALUES = range(21, 24)
    MULTIPLY, KEEP_TOP, RESCALE, MIX = range(24, 28)  # the GPU engine has none of these

    @property
    def rotates(self) -> bool:
        return self in (StepKind.ROPE, StepKind.ROPE_KV_STORE)

    @property
    def stores_kv(self) -> bool:
        return self in (StepKind.KV_STORE, StepKind.ROPE_KV_STORE)

    @property
    def changes_row(self) -> bool:
        """Whether it changes what a row holds for its next tokens."""
        return self.stores_kv or self in (StepKind.CAUSAL_CONV, StepKind.RECUR)


class TokenScope(IntEnum):
    """Which tokens a step computes; gathered: those that are scored, written without gaps."""

    ALL, SCORED, GATHERED = range(3)


class GlobalTokens(IntEnum):
    """Of a step of attention, what it has to do with a feed's global tokens: nothing, or they are seen by all beside what is
    in the window, or the step computes them alone."""

    NONE, SEEN, ALONE = range(3)


class RowRuns(NamedTuple):
    """Some rows of a fused matrix: runs of `size` rows, the `first` row on; each begins `step` rows after the one before."""

    size: int
    first: int
    step: int
    runs: int

    @property
    def rows(self) -> npt.NDArray[np.intp]:
        starts = self.first + self.step * np.arange(self.runs)
        return (starts[:, None] + np.arange(self.size)).reshape(-1)

    def bias(self, values: Any) -> Any:
        """Of a bias its rows, unless it is theirs alone."""
        return values if len(values) == self.size * self.runs else values[self.rows]

    @property
    def contiguous(self) -> bool:
        return self.step == self.size or self.runs == 1


class MatrixRef(NamedTuple):
    """A matrix of the checkpoint, or several stacked, and its biases."""

    names: tuple[str, ...]
    shape: tuple[int, int]  # (outputs, inputs)
    biases: tuple[str, ...] = ()
    transposed: bool = False  # whether the family has it as (inputs, outputs)
    part: RowRuns | None = None  # which outputs of the checkpoint's matrix these are; None: all


Table: TypeAlias = MatrixRef | SinusoidTable


class NormRef(NamedTuple):
    kind: NormKind
    weight: str | None  # None: all ones
    bias: str | None
    offset: float  # added to the weight
    eps: float
    width: int
    groups: int = 1  # parts that are normed by themselves
    repeats: int = 1  # of the weight: parts that share it
    more: tuple[str, ...] = ()  # weights after the first, where each part has its own


class DistanceHeads(NamedTuple):
    """Heads of the vectors that stand for distances: no tokens, so that they are computed once."""

    shape: tuple[int, int]  # (heads * buckets, head_size)
    heads: int
    vectors: str
    norm: NormRef | None
    projection: str
    bias: str | None

    def values(self, weight: Callable[[str], Floats]) -> Floats:
        """`weight`: a weight by its name, in float32."""
        vectors = weight(self.vectors)
        if self.norm is not None:
            vectors = vectors - vectors.mean(-1, keepdims=True)
            vectors = vectors / np.sqrt((vectors * vectors).mean(-1, keepdims=True) + np.float32(self.norm.eps))
            assert self.norm.bias is not None
            assert self.norm.weight is not None
            vectors = vectors * weight(self.norm.weight) + weight(self.norm.bias)
        projected = vectors @ weight(self.projection).T
        projected = projected if self.bias is None else projected + weight(self.bias)
        heads = projected.reshape(len(projected), self.heads, -1).transpose(1, 0, 2)
        return np.ascontiguousarray(heads.reshape(self.shape), np.float32)


class ActivationNumbers(NamedTuple):
    """Numbers that an activation has learned, in the order in which engines take them."""

    names: tuple[str, ...]
    make: Callable[..., Floats]  # of the stored ones

    def values(self, weight: Callable[[str], Floats]) -> Floats:
        """`weight`: a weight by its name, in float32."""
        return self.make(*(weight(name).reshape(()) for name in self.names))


class LatentHeads(NamedTuple):
    """A part of each head of the matrix that makes keys and values of latents."""

    matrix: str  # (heads * per_head, latent)
    shape: tuple[int, int]  # (heads * size, latent), or transposed in each head: (heads * latent, size)
    heads: int
    per_head: int
    first: int  # of the rows of each head
    size: int
    transposed: bool

    def values(self, weight: Callable[[str], Floats]) -> Floats:
        heads = weight(self.matrix).reshape(self.heads, self.per_head, -1)[:, self.first : self.first + self.size]
        return np.ascontiguousarray((heads.swapaxes(1, 2) if self.transposed else heads).reshape(self.shape), np.float32)


class DistanceBias(NamedTuple):
    """A bias of attention for each head and distance, out of a table of buckets."""

    table: str
    max_distance: int  # beyond it, all distances have the same bias
    bidirectional: bool

    def values(self, table: Floats) -> Floats:
        """(heads, 2 * max_distance + 1)"""
        return distance_biases(table, self.max_distance, self.bidirectional)


@dataclass(slots=True)
class ProgramStep:
    """One step of a program; each kind uses a part of the fields."""

    kind: StepKind
    input: int = 0  # the indices of buffers
    output: int = 0
    second_input: int = 0  # the residual to add, a pattern, or the experts' shares
    third_input: int = 0  # the residual to add to a sum of experts
    scope: TokenScope = TokenScope.ALL
    after_cache: bool = False  # after the last keys and values are stored: needed for scored tokens and watchers only
    epilogue: Epilogue = Epilogue.NONE
    activation: Activation = Activation.SILU
    activated_from: int = 0  # the column of the output from which on a matmul's results are activated
    matrices: tuple[Table, ...] = ()  # of a matmul, side by side in its output; or the tables of an embedding
    experts: tuple[tuple[MatrixRef, ...], ...] = ()  # the matrices of each expert
    expert_count: int = 0
    chosen: int = 0  # experts of a token
    normalized: bool = False  # whether their shares add up to one
    floor: float = 0.0  # added to their sum before
    sigmoid: bool = False  # of each score, and not the softmax of all
    correction: str | None = None  # added to that when experts are compared
    groups: int = 0  # of experts; 0: all are one
    kept_groups: int = 0
    group_best: int = 0  # how many of a group's experts say how good it is
    gate_limit: float = 0.0  # where gates, and what they are multiplied with, are cut; 0: nowhere
    gate_offset: float = 0.0  # added to what gates are multiplied with
    shares_inputs: bool = False  # experts get a token times its share, and what they make of it counts as it is
    norm: NormRef | None = None  # before a matmul
    query_norm: NormRef | None = None  # of heads
    key_norm: NormRef | None = None
    output_offset: int = 0  # the column of the output where a copy begins
    query_offset: int = 0  # the columns where they begin in the input
    key_offset: int = 0
    value_offset: int = 0
    layer: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_size: int = 0
    latent: int = 0  # values are the first so many numbers of the cached keys; 0: they are cached beside them
    kv_planes: int = 0  # KV heads of the layers before, and all numbers of their keys
    kv_numbers: int = 0
    window: int = 0  # 0: none
    chunk: int = 0  # tokens see none of another chunk of so many; 0: all
    global_tokens: GlobalTokens = GlobalTokens.NONE
    causal: bool = False
    cross_attention: bool = False  # keys and values are those of the source
    rope: int | None = None  # the index of one of the program's ropes
    position_offset: int = 0  # the row that the first token has in a table of positions; NO_POSITIONS: there is none
    scale: float = 1.0
    factor: float = 1.0  # of what a sum adds to its second input
    distance_bias: DistanceBias | None = None
    sinks: str | None = None  # a score for each head that takes its part of the attention weights
    softcap: float = 0.0  # of scores, after their scale; 0: none
    position_scale: PositionScale | None = None  # by which scores grow with the query's position
    slopes: tuple[float, ...] = ()  # of each head: what is added to a score for each position that a key is ahead of a query
    activation_numbers: ActivationNumbers | None = None  # that an activation has learned
    column: int = 0  # the columns that a norm reads and writes; where a gate's second input begins
    width: int = 0  # 0: all
    head_matrices: DistanceHeads | LatentHeads | None = None  # of a product of each head
    distances: DistanceBuckets | None = None  # which of its distance scores a query or a key has with another token
    query_distances: int | None = None  # the buffers of these scores: (tokens, heads * buckets)
    key_distances: int | None = None
    kernel: str | None = None  # of a convolution: a row of weights for each column
    kernel_bias: str | None = None
    kernel_size: int = 0
    vector: str | None = None  # a number for each column: a time step's bias, or a decay's rate; for each head: what of a
    # token's own value is added to its output
    vector_repeats: int = 1  # how many columns each of its numbers is for
    least: float = 0.0  # time steps, and what is clipped, are cut at these
    most: float = math.inf
    state_offset: int = 0  # where its state begins among a row's
    key_size: int = 0
    delta: bool = False  # what the state has for a key already is taken from a value before it is written
    state_norms: int | None = None  # the buffer that a state's norms are written to, by head


@dataclass(frozen=True)
class BufferShape:
    """The columns that a token has in a buffer; `per_key`: for each key of the pass, as in an attention pattern."""

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

    def value(self, rows: Any) -> Any:
        """Some tokens' rows of the buffer as the site's value; of a pattern all keys that the buffer has room for."""
        if not self.pattern:
            rows = rows[:, self.column : self.column + self.width]
        return rows[None] if self.heads is None else rows.reshape(len(rows), self.heads, -1).swapaxes(0, 1)[None]


class StateLocation(NamedTuple):
    """Where a site's value lies in the state that a row has after its pass: (heads, key_size, head_size)."""

    offset: int
    heads: int
    key_size: int
    head_size: int

    def value(self, state: Any) -> Any:
        """The site's value, of all of a row's state."""
        count = self.heads * self.key_size * self.head_size
        return state[self.offset : self.offset + count].reshape(1, self.heads, self.key_size, self.head_size)


class PatternChange(NamedTuple):
    """A changed pattern, the buffer of the heads that follow from it, and that of everybody's heads."""

    site: str
    changed_heads: int
    heads: int


@dataclass
class Program:
    steps: list[ProgramStep] = field(default_factory=list)
    buffers: list[BufferShape] = field(default_factory=list)
    sites: dict[str, SiteLocation] = field(default_factory=dict)
    states: dict[str, StateLocation] = field(default_factory=dict)  # sites that are read and changed after the pass
    changed_sites: dict[int, list[str]] = field(default_factory=dict)  # before a step: the sites that are changed there
    pattern_changes: dict[int, list[PatternChange]] = field(default_factory=dict)  # the same, for attention patterns
    ropes: list[tuple[Rope, int]] = field(default_factory=list)  # with the size of a head
    scores: int | None = None  # the buffer of the scores

    @property
    def depends_on_length(self) -> bool:
        """Whether some of RoPE's frequencies depend on how long a text is."""
        return any(rope.depends_on_length for rope, _ in self.ropes)

    def frequency_lengths(self, length: int) -> tuple[int, ...]:
        """Equal for all texts that have the frequencies of one of `length` tokens."""
        return tuple(rope.frequency_length(length) for rope, _ in self.ropes)
