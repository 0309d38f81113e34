"""One number of a model as arithmetic: the products and sums that gave it. Each op explains its own (`ops/`).

What is shown is computed here, from values that the engine gave; so a result may differ from the engine's own in its last
digits, and with packed weights by more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glassformer.blueprints import Op
from glassformer.observe.op_values import OpValues
from glassformer.observe.protocols import Floats
from glassformer.ops.op import Token
from glassformer.views.inside import ArithmeticStep, DotProduct, ProductTerm

MAX_TERMS = 128  # of a dot product, listed one by one


@dataclass
class Arithmetic:
    """How one number came to be: dot products, then steps, of which the last is the number."""

    values: OpValues
    products: list[DotProduct] = field(default_factory=list)
    steps: list[ArithmeticStep] = field(default_factory=list)
    python: list[str] = field(default_factory=list)

    @property
    def ops(self) -> tuple[Op, ...]:
        return self.values.ops

    @property
    def position(self) -> int:
        return self.values.position

    def token(self, op: Op) -> Token:
        return self.values.token(op)

    def value(self, op: int) -> Floats:
        return self.values.value(op)

    def explain(self, op: int, index: int) -> float:
        """The arithmetic of one number of an op's result; `index` counts through the heads, if it has any."""
        self.values.prefetch(self.ops[op].inputs)
        self.ops[op].explain(self, index)
        return self.result

    def step(self, name: str, expression: str, value: float | np.floating[Any]) -> float:
        self.steps.append(ArithmeticStep(name, expression, float(value)))
        return float(value)

    def dot_product(self, name: str, left: tuple[str, Floats], right: tuple[str, Floats], every: bool = False) -> float:
        """All terms in order, or the largest of them and the sum of the others."""
        (left_name, a), (right_name, b) = left, right
        products = a.astype(np.float64) * b
        listed = np.arange(len(products))
        if len(products) > MAX_TERMS and not every:
            listed = np.argsort(-np.abs(products), kind="stable")[:MAX_TERMS]
        terms = tuple(ProductTerm(int(i), float(a[i]), float(b[i]), float(products[i])) for i in listed)
        total = float(products.sum())
        others = len(products) - len(listed)
        rest = total - float(products[listed].sum()) if others else 0.0
        self.products.append(DotProduct(name, left_name, right_name, terms, others, rest, total))
        return total

    def add_python(self, line: str) -> None:
        self.python.append(line)

    @property
    def result(self) -> float:
        return self.steps[-1].value
