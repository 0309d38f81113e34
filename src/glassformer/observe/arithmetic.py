"""One number of a model as arithmetic: the products and sums that gave it, by the kind of its operation.

What is shown is computed here, from values that the engine gave; so a result may differ from the engine's own in its last
digits, and with packed weights by more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from glassformer.blueprints import Op
from glassformer.observe.op_values import OpValues, activation
from glassformer.observe.protocols import Floats
from glassformer.views.inside import ArithmeticStep, DotProduct, ProductTerm

MAX_TERMS = 128  # of a dot product, listed one by one


@dataclass
class Arithmetic:
    """How one number came to be: dot products, then steps, of which the last is the number."""

    products: list[DotProduct] = field(default_factory=list)
    steps: list[ArithmeticStep] = field(default_factory=list)
    python: list[str] = field(default_factory=list)

    def step(self, name: str, expression: str, value: float | np.floating) -> float:
        self.steps.append(ArithmeticStep(name, expression, float(value)))
        return float(value)

    @property
    def value(self) -> float:
        return self.steps[-1].value


def dot_product(name: str, left: tuple[str, Floats], right: tuple[str, Floats], most: int = MAX_TERMS) -> DotProduct:
    """All terms in order, or the largest `most` of them and the sum of the others."""
    (left_name, a), (right_name, b) = left, right
    products = a.astype(np.float64) * b
    listed = np.arange(len(products))
    if len(products) > most:
        listed = np.argsort(-np.abs(products), kind="stable")[:most]
    terms = tuple(ProductTerm(int(i), float(a[i]), float(b[i]), float(products[i])) for i in listed)
    total = float(products.sum())
    others = len(products) - len(listed)
    rest = total - float(products[listed].sum()) if others else 0.0
    return DotProduct(name, left_name, right_name, terms, others, rest, total)


def number_arithmetic(values: OpValues, number: int, index: int) -> Arithmetic:
    """How one number of an op's result came to be; `index` counts through the heads, if it has any."""
    op = values.ops[number]
    values.prefetch(op.inputs)
    return EXPLANATIONS.get(op.kind, _same)(values, op, index)


def _embed(values: OpValues, op: Op, index: int) -> Arithmetic:
    made = Arithmetic()
    own = made.step("in the table", f"{op.weights[0].name}, the token's row, number {index}", values.embedding(op)[index])
    if (scale := op.options["scale"]) != 1:
        made.step("scaled", f"× {scale:.6g}", own * scale)
    return made


def _position(values: OpValues, op: Op, index: int) -> Arithmetic:
    made = Arithmetic()
    x = made.step("before", f"x[{index}]", values.value(op.inputs[0])[index])
    how = {"segments": "of the first text", "sinusoid": "the sinusoid's value here"}.get(
        op.options["how"], "this position's row"
    )
    added = made.step("position", how, values.position_vector(op)[index])
    made.step("sum", "before + position", x + added)
    return made


def _norm(values: OpValues, op: Op, index: int) -> Arithmetic:
    made = Arithmetic()
    x, eps = values.value(op.inputs[0]), op.options["eps"]
    head, own = divmod(index, x.shape[-1])
    vector = x[head] if x.ndim == 2 else x
    number = made.step("before", f"x[{own}]", vector[own])
    if op.options["how"] == "layer":
        mean = made.step("mean", f"of x's {len(vector)} numbers", vector.mean())
        number = made.step("centred", "before − mean", number - mean)
        square = made.step("variance", "the mean of (x − mean)²", vector.var())
    else:
        square = made.step("mean square", f"of x's {len(vector)} numbers", (vector * vector).mean())
    root = made.step(
        "root", f"√({'variance' if op.options['how'] == 'layer' else 'mean square'} + {eps:g})", np.sqrt(square + eps)
    )
    number = made.step("normed", "÷ root", number / root)
    weights, biases = values.norm_weights(op)
    offset = f" (stored as its difference from {op.options['offset']:g})" if op.options["offset"] else ""
    weight = made.step("weight", f"{op.weights[0].name}[{own}]{offset}", weights[own])
    number = made.step("result", "normed × weight", number * weight)
    if len(op.weights) > 1:
        made.step("with bias", f"+ {biases[own]:.4f}", number + biases[own])
    return made


def _linear(values: OpValues, op: Op, index: int) -> Arithmetic:
    if not op.weights:
        return _fused(values, op, index)
    made = Arithmetic()
    total = _product(values, op, index, made, "sum of the products")
    if (scale := op.options.get("scale", 1.0)) != 1.0:
        made.step("scaled", f"× {scale:.6g}", total * scale)
    return made


def _product(values: OpValues, op: Op, index: int, made: Arithmetic, name: str, part: int = 0) -> float:
    x = values.value(op.inputs[0])
    weights, row, bias = values.row(op, index, part)
    product = dot_product(name if op.kind == "gate" else "weights · input", (weights, row), ("input", x.reshape(-1)))
    made.products.append(product)
    total = made.step(name, f"{len(row)} terms", product.total)
    site = values.ops[op.inputs[0]].site
    if site is not None and not op.options.get("columns"):
        made.python.append(f'model.weight("{weights.partition("[")[0]}", {weights.partition("[")[2][:-1]}) @ '
                           f'reading.at("{site}")[{values.position}]')  # fmt: skip
    return made.step(f"{name}, with bias", f"+ {bias:.4f}", total + bias) if bias else total


