"""What ops have of weights, as references by name: norms, and matrices whole or in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glassformer.blueprints import Blueprint, Op, Weight
from glassformer.blueprints.ops import EXPERT_OPS
from glassformer.engine.program import MatrixRef, NormKind, NormRef, RowRuns


def norm_ref(op: Op) -> NormRef:
    weight, *bias = (weight.name for weight in op.weights)
    kind = NormKind.LAYER_NORM if op.options["how"] == "layer" else NormKind.RMS_NORM
    return NormRef(kind, weight, bias[0] if bias else None, op.options["offset"], op.options["eps"])


def matrix_ref(op: Op, weights: Sequence[Weight] | None = None) -> MatrixRef:
    """The matrix of an op, or of a part of its weights."""
    weights = op.weights if weights is None else weights
    matrices = [weight for weight in weights if len(weight.shape) == 2 and not weight.name.endswith("bias")]
    biases = tuple(weight.name for weight in weights if weight not in matrices)
    rows, columns = matrices[0].shape
    transposed = bool(op.options.get("columns"))
    if transposed:
        rows, columns = columns, rows
    return MatrixRef(tuple(weight.name for weight in matrices), (rows * len(matrices), columns), biases, transposed)


def head_matrix(heads: Op, projection: Op) -> MatrixRef:
    """The matrix whose outputs are some heads: one of their own, or that of all heads, unless these take turns in it."""
    matrix = matrix_ref(projection)
    if heads.weights or heads.options["step"] == 1:
        return matrix
    count, size = head_shape(heads.shape)
    return _part_of(matrix, RowRuns(size, heads.options["first"], heads.options["step"], count))


def gate_matrices(gate: Op, projection: Op) -> tuple[MatrixRef, MatrixRef]:
    """The matrices of a gate's two products: its own, or the two halves of a fused one."""
    half = len(projection.weights) // 2
    if gate.weights:
        return matrix_ref(gate, gate.weights[:half]), matrix_ref(gate, gate.weights[half:])
    matrix = matrix_ref(projection)
    gates, ups = (_part_of(matrix, RowRuns(matrix.shape[0] // 2, part, 1, 1)) for part in (0, 1))
    return gates, ups


def _part_of(matrix: MatrixRef, part: RowRuns) -> MatrixRef:
    return matrix._replace(shape=(part.size * part.runs, matrix.shape[1]), part=part)


def _takes_part(op: Op) -> bool:
    """Whether an op takes parts of the projection before it: a gate its halves, heads their turns."""
    return not op.weights and ((op.kind == "gate" and len(op.inputs) == 1) or op.options.get("step", 1) != 1)


def expert_weights(op: Op) -> list[list[tuple[Weight, ...]]]:
    """The weights of each expert's matrices, with their biases: gate and up, or one alone."""
    per_expert = len(op.weights) // op.options["experts"]
    matrices = 2 if op.kind == "expert_gate" else 1
    per_matrix = per_expert // matrices
    parts = [op.weights[at : at + per_matrix] for at in range(0, len(op.weights), per_matrix)]
    return [parts[at : at + matrices] for at in range(0, len(parts), matrices)]


def required_matrices(blueprint: Blueprint) -> list[MatrixRef]:
    """All matrices that a blueprint's matmuls and tables need, without their biases."""
    required: list[MatrixRef] = []
    takes_part = [_takes_part(op) for op in blueprint.ops]
    fused = {op.inputs[0] for op, part in zip(blueprint.ops, takes_part, strict=True) if part}
    for number, op in enumerate(blueprint.ops):
        projection = blueprint.ops[op.inputs[0]] if takes_part[number] else op
        if op.kind == "gate":
            required += gate_matrices(op, projection) if projection.weights else ()
        elif op.kind in EXPERT_OPS:
            required += [matrix_ref(op, part) for parts in expert_weights(op) for part in parts]
        elif takes_part[number]:
            required.append(head_matrix(op, projection))
        elif number in fused or not op.weights:
            continue
        elif op.kind in ("embed", "linear", "heads", "scores") or (
            op.kind == "position" and op.options["how"] not in ("buckets", "distances")
        ):
            required.append(matrix_ref(op))
    return list(dict.fromkeys(matrix._replace(biases=()) for matrix in required))


def head_shape(shape: Sequence[Any]) -> tuple[int, int]:
    return int(shape[1]), int(shape[3])
