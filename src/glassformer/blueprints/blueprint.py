"""Blueprints: a model as a flat list of ops, which is only data.

Each `Op` (`ops.py`) is one equation. The shape journey, the parameter table, drawings and the native engines all read it;
the tests prove that it agrees with what the family computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeAlias

from glassformer.blueprints.config import Config, Head
from glassformer.blueprints.ops import Dim, Op, OpKind, Shape, Weight
from glassformer.blueprints.positions import DistanceBuckets
from glassformer.blueprints.rope import Rope
from glassformer.blueprints.synonyms import synonyms
from glassformer.ground.sites import Synonyms

# how many blocks there are, how many in the encoder, which have experts, and what else their sites are called
BlockCounts: TypeAlias = tuple[int, int, tuple[int, ...], Callable[[], Synonyms]]


UNUSED, UNREAD_MASK = -1, -2


@dataclass(frozen=True, slots=True)
class Part:
    """A module without weights, in PyTorch: an activation under its name there, or a dropout, which need not have one."""

    op: int  # whose activation it is, or whose result is dropped out; of `attend` the pattern, of `scores` what they read;
    # UNUSED: nothing goes through it; UNREAD_MASK: it is no module, but a mask
    module: str
    rate: float | None = None  # of a dropout


@dataclass(frozen=True)
class Blueprint:
    model_type: str
    head: Head
    ops: tuple[Op, ...]
    blocks: int
    encoder_blocks: int = 0  # of the encoder of an encoder-decoder
    routed_blocks: tuple[int, ...] = ()  # the numbers of the blocks that have experts
    parts: tuple[Part, ...] = ()  # what only PyTorch's modules have

    @cached_property
    def weights(self) -> tuple[Weight, ...]:
        """Every tensor of the checkpoint, once each, in the order of first use."""
        return tuple({weight.name: weight for op in self.ops for weight in op.weights}.values())

    @property
    def optional_weights(self) -> tuple[str, ...]:
        """Tensors that a checkpoint may hold: tables that can be made where it does not."""
        return tuple(op.options["stored"] for op in self.ops if "stored" in op.options)

    @property
    def parameters(self) -> int:
        return sum(weight.elements for weight in self.weights)

    @property
    def ropes(self) -> list[Rope]:
        """RoPE's kinds of frequencies in the decoder, or in a model that is one stack."""
        return list(dict.fromkeys(op.options["rope"] for op in self.ops if op.kind == "rotate" and not op.stack))

    @property
    def block_counts(self) -> BlockCounts:
        """What decides which sites there are, and by which names: as `sites.expand` takes it."""
        return self.blocks, self.encoder_blocks, self.routed_blocks, lambda: self.synonyms

    @cached_property
    def synonyms(self) -> Synonyms:
        """What other libraries call the sites."""
        return synonyms(self.ops, self.blocks)

    @cached_property
    def sites(self) -> Mapping[str, Shape]:
        """Every site, with its shape."""
        shapes: dict[str, Shape] = {}
        for op in self.ops:
            shapes.update(op.inner_sites)
            if op.site:
                shapes[op.site] = op.shape
        return shapes


@dataclass(frozen=True, slots=True)
class Value:
    """The result of an op, inside a builder: the op's index and the shape."""

    op: int
    shape: Shape