def _fused(values: OpValues, op: Op, index: int) -> Arithmetic:
    """A number of a projection that makes queries, keys and values at once."""
    (source,) = op.inputs
    size = int(np.prod([size for size in op.shape if isinstance(size, int)]))
    return number_arithmetic(values, source, op.options["part"] * size + index)


def _rotate(values: OpValues, op: Op, index: int) -> Arithmetic:
    made = Arithmetic()
    x = values.value(op.inputs[0])
    size = x.shape[-1]
    head, own = divmod(index, size)
    half = size // 2
    other = own - half if own >= half else own + half
    angle = float(values.angles(op)[own % half])
    mine = made.step("before", f"x[{own}]", x[head, own])
    partner = made.step("its partner", f"x[{other}]", x[head, other])
    made.step("angle", f"position {values.position} × frequency of pair {own % half}, in radians", angle)
    scale = op.options["rope"].scale
    sign = 1 if own >= half else -1
    turned = scale * (mine * np.cos(angle) + sign * partner * np.sin(angle))
    expression = f"before × cos(angle) {'+' if sign > 0 else '−'} partner × sin(angle)"
    made.step("turned", expression if scale == 1 else f"({expression}) × {scale:.4g}", turned)
    return made


def _activate(values: OpValues, op: Op, index: int) -> Arithmetic:
    (source,) = op.inputs
    made = number_arithmetic(values, source, index) if values.ops[source].site is None else Arithmetic()
    x = values.value(source).reshape(-1)[index]
    if not made.steps:
        made.step("before", f"x[{index}]", x)
    made.step(op.options["how"], f"{op.options['how']}(x)", activation(op)(np.asarray([made.value], np.float32))[0])
    return made


def _gate(values: OpValues, op: Op, index: int) -> Arithmetic:
    made = Arithmetic()
    gate = _product(values, op, index, made, "gate")
    how = op.options["how"]
    opened = made.step(how, f"{how}(gate)", activation(op)(np.asarray([gate], np.float32))[0])
    up = _product(values, op, index, made, "up", 1)
    made.step("neuron", f"{how}(gate) × up", opened * up)
    return made


def _add(values: OpValues, op: Op, index: int) -> Arithmetic:
    made = Arithmetic()
    values.prefetch(op.inputs)
    stream, update = (values.value(source)[index] for source in op.inputs)
    made.step("residual stream", f"x[{index}]", stream)
    made.step("update", f"update[{index}]", update)
    made.step("sum", "residual stream + update", stream + update)
    return made


def _same(values: OpValues, op: Op, index: int) -> Arithmetic:
    made = Arithmetic()
    made.step("the same number", f"x[{index}]", values.value(op.inputs[0]).reshape(-1)[index])
    return made


EXPLANATIONS: Mapping[str, Callable[[OpValues, Op, int], Arithmetic]] = {  # by kind of op
    "embed": _embed,
    "position": _position,
    "norm": _norm,
    "linear": _linear,
    "heads": _linear,
    "rotate": _rotate,
    "activate": _activate,
    "gate": _gate,
    "add": _add,
    "scores": _linear,
}


@dataclass(frozen=True)
class HeadScores:
    """A head's scores and weights over all keys, from the position."""

    query: Floats
    keys: Floats  # (keys, head_size)
    key_head: int
    products: Floats  # query · key
    scores: Floats  # scaled, with their biases
    biases: Floats | None
    visible: np.ndarray[tuple[int], np.dtype[np.bool_]]

    @classmethod
    def of(cls, values: OpValues, number: int, head: int) -> HeadScores:
        op = values.ops[number]
        values.prefetch([op.inputs[0], number], patterns=[number])
        query, all_keys = values.value(op.inputs[0]), values.keys(number)
        key_head = head * len(all_keys) // len(query)
        keys = all_keys[key_head]
        products = keys @ query[head]
        biases = values.distance_bias(number, len(keys))
        own = None if biases is None else biases[head]
        scores = products * np.float32(op.options["scale"]) + (0 if own is None else own)
        return cls(query[head], keys, key_head, products, scores, own, values.visible_keys(number, len(keys)))

    @property
    def weights(self) -> Floats:
        shown = np.where(self.visible, self.scores, -np.inf)
        exponentials = np.exp(shown - shown.max())
        return np.asarray(exponentials / exponentials.sum(), np.float32)

    def arithmetic(self, op: Op, key: int) -> Arithmetic:
        """How the weight of one key came to be."""
        made = Arithmetic()
        product = dot_product("q · k", ("q", self.query), ("k", self.keys[key]), len(self.query))
        made.products.append(product)
        score = made.step("q · k", f"{len(self.query)} terms", product.total)
        scale = op.options["scale"]
        score = made.step("scaled", f"× {scale:.6g}" if scale != 1 else "× 1: this model does not scale", score * scale)
        if self.biases is not None:
            score = made.step(
                "with bias", f"+ {self.biases[key]:.4f}, by the distance between the two", score + self.biases[key]
            )
        if not self.visible[key]:
            made.step("weight", "masked: this token may not look there", 0.0)
            return made
        shown = self.scores[self.visible]
        top = float(shown.max())
        share = made.step("exponential", f"exp(score − the largest score here, which is {top:.4f})", np.exp(score - top))
        total = made.step(
            "sum", f"of the exponentials of the {len(shown)} tokens that it may look at", np.exp(shown - top).sum()
        )
        made.step("weight", "exponential ÷ sum", share / total)
        return made
