"""Matrix products, which several kinds of ops have: in numpy, number by number, and as references for engines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glassformer.engine.program import MatrixRef, RowRuns
from glassformer.ops.op import ArithmeticDraft, Array, Floats, Op, Weight, WeightSource


def matrices_of(weights: Sequence[Weight]) -> list[Weight]:
    """The matrices among an op's weights; a bias may have two dimensions, too (BART)."""
    return [weight for weight in weights if len(weight.shape) == 2 and not weight.name.endswith("bias")]


def stored_weight(source: WeightSource, weight: Weight) -> Floats:
    """A weight; zeros where a checkpoint leaves it out."""
    stored = source.weight(weight.name)
    return np.zeros(weight.shape, np.float32) if stored is None else stored


def matrix_and_bias(op: Op, source: WeightSource, weights: Sequence[Weight] | None = None) -> tuple[Floats, Floats | None]:
    """A product's matrix as (outputs, inputs), those of several modules joined, and its bias."""
    weights = op.weights if weights is None else weights
    matrices = matrices_of(weights)
    stored = [stored_weight(source, matrix) for matrix in matrices]
    matrix = stored[0] if len(stored) == 1 else np.concatenate(stored)
    biases = [stored_weight(source, weight).reshape(-1) for weight in weights if weight not in matrices]
    return matrix.T if op.options.get("columns") else matrix, biases[0] if biases else None


def product(op: Op, x: Array, source: WeightSource, weights: Sequence[Weight] | None = None) -> Array:
    """An op's product with x, or that of a part of its weights, times its scale: (…, outputs)."""
    matrix, bias = matrix_and_bias(op, source, weights)
    made = x @ matrix.T if bias is None else x @ matrix.T + bias
    return np.asarray(made * x.dtype.type(op.options.get("scale", 1.0)))


def weight_row(
    op: Op, source: WeightSource, output: int, weights: Sequence[Weight] | None = None
) -> tuple[str, Floats, float]:
    """The weights that make one output of a product, by what name, and its bias."""
    weights = op.weights if weights is None else weights
    matrices = matrices_of(weights)
    columns = bool(op.options.get("columns"))
    rows = matrices[0].shape[1 if columns else 0]
    matrix, index = matrices[output // rows], output % rows
    stored = source.weight(matrix.name) if columns else source.weight(matrix.name, index)
    assert stored is not None
    row = stored[:, index] if columns else stored
    biases = [weight for weight in weights if weight not in matrices]
    bias = stored_weight(source, biases[0]).reshape(-1)[output] if biases else 0.0
    return f"{matrix.name}[{':, ' if columns else ''}{index}]", row, float(bias)


def explain_product(
    op: Op, e: ArithmeticDraft, index: int, name: str, weights: Sequence[Weight] | None = None, title: str | None = None
) -> float:
    """One output of a product as a sum of its terms, and its bias."""
    x = e.value(op.inputs[0])
    row_name, row, bias = weight_row(op, e.token(op).weights, index, weights)
    total = e.dot_product(title or name, (row_name, row), ("input", x.reshape(-1)))
    total = e.step(name, f"{len(row)} terms", total)
    site = e.ops[op.inputs[0]].site
    if site is not None and not op.options.get("columns"):
        tensor, _, rest = row_name.partition("[")
        e.add_python(f'model.weight("{tensor}", {rest[:-1]}) @ reading.at("{site}")[{e.position}]')
    return e.step(f"{name}, with bias", f"+ {bias:.4f}", total + bias) if bias else total


def explain_scaled_product(op: Op, e: ArithmeticDraft, index: int) -> float:
    """One output of an op that is a product, times its scale."""
    total = explain_product(op, e, index, "sum of the products", title="weights · input")
    scale = op.options.get("scale", 1.0)
    return e.step("scaled", f"× {scale:.6g}", total * scale) if scale != 1.0 else total


def matrix_ref(op: Op, weights: Sequence[Weight] | None = None) -> MatrixRef:
    """The matrix of an op, or of a part of its weights, for a program."""
    weights = op.weights if weights is None else weights
    matrices = matrices_of(weights)
    biases = tuple(weight.name for weight in weights if weight not in matrices)
    rows, columns = matrices[0].shape
    transposed = bool(op.options.get("columns"))
    if transposed:
        rows, columns = columns, rows
    return MatrixRef(tuple(weight.name for weight in matrices), (rows * len(matrices), columns), biases, transposed)


def part_of(matrix: MatrixRef, part: RowRuns) -> MatrixRef:
    return matrix._replace(shape=(part.size * part.runs, matrix.shape[1]), part=part)
