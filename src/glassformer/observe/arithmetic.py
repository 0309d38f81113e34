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
        total = made.step("scaled", f"× {scale:.6g}", total * scale)
    if (softcap := op.options.get("softcap")) is not None:
        made.step("soft-capped", f"{softcap:g} × tanh(score ÷ {softcap:g})", softcap * np.tanh(total / softcap))
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
    """A number of a projection that makes queries, keys and values at once, or of one that is normed as a whole."""
    (source,) = op.inputs
    size = op.shape[-1]
    assert isinstance(size, int)
    head, own = divmod(index, size)
    return number_arithmetic(values, source, (op.options["first"] + op.options["step"] * head) * size + own)


def _rotate(values: OpValues, op: Op, index: int) -> Arithmetic:
    made = Arithmetic()
    x = values.value(op.inputs[0])
    head, own = divmod(index, x.shape[-1])
    mine = made.step("before", f"x[{own}]", x[head, own])
    rope = op.options["rope"]
    firsts, seconds = rope.pairs(x.shape[-1])
    if own not in firsts and own not in seconds:
        made.step("the same number", f"RoPE turns {2 * len(firsts)} numbers of a head, and this is none of them", mine)
        return made
    sign = 1 if own in seconds else -1
    pair = int(np.flatnonzero((seconds if sign > 0 else firsts) == own)[0])
    other = int((firsts if sign > 0 else seconds)[pair])
    angle = float(values.angles(op)[pair])
    partner = made.step("its partner", f"x[{other}]", x[head, other])
    made.step("angle", f"position {values.position} × frequency of pair {pair}, in radians", angle)
    scale = rope.scale
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
    made, how = Arithmetic(), op.options["how"]
    if len(op.inputs) == 2:  # of two products that are there already
        values.prefetch(op.inputs)
        gate, up = (made.step(name, f"{name}[{index}]", values.value(source)[index]) for name, source in
                    zip(("gate", "up"), op.inputs, strict=True))  # fmt: skip
        opened = made.step(how, f"{how}(gate)", activation(op)(np.asarray([gate], np.float32))[0])
        made.step("neuron", f"{how}(gate) × up", opened * up)
        return made
    gate = _gate_product(values, op, index, made, 0)
    opened = made.step(how, f"{how}(gate)", activation(op)(np.asarray([gate], np.float32))[0])
    up = _gate_product(values, op, index, made, 1)
    made.step("neuron", f"{how}(gate) × up", opened * up)
    return made


def _gate_product(values: OpValues, op: Op, index: int, made: Arithmetic, part: int) -> float:
    """One of the two products of a gate: its own, or a part of the projection before it."""
    name = ("gate", "up")[part]
    if op.weights:
        return _product(values, op, index, made, name, part)
    inner = op.shape[-1]
    assert isinstance(inner, int)
    projection, output = values.ops[op.inputs[0]], part * inner + index
    if not projection.weights:  # a sum of a product and an adapter's update
        return made.step(name, f"x[{output}]", values.value(op.inputs[0])[output])
    return _product(values, projection, output, made, name)


def _route(values: OpValues, op: Op, index: int) -> Arithmetic:
    made = Arithmetic()
    scores = values.value(op.inputs[0])
    made.step("score", f"the router's, of expert {index}", scores[index])
    weights = np.exp(scores - scores.max())
    share = made.step("softmax", f"over {len(scores)} experts", weights[index] / weights.sum())
    chosen = np.argsort(-scores, kind="stable")[: op.options["chosen"]]
    if index not in chosen:
        made.step("share", f"none: {op.options['chosen']} others have higher scores", 0.0)
    elif op.options["normalized"]:
        total = made.step("all chosen", f"the sum of {len(chosen)}", weights[chosen].sum() / weights.sum())
        made.step("share", "softmax ÷ all chosen", share / total)
    else:
        made.step("share", "one of the chosen", share)
    return made


