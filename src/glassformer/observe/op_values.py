"""What each op of a blueprint gave at one position of a text: read at its site, or computed from what was read.

An op without a site (a projection before RoPE, a sum before a norm) is computed in numpy by its kind, so nothing here knows
a family. It is a slow statement of the blueprint for one token, and what one number of a model is explained from.

Shapes: a value is (hidden,), or (heads, head_size) where its op has heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from glassformer.blueprints import Op
from glassformer.blueprints.ops import OpKind
from glassformer.blueprints.positions import distance_biases, sinusoidal_positions
from glassformer.ground.errors import InputError
from glassformer.ground.sites import axes
from glassformer.observe.activations import Activations
from glassformer.observe.protocols import Floats


def _gelu(x: Floats) -> Floats:
    return np.asarray(x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))), np.float32)


def _gelu_tanh(x: Floats) -> Floats:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))), np.float32)


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(0.5 * (1 + np.tanh(x / 2)), np.float32)


ACTIVATIONS: Mapping[str, Callable[[Floats], Floats]] = {
    "silu": lambda x: x * _sigmoid(x),
    "swish": lambda x: x * _sigmoid(x),
    "gelu": _gelu,
    "gelu_python": _gelu,
    "gelu_new": _gelu_tanh,
    "gelu_fast": _gelu_tanh,
    "gelu_accurate": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "gelu_python_tanh": _gelu_tanh,
    "quick_gelu": lambda x: x * _sigmoid(np.float32(1.702) * x),
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
}


@dataclass
class OpValues:
    """The ops' results at one position: of the text, or of the source if the ops are the encoder's."""

    reading: Activations
    position: int
    _read: dict[str, Floats] = field(default_factory=dict)
    _computed: dict[int, Floats] = field(default_factory=dict)

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        return self.reading.model.blueprint.ops

    # Values -----------------------------------------------------------------------------------------------------

    def prefetch(self, numbers: Iterable[int], patterns: Iterable[int] = ()) -> None:
        """Read whatever these ops' values need, and the weights of these attentions, in as few passes as there can be."""
        sites = {site for number in numbers for site in self._sites(number)}
        self._read_sites(sites | {self.inner_site(number, "pattern") for number in patterns})

    def _read_sites(self, sites: set[str]) -> None:
        sites = sites - self._read.keys()
        at = [site for site in sites if self._follows_the_text(site)]
        if at:
            for site, value in self.reading.values_at([self.position], *at).items():
                self._read[site] = np.asarray(value.take(0, axes(site)[1:].index("length")))
        if rest := sites - self._read.keys():
            for site, value in self.reading.values(*rest).items():
                axis = next(n for n, name in enumerate(axes(site)[1:]) if name in ("length", "source"))
                self._read[site] = np.asarray(value.take(min(self.position, value.shape[axis] - 1), axis))

    def value(self, number: int) -> Floats:
        """An op's result at the position."""
        self.prefetch([number])
        return self._value(number)

    def pattern(self, number: int) -> Floats:
        """An attention's weights at the position: (heads, keys)."""
        site = self.inner_site(number, "pattern")
        self._read_sites({site})
        return self._read[site]

    def keys(self, number: int) -> Floats:
        """What an attention compares its queries with: (groups, keys, head_size)."""
        site = self.ops[self.ops[number].inputs[1]].site
        assert site is not None
        return self.reading.at(site)

    def inner_site(self, number: int, name: str) -> str:
        return next(site for site in self.ops[number].inner_sites if site.endswith(f".{name}"))

    def _follows_the_text(self, site: str) -> bool:
        """Whether it has a value for each of the text's tokens; others are of the source, or of the text as a whole."""
        return "length" in self.reading.model.blueprint.sites[site]

    def _sites(self, number: int) -> set[str]:
        """The sites that an op's value is read or computed from."""
        op = self.ops[number]
        if op.kind == "scores" and self.reading.model.writes:
            return {self._last_residual}
        if op.site is not None:
            return {op.site}
        if op.kind == "attend":
            return {self.inner_site(number, "heads")}
        return {site for source in op.inputs for site in self._sites(source)}

    @property
    def _last_residual(self) -> str:
        return f"blocks.{self.reading.model.blueprint.blocks - 1}.residual"

    def _value(self, number: int) -> Floats:
        op = self.ops[number]
        if op.kind == "scores" and self.reading.model.writes:
            if number not in self._computed:
                (self._computed[number],) = self.reading.model.unembed(self._read[self._last_residual][None])
            return self._computed[number]
        if op.site is not None:
            return self._read[op.site]
        if op.kind == "attend":
            return self._read[self.inner_site(number, "heads")].reshape(-1)
        if number not in self._computed:
            self._computed[number] = np.asarray(self._compute(op), np.float32)
        return self._computed[number]

    def _compute(self, op: Op) -> Floats:
        """By its kind, from its inputs' values."""
        inputs = [self._value(source) for source in op.inputs]
        match op.kind:
            case "embed":
                return self.embedding(op) * np.float32(op.options["scale"])
            case "position":
                return inputs[0] + self.position_vector(op)
            case "norm":
                return self.normed(op, inputs[0])
            case "linear":
                return self._product(op, inputs[0])
            case "heads":
                return self._heads(op, inputs[0])
            case "rotate":
                return self.rotated(op, inputs[0])
            case "activate":
                return activation(op)(inputs[0])
            case "gate" if len(inputs) == 2:  # of two products that are there already
                return activation(op)(inputs[0]) * inputs[1]
            case "add":
                return inputs[0] + inputs[1]
            case "pool" if op.options["how"] == "mean":
                site = self.ops[op.inputs[0]].site
                assert site is not None
                return np.asarray(self.reading.at(site).mean(0))
            case _:  # identity, pool, sum: the same number
                return inputs[0]

    # Kinds ------------------------------------------------------------------------------------------------------

    def embedding(self, op: Op) -> Floats:
        """The token's row of the table."""
        ids = (self.reading.source or ()) if op.stack else self.reading.ids
        row = self.reading.model.weight(op.weights[0].name, ids[self.position])
        assert row is not None
        return row

    def position_vector(self, op: Op) -> Floats:
        """What is added for the position, or for the first of two texts."""
        how = op.options["how"]
        if how == "sinusoid":
            size = op.shape[-1]
            assert isinstance(size, int)
            stored = self.reading.model.weight(op.options["stored"], self.position) if "stored" in op.options else None
            made = sinusoidal_positions(self.position + 1, size, bool(op.options.get("halves")))[-1]
            return np.asarray(made if stored is None else stored)
        row = self.reading.model.weight(op.weights[0].name, 0 if how == "segments" else self.position + op.options["first"])
        assert row is not None
        return row

    def norm_weights(self, op: Op) -> tuple[Floats, Floats]:
        """What a norm multiplies by, and what it adds."""
        size = op.shape[-1]
        assert isinstance(size, int)
        weight = self._weight(op.weights[0].name, np.ones(size, np.float32))
        bias = self._weight(op.weights[1].name, np.zeros(size, np.float32)) if len(op.weights) > 1 else np.zeros(size)
        return np.asarray(weight + np.float32(op.options["offset"])), np.asarray(bias, np.float32)

    def normed(self, op: Op, x: Floats) -> Floats:
        weight, bias = self.norm_weights(op)
        if op.options["how"] == "layer":
            x = x - x.mean(-1, keepdims=True)
        root = np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(op.options["eps"]))
        return np.asarray(x / root * weight + bias)

    def angles(self, op: Op) -> Floats:
        """By how much RoPE turns each pair of numbers here, in radians: (pairs,)."""
        size = op.shape[-1]
        assert isinstance(size, int)
        frequencies: Floats = op.options["rope"].frequencies(size, len(self.reading))
        return frequencies * np.float32(self.position)

    def rotated(self, op: Op, x: Floats) -> Floats:
        """The pairs of a head's numbers, turned; what is in no pair stays."""
        rope = op.options["rope"]
        cosine, sine = (np.float32(rope.scale) * wave(self.angles(op)) for wave in (np.cos, np.sin))
        own, partner = rope.pairs(x.shape[-1])
        turned = x.copy()
        turned[..., own] = x[..., own] * cosine - x[..., partner] * sine
        turned[..., partner] = x[..., partner] * cosine + x[..., own] * sine
        return turned

    def distance_bias(self, number: int, keys: int) -> Floats | None:
        """What an attention adds to its scores by distance: (heads, keys); None where it adds nothing."""
        op = self.ops[number]
        if "distances" in op.options:
            return self._distance_terms(number, keys)
        if len(op.inputs) < 4:
            return None
        table = self._weight(self.ops[op.inputs[3]].weights[0].name, np.zeros(0, np.float32))
        furthest = self.reading.model.config.relative_attention_max_distance
        biases = distance_biases(table, furthest, bidirectional=not op.options["causal"])
        distances = np.clip(np.arange(keys) - self.position, -furthest, furthest)
        return biases[:, distances + furthest]

    def _distance_terms(self, number: int, keys: int) -> Floats:
        """What the query has with the keys of all distances, and the keys with the queries of theirs: (heads, keys)."""
        op = self.ops[number]
        buckets = op.options["distances"]
        furthest = buckets.max_distance
        numbers = buckets.numbers()[np.clip(self.position - np.arange(keys), -furthest, furthest) + furthest]
        query, all_keys = self.value(op.inputs[0]), self.keys(number)
        total = np.zeros((len(query), keys), np.float32)
        for term, source in zip(op.options["distance_terms"], op.inputs[3:], strict=True):
            vectors = self._distance_heads(self.ops[source])[:, numbers]  # (heads, keys, head_size)
            total += ((query[:, None] if term == "key" else all_keys) * vectors).sum(-1)
        return np.asarray(total * np.float32(op.options["scale"]))

    def _distance_heads(self, op: Op) -> Floats:
        """Heads of the vectors that stand for distances: (heads, buckets, head_size)."""
        source = self.ops[op.inputs[0]]
        table = (self.ops[source.inputs[0]] if source.kind == "norm" else source).weights[0]
        vectors = self._weight(table.name, np.zeros(table.shape, np.float32))
        vectors = self.normed(source, vectors) if source.kind == "norm" else vectors
        matrix, bias = (self._weight(weight.name, np.zeros(weight.shape, np.float32)) for weight in op.weights)
        heads = op.shape[1]
        assert isinstance(heads, int)
        return np.asarray((vectors @ matrix.T + bias).reshape(len(vectors), heads, -1).transpose(1, 0, 2))

    def sink(self, op: Op, head: int) -> float:
        """The score of an attention head's sink; minus infinity where it has none."""
        if not op.weights:
            return -math.inf
        return float(self._weight(op.weights[0].name, np.zeros(op.weights[0].shape, np.float32))[head])

    def visible_keys(self, number: int, keys: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which keys the position may look at."""
        options = self.ops[number].options
        distances = np.arange(keys) - self.position
        visible = distances <= 0 if options["causal"] else np.ones(keys, bool)
        return visible & (np.abs(distances) < options["window"]) if options["window"] else visible

    # Experts ----------------------------------------------------------------------------------------------------

    def chosen_experts(self, op: Op) -> list[int]:
        """The experts that the position goes to, by number, as an op of experts has them in its slots."""
        shares = self.value(op.inputs[1])
        largest = sorted(np.flatnonzero(shares).tolist(), key=lambda expert: (-abs(shares[expert]), expert))
        return sorted(largest[: op.options["chosen"]])

    def expert(self, op: Op, number: int) -> Op:
        """The op of one expert alone: a gate, or a linear."""
        count = len(op.weights) // op.options["experts"]
        kind: OpKind = "gate" if op.kind == "expert_gate" else "linear"
        return replace(op, kind=kind, inputs=op.inputs[:1], weights=op.weights[number * count : (number + 1) * count])

    # Weights ----------------------------------------------------------------------------------------------------

    def row(self, op: Op, output: int, part: int = 0) -> tuple[str, Floats, float]:
        """The weights that make one output of a matrix product, by what name, and its bias; `part`: of a gate, 0 or 1."""
        weights = op.weights
        if op.kind == "gate":
            half = len(weights) // 2
            weights = weights[half * part : half * (part + 1)]
        matrices = [weight for weight in weights if len(weight.shape) == 2 and not weight.name.endswith("bias")]
        columns = bool(op.options.get("columns"))
        rows = matrices[0].shape[1 if columns else 0]
        matrix, own = matrices[output // rows], output % rows
        if columns:
            row = self._weight(matrix.name, np.zeros(matrix.shape, np.float32))[:, own]
        else:
            stored = self.reading.model.weight(matrix.name, own)
            assert stored is not None
            row = stored
        biases = [weight for weight in weights if weight not in matrices]
        bias = self._weight(biases[0].name, np.zeros(biases[0].shape, np.float32)).reshape(-1)[output] if biases else 0.0
        return f"{matrix.name}[{':, ' if columns else ''}{own}]", row, float(bias)

    def _product(self, op: Op, x: Floats) -> Floats:
        matrices = [weight for weight in op.weights if len(weight.shape) == 2]
        parts = [self._weight(weight.name, np.zeros(weight.shape, np.float32)) for weight in matrices]
        products = np.concatenate([x @ part if op.options.get("columns") else part @ x for part in parts])
        for bias in (weight for weight in op.weights if weight not in matrices):
            products += self._weight(bias.name, np.zeros(bias.shape, np.float32))
        return np.asarray(products * np.float32(op.options.get("scale", 1.0)), np.float32)

    def _heads(self, op: Op, x: Floats) -> Floats:
        _, heads, _, size = op.shape
        assert isinstance(heads, int)
        assert isinstance(size, int)
        if op.weights:
            return self._product(op, x).reshape(heads, size)
        first, step = op.options["first"], op.options["step"]
        return x.reshape(-1, size)[first : first + step * heads : step]

    def _weight(self, name: str, absent: Floats) -> Floats:
        """A weight; what the family has in its place where the checkpoint leaves it out."""
        weight = self.reading.model.weight(name)
        return absent if weight is None else weight


def activation(op: Op) -> Callable[[Floats], Floats]:
    """The function that an op applies to each number."""
    how = op.options["how"]
    if how not in ACTIVATIONS:
        raise InputError(f"the activation {how!r} cannot be shown number by number. Known: {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[how]