class Builder:
    """Records a blueprint, one call per equation. Names inside `block` are relative to that block."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.ops: list[Op] = []
        self._parts: list[Part] = []
        self._block: int | None = None
        self._prefix = ""
        self._stack = ""

    @contextmanager
    def block(self, number: int, prefix: str, stored: int | None = None) -> Iterator[None]:
        """Ops inside belong to a block; `stored`: its number in the checkpoint, where several blocks share their weights."""
        self._block, self._prefix = number, f"{prefix}.{number if stored is None else stored}."
        yield
        self._block, self._prefix = None, ""

    @contextmanager
    def encoder(self) -> Iterator[None]:
        """Ops inside belong to the encoder of an encoder-decoder."""
        self._stack = "encoder."
        yield
        self._stack = ""

    @property
    def length(self) -> Dim:
        return "source" if self._stack else "length"

    @property
    def layer(self) -> int:
        """The number of the block that ops belong to now."""
        assert self._block is not None
        return self._block

    def _op(self, kind: OpKind, module: str, reads: tuple[Value, ...], shape: Shape, site: str | None = None,
            weights: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
            inner_sites: Mapping[str, Shape] = MappingProxyType({}), **options: Any) -> Value:  # fmt: skip
        scope = self._stack + (f"blocks.{self._block}." if self._block is not None else "")
        self.ops.append(
            Op(
                kind,
                (self._prefix + module).rstrip("."),
                tuple(value.op for value in reads),
                shape,
                tuple(Weight(self._prefix + name, size) for name, size in weights.items()),
                self._block,
                self._stack,
                site and scope + site,
                {scope + name: size for name, size in inner_sites.items()},
                options,
            )
        )
        return Value(len(self.ops) - 1, shape)

    def dropout(self, x: Value, rate: float, module: str = "") -> Value:
        """Drop out what an op gives, in training: before it can be seen at the op's site. `module`: its name in PyTorch."""
        self._parts.append(Part(x.op, self._prefix + module if module else "", rate))
        return x

    def unused(self, module: str, rate: float | None = None) -> None:
        """A module that PyTorch has and nothing goes through: a dropout, or, without a rate, nothing at all."""
        self._parts.append(Part(UNUSED, self._prefix + module, rate))

    def unread_mask(self, module: str) -> None:
        """A causal mask that files carry and nothing reads."""
        self._parts.append(Part(UNREAD_MASK, self._prefix + module))

    def _activation(self, x: Value, module: str) -> Value:
        if module:
            self._parts.append(Part(x.op, self._prefix + module))
        return x

    def embed(self, module: str, site: str | None = "embedding", scale: float = 1.0, size: int | None = None) -> Value:
        """Vectors of a size: by default the hidden one."""
        rows, size = self.config.vocab_size, size or self.config.hidden_size
        return self._op(
            "embed", module, (), ("batch", self.length, size), site, {f"{module}.weight": (rows, size)}, scale=scale
        )

    def position(
        self, x: Value, module: str, rows: int, site: str | None = None, how: str = "learned", first: int = 0,
        halves: bool = False,
    ) -> Value:  # fmt: skip
        """Add a row of a table to each token; a sinusoid needs none. `halves`: its sines come first, then its cosines; where
        a file stores such a table in `module`, that one is taken."""
        weights = {} if how == "sinusoid" else {f"{module}.weight": (rows, _integer(x.shape[-1]))}
        options: dict[str, Any] = {"halves": True, "stored": f"{module}.weight"} if halves else {}
        return self._op("position", module, (x,), x.shape, site, weights, how=how, first=first, **options)

    def relative_bias(self, module: str, buckets: int, heads: int) -> Value:
        """A bias for each head and distance, out of a table of buckets; it is added to the attention scores."""
        keys = "source" if self._stack else "keys"
        shape = (1, heads, self.length, keys)
        return self._op("position", module, (), shape, None, {f"{module}.weight": (buckets, heads)}, how="buckets")

    def distance_vectors(self, module: str, rows: int) -> Value:
        """A vector for each bucket of distances between tokens, for attention to look for."""
        size = self.config.hidden_size
        return self._op("position", module, (), (1, rows, size), None, {f"{module}.weight": (rows, size)}, how="distances")

    def norm(
        self, x: Value, module: str, eps: float, site: str | None = None, how: str = "rms", offset: float = 0.0,
        bias: bool = True,
    ) -> Value:  # fmt: skip
        """A norm; `bias`: whether a layer norm has one."""
        size = (_integer(x.shape[-1]),)
        weights = {f"{module}.weight": size} | ({f"{module}.bias": size} if how == "layer" and bias else {})
        return self._op("norm", module, (x,), x.shape, site, weights, eps=eps, how=how, offset=offset)

    def linear(
        self, x: Value, module: str, out: int, bias: bool = False, site: str | None = None, columns: bool = False,
        scale: float = 1.0,
    ) -> Value:  # fmt: skip
        weights = _linear(module, x, out, bias)
        if columns:
            weights[f"{module}.weight"] = (_integer(x.shape[-1]), out)
        return self._op("linear", module, (x,), (*x.shape[:-1], out), site, weights, columns=columns, scale=scale)

    def heads(self, x: Value, module: str, heads: int, size: int, bias: bool = False, site: str | None = None) -> Value:
        shape = (x.shape[0], heads, x.shape[1], size)
        return self._op("heads", module, (x,), shape, site, _linear(module, x, heads * size, bias))

    def separate_heads(self, x: Value, modules: Sequence[str], size: int, site: str | None = None) -> Value:
        """Heads that have a projection each."""
        weights = {name: shape for module in modules for name, shape in _linear(module, x, size, False).items()}
        home = modules[0].rpartition(".")[0]
        return self._op("heads", home, (x,), (x.shape[0], len(modules), x.shape[1], size), site, weights)

    def fused_heads(
        self, x: Value, module: str, first: int, heads: int, size: int, site: str | None = None, step: int = 1
    ) -> Value:
        """Heads of a projection that makes several things: from its `first` head on, every so many."""
        return self._op("heads", module, (x,), (x.shape[0], heads, x.shape[1], size), site, first=first, step=step)

    def rotate(self, x: Value, module: str, rope: Any, site: str | None = None) -> Value:
        return self._op("rotate", module, (x,), x.shape, site, rope=rope)

    def attend(
        self, query: Value, key: Value, value: Value, module: str, window: int | None = None, causal: bool = True,
        scale: float | None = None, bias: Value | None = None, site_prefix: str = "attention", sinks: str | None = None,
        softcap: float | None = None, distances: DistanceBuckets | None = None, distance_key: Value | None = None,
        distance_query: Value | None = None, dropout: float = 0.0, dropout_module: str = "",
    ) -> Value:  # fmt: skip
        """Attention, with sites for its pattern and its heads' outputs; the heads come out joined.

        `sinks`: a score for each head that takes its part of the attention weights, and has no value.
        `distance_key`, `distance_query`: heads of the distances' vectors; `distances` says which of them two tokens have.
        `dropout`: of the pattern, in training; `dropout_module`: its name in PyTorch, where it has one.
        """
        terms = {"key": distance_key, "query": distance_query} if distances is not None else {}
        others = [value for value in (bias, *terms.values()) if value is not None]
        options = {} if distances is None else {
            "distances": distances, "distance_terms": tuple(name for name, value in terms.items() if value is not None)
        }  # fmt: skip
        batch, heads, length, size = query.shape
        keys = "source" if site_prefix == "cross" or self._stack else "keys"
        inner_sites = {f"{site_prefix}.pattern": (batch, heads, length, keys), f"{site_prefix}.heads": query.shape}
        joined = (batch, length, _integer(heads) * _integer(size))
        scale = _integer(size) ** -0.5 if scale is None else scale
        result = self._op(
            "attend", module, (query, key, value, *others), joined, None,
            {} if sinks is None else {sinks: (_integer(heads),)}, inner_sites,
            causal=causal, window=window, scale=scale, cross=site_prefix == "cross", softcap=softcap, **options,
        )  # fmt: skip
        return self.dropout(result, dropout, dropout_module)

    def activate(self, x: Value, how: str, site: str | None = None, name: str = "") -> Value:
        """An activation; `name`: of the module that it is in PyTorch, where it is one."""
        return self._activation(self._op("activate", "", (x,), x.shape, site, how=how), name)

    def gate(
        self, x: Value, gate: str, up: str, inner: int, how: str, bias: bool = False, site: str = "mlp.hidden",
        name: str = "act_fn",
    ) -> Value:  # fmt: skip
        """act(gate(x)) * up(x); `name`: of the activation in PyTorch, beside the two projections."""
        weights, module = _linear(gate, x, inner, bias) | _linear(up, x, inner, bias), gate.rpartition(".")[0]
        result = self._op("gate", module, (x,), (*x.shape[:-1], inner), site, weights, how=how)
        return self._activation(result, f"{module}.{name}")

    def fused_gate(
        self, x: Value, module: str, inner: int, how: str, site: str = "mlp.hidden", name: str = "activation_fn"
    ) -> Value:
        """A gate whose two products are one projection, `x`: first that of the gate."""
        return self._activation(self._op("gate", module, (x,), (*x.shape[:-1], inner), site, how=how), f"{module}.{name}")

    def route(self, scores: Value, module: str, chosen: int, normalized: bool) -> Value:
        """Each expert's share of a token's update: the softmax of the router's scores, and 0 for all but the best.

        `normalized`: the shares of those that are chosen add up to one.
        """
        return self._op(
            "route", module, (scores,), scores.shape, "mlp.experts", chosen=chosen, normalized=normalized
        )  # fmt: skip

    def expert_gate(
        self, x: Value, shares: Value, experts: Sequence[tuple[str, str]], chosen: int, inner: int, how: str,
        bias: bool = False, limit: float | None = None, offset: float = 0.0,
    ) -> Value:  # fmt: skip
        """The neurons of the chosen experts, in the order of their numbers, side by side; `experts`: gate and up of each.

        `limit`: what the gate is cut at above, and the other at both sides; `offset` is added to the latter.
        """
        weights = {
            name: shape
            for modules in experts
            for module in modules
            for name, shape in _linear(module, x, inner, bias).items()
        }
        return self._op(
            "expert_gate", _around(experts[0][0]), (x, shares), (*x.shape[:-1], chosen * inner), "mlp.hidden", weights,
            how=how, chosen=chosen, experts=len(experts), limit=limit, offset=offset,
        )  # fmt: skip

    def expert_linear(
        self, x: Value, shares: Value, experts: Sequence[str], chosen: int, out: int, bias: bool = False
    ) -> Value:
        """The update: what the chosen experts make of their neurons, each times its share."""
        neurons = Value(x.op, (*x.shape[:-1], _integer(x.shape[-1]) // chosen))  # of each
        weights = {name: shape for module in experts for name, shape in _linear(module, neurons, out, bias).items()}
        return self._op(
            "expert_linear", _around(experts[0]), (x, shares), (*x.shape[:-1], out), "mlp.update", weights, chosen=chosen,
            experts=len(experts),
        )  # fmt: skip

    def add(self, x: Value, update: Value, site: str | None = None) -> Value:
        return self._op("add", "", (x, update), x.shape, site)

    def identity(self, x: Value, site: str, module: str = "") -> Value:
        return self._op("identity", module, (x,), x.shape, site)

    def pool(self, x: Value, how: str = "first") -> Value:
        """One vector per text, as if that were its only token."""
        return self._op("pool", "", (x,), (x.shape[0], 1, x.shape[-1]), how=how)

    def scores(
        self, x: Value, module: str, out: int, bias: bool | Weight = False, tied: bool = False,
        dropout: float | None = None, dropout_module: str = "dropout", **options: Any,
    ) -> Value:  # fmt: skip
        """The last layer; a tied one has no weight of its own, and some have a bias stored under another name. `dropout`: of
        what it reads, in training."""
        table = self.ops[0].weights[0].name if tied else f"{module}.weight"
        weights: dict[str, tuple[int, ...]] = {table: (out, _integer(x.shape[-1]))}
        if bias:
            added = Weight(f"{module}.bias", (out,)) if bias is True else bias
            weights[added.name] = added.shape
        result = self._op("scores", module, (x,), (*x.shape[:-1], out), "scores", weights, **options)
        return result if dropout is None else self.dropout(result, dropout, dropout_module)

    def build(self, head: Head) -> Blueprint:
        c = self.config
        return Blueprint(
            c.model_type, head, tuple(self.ops), c.num_hidden_layers, c.encoder_layers, c.routed_layers, tuple(self._parts)
        )  # fmt: skip

    def build_with_head(self, x: Value, head: Head, token_head: str = "classifier", **options: Any) -> Blueprint:
        """Add a head as most families have it, and build; `options`: of the scores for the vocabulary."""
        c = self.config
        if head == "causal":
            self.scores(x, "lm_head", c.vocab_size, tied=c.tie_word_embeddings, **options)
        elif head == "sequence":
            self.scores(self.pool(x, "last"), "score", c.label_count)
        elif head == "token":
            self.scores(x, token_head, c.label_count, bias=True, dropout=c.head_dropout)
        elif head == "question":
            self.scores(x, "qa_outputs", 2, bias=True)
        return self.build(head)


def _linear(module: str, x: Value, out: int, bias: bool) -> dict[str, tuple[int, ...]]:
    weights: dict[str, tuple[int, ...]] = {f"{module}.weight": (out, _integer(x.shape[-1]))}
    return weights | {f"{module}.bias": (out,)} if bias else weights


def _around(module: str) -> str:
    """The module around all experts: `mlp.experts` for `mlp.experts.0.gate_proj`."""
    return module.rsplit(".", 2)[0]


def _integer(size: Dim) -> int:
    assert isinstance(size, int), size
    return size