def _expert_gate(values: OpValues, op: Op, index: int) -> Arithmetic:
    slot, own = divmod(index, expert_neurons(op))
    chosen = values.chosen_experts(op)
    made = Arithmetic()
    if slot >= len(chosen):
        made.step("neuron", "of no expert: fewer are chosen here", 0.0)
        return made
    expert = values.expert(op, chosen[slot])
    gate, up = (_product(values, expert, own, made, name, part) for part, name in enumerate(("gate", "up")))
    how, limit, offset = (op.options[name] for name in ("how", "limit", "offset"))
    if limit is not None:
        gate = made.step("gate, cut", f"at most {limit:g}", min(gate, limit))
        up = made.step("up, cut", f"from −{limit:g} to {limit:g}", max(-limit, min(up, limit)))
    opened = made.step(how, f"{how}(gate)", activation(op)(np.asarray([gate], np.float32))[0])
    added = f"(up + {offset:g})" if offset else "up"
    made.step("neuron", f"{how}(gate) × {added}, of expert {chosen[slot]}", opened * (up + offset))
    return made


def _expert_linear(values: OpValues, op: Op, index: int) -> Arithmetic:
    made = Arithmetic()
    neurons, shares = (values.value(source) for source in op.inputs)
    total = 0.0
    for slot, number in enumerate(values.chosen_experts(op)):
        weights, row, bias = values.row(values.expert(op, number), index)
        own = neurons[slot * len(row) : (slot + 1) * len(row)]
        product = dot_product(f"expert {number}", (weights, row), ("neurons", own))
        made.products.append(product)
        share = float(shares[number])
        total += share * (product.total + bias)
        with_bias = f" + {bias:.4f}" if bias else ""
        made.step(f"expert {number}", f"{share:.4f} × ({product.total:.4f}{with_bias})", share * (product.total + bias))
    made.step("sum", "over the chosen experts", total)
    return made


def expert_neurons(op: Op) -> int:
    """How many neurons each expert has."""
    width = op.shape[-1]
    assert isinstance(width, int)
    return width // int(op.options["chosen"])


def _add(values: OpValues, op: Op, index: int) -> Arithmetic:
    made = Arithmetic()
    values.prefetch(op.inputs)
    stream, update = (values.value(source)[index] for source in op.inputs)
    names = ("adapter's update", "product") if op.options.get("adapter") else ("residual stream", "update")
    made.step(names[0], f"x[{index}]", stream)
    made.step(names[1], f"{names[1]}[{index}]", update)
    made.step("sum", " + ".join(names), stream + update)
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
    "route": _route,
    "expert_gate": _expert_gate,
    "expert_linear": _expert_linear,
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
    scores: Floats  # scaled, soft-capped where the model does that, with their biases
    biases: Floats | None
    visible: np.ndarray[tuple[int], np.dtype[np.bool_]]
    sink: float = -np.inf  # a score beside those of the keys; minus infinity: none

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
        scores = products * np.float32(op.options["scale"])
        if (softcap := op.options["softcap"]) is not None:
            scores = np.float32(softcap) * np.tanh(scores / np.float32(softcap))
        scores = scores + (0 if own is None else own)
        visible, sink = values.visible_keys(number, len(keys)), values.sink(op, head)
        return cls(query[head], keys, key_head, products, scores, own, visible, sink)

    @property
    def weights(self) -> Floats:
        shown = np.where(self.visible, self.scores, -np.inf)
        exponentials = np.exp(shown - shown.max())
        return np.asarray(exponentials / (exponentials.sum() + np.exp(self.sink - shown.max())), np.float32)

    def arithmetic(self, op: Op, key: int) -> Arithmetic:
        """How the weight of one key came to be."""
        made = Arithmetic()
        product = dot_product("q · k", ("q", self.query), ("k", self.keys[key]), len(self.query))
        made.products.append(product)
        score = made.step("q · k", f"{len(self.query)} terms", product.total)
        scale = op.options["scale"]
        score = made.step("scaled", f"× {scale:.6g}" if scale != 1 else "× 1: this model does not scale", score * scale)
        if (softcap := op.options["softcap"]) is not None:
            score = made.step("soft-capped", f"{softcap:g} × tanh(score ÷ {softcap:g})", softcap * np.tanh(score / softcap))
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
        if self.sink > -np.inf:
            sink = f"+ exp({self.sink:.4f} − the largest score): the head's sink, which takes its part and has no value"
            total = made.step("sum with the sink", sink, total + np.exp(self.sink - top))
        made.step("weight", "exponential ÷ sum", share / total)
        return made
