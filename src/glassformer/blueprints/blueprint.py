"""Blueprints: a model as a flat list of steps, which is only data.

Each `Op` says what is done (one of a closed list of kinds), to which earlier results, with which weights, and which
shape and sites come out. The shape journey, the parameter table, drawings and the fast engines all read it; the
tests prove that it says what the family computes.

Shapes: whole numbers, or the names `batch`, `length` (tokens of this pass) and `keys` (tokens attended to).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from glassformer.blueprints.config import Config

Dim: TypeAlias = int | str
Shape: TypeAlias = tuple[Dim, ...]
Head: TypeAlias = Literal["base", "causal", "sequence"]
Kind: TypeAlias = Literal[
    "embed",  # ids → vectors, by table
    "position",  # add a learned or sinusoidal vector per position
    "scale",  # multiply by a constant
    "norm",  # RMS or layer norm over the last axis; options: eps, how, offset
    "linear",  # x · Wᵀ (+ b)
    "heads",  # a linear whose output is split into heads: (batch, heads, length, head_size)
    "rotate",  # RoPE; options: rope
    "attend",  # softmax(q · kᵀ · scale, masked) · v, heads joined again; options: causal, window, scale, bias, memory
    "activate",  # an activation; options: how
    "gate",  # act(x · Wgᵀ) * (x · Wuᵀ)
    "add",  # the residual plus
    "pool",  # one vector per sequence; options: how (first, mean)
    "last",  # the scores of the last token that is no padding
    "scores",  # the head: vectors → scores
]


@dataclass(frozen=True, slots=True)
class Weight:
    name: str  # as in the checkpoint
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Op:
    kind: Kind
    module: str  # the module that does it, or the nearest one around it
    reads: tuple[int, ...]  # numbers of the ops whose results it takes; none: the ids
    shape: Shape
    weights: tuple[Weight, ...] = ()
    block: int | None = None
    site: str | None = None  # where its result can be seen
    beside: Mapping[str, Shape] = field(default_factory=dict)  # further sites on the way
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Blueprint:
    model_type: str
    head: Head
    ops: tuple[Op, ...]
    blocks: int

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Every tensor that a checkpoint must hold, once each, in the order of first use."""
        return tuple({weight.name: weight for op in self.ops for weight in op.weights}.values())

    @property
    def parameters(self) -> int:
        return sum(weight.elements for weight in self.weights)

    @property
    def sites(self) -> dict[str, Shape]:
        """Every site, with the shape of what is found there."""
        found: dict[str, Shape] = {}
        for op in self.ops:
            found.update(op.beside)
            if op.site:
                found[op.site] = op.shape
        return found


@dataclass(frozen=True, slots=True)
class Value:
    """A result inside a builder: which op made it, and its shape."""

    op: int
    shape: Shape


class Builder:
    """Writes a blueprint down as the equations go. Names inside `block` are relative to that block."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.ops: list[Op] = []
        self._block: int | None = None
        self._prefix = ""

    @contextmanager
    def block(self, number: int, prefix: str) -> Iterator[None]:
        self._block, self._prefix = number, f"{prefix}.{number}."
        yield
        self._block, self._prefix = None, ""

    def _op(self, kind: Kind, module: str, reads: tuple[Value, ...], shape: Shape, site: str | None = None,
            weights: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
            beside: Mapping[str, Shape] = MappingProxyType({}), **options: Any) -> Value:  # fmt: skip
        at = f"blocks.{self._block}." if self._block is not None else ""
        self.ops.append(
            Op(
                kind,
                (self._prefix + module).rstrip("."),
                tuple(value.op for value in reads),
                shape,
                tuple(Weight(self._prefix + name, size) for name, size in weights.items()),
                self._block,
                site and at + site,
                {at + name: size for name, size in beside.items()},
                options,
            )
        )
        return Value(len(self.ops) - 1, shape)

    def embed(self, module: str, site: str | None = "embedding") -> Value:
        c = self.config
        shape = ("batch", "length", c.hidden_size)
        return self._op("embed", module, (), shape, site, {f"{module}.weight": (c.vocab_size, c.hidden_size)})

    def norm(self, x: Value, module: str, eps: float, site: str | None = None, how: str = "rms") -> Value:
        size = _whole(x.shape[-1])
        return self._op("norm", module, (x,), x.shape, site, {f"{module}.weight": (size,)}, eps=eps, how=how)

    def linear(self, x: Value, module: str, out: int, bias: bool = False, site: str | None = None) -> Value:
        return self._op("linear", module, (x,), (*x.shape[:-1], out), site, _linear(module, x, out, bias))

    def heads(self, x: Value, module: str, heads: int, size: int, bias: bool = False, site: str | None = None) -> Value:
        shape = (x.shape[0], heads, x.shape[1], size)
        return self._op("heads", module, (x,), shape, site, _linear(module, x, heads * size, bias))

    def rotate(self, x: Value, module: str, rope: Any, site: str | None = None) -> Value:
        return self._op("rotate", module, (x,), x.shape, site, rope=rope)

    def attend(
        self, query: Value, key: Value, value: Value, module: str, window: int | None = None, causal: bool = True
    ) -> Value:
        """Attention, with its pattern and its heads' outputs as sites beside; the heads come out joined."""
        batch, heads, length, size = query.shape
        beside = {"attention.pattern": (batch, heads, length, "keys"), "attention.heads": query.shape}
        joined = (batch, length, _whole(heads) * _whole(size))
        scale = _whole(size) ** -0.5
        return self._op(
            "attend", module, (query, key, value), joined, None, {}, beside, causal=causal, window=window, scale=scale
        )

    def gate(
        self, x: Value, gate: str, up: str, inner: int, how: str, bias: bool = False, site: str = "mlp.hidden"
    ) -> Value:
        weights = _linear(gate, x, inner, bias) | _linear(up, x, inner, bias)
        return self._op("gate", gate.rpartition(".")[0], (x,), (*x.shape[:-1], inner), site, weights, how=how)

    def add(self, x: Value, update: Value, site: str) -> Value:
        return self._op("add", "", (x, update), x.shape, site)

    def finish(self, x: Value, head: Head) -> Blueprint:
        """Put the head on, and close the list."""
        c = self.config
        if head == "causal":
            table = self.ops[0].weights[0].name if c.tie_word_embeddings else "lm_head.weight"
            shape = (*x.shape[:-1], c.vocab_size)
            self._op("scores", "lm_head", (x,), shape, "scores", {table: (c.vocab_size, c.hidden_size)})
        elif head == "sequence":
            labels = c.num_labels or 2
            x = self._op(
                "scores", "score", (x,), (*x.shape[:-1], labels), "scores", {"score.weight": (labels, c.hidden_size)}
            )
            self._op("last", "score", (x,), ("batch", labels))
        return Blueprint(c.model_type, head, tuple(self.ops), c.num_hidden_layers)


def _linear(module: str, x: Value, out: int, bias: bool) -> dict[str, tuple[int, ...]]:
    weights: dict[str, tuple[int, ...]] = {f"{module}.weight": (out, _whole(x.shape[-1]))}
    return weights | {f"{module}.bias": (out,)} if bias else weights


def _whole(size: Dim) -> int:
    assert isinstance(size, int), size
    return size
