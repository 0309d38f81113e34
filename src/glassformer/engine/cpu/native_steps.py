"""A program's steps as native code reads them: names of weights become addresses."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from glassformer.engine.cpu.library import NO_BUFFER, NO_ROPE, MatrixKind, NativeMatrix, NativeNorm, NativeStep
from glassformer.engine.cpu.weights import NativeWeights
from glassformer.engine.program import NormRef, Program, ProgramStep, SinusoidTable, Table

OPTIONAL = ("rope", "query_distances", "key_distances")
NUMBERS = [step.name for step in fields(ProgramStep) if step.name in NativeStep.numbers and step.name not in OPTIONAL]


def native_steps(program: Program, weights: NativeWeights) -> Any:
    """All steps of a program, as one array."""
    steps = (NativeStep * len(program.steps))()
    for step, native in zip(program.steps, steps, strict=True):
        _fill(native, step, weights)
    return steps


def _fill(native: NativeStep, step: ProgramStep, weights: NativeWeights) -> None:
    """Write a step over one that is all zeros, so that only what differs needs to be written."""
    for name in NUMBERS:
        if value := getattr(step, name):
            setattr(native, name, value)
    native.scale, native.softcap = step.scale, step.softcap
    native.rope = NO_ROPE if step.rope is None else step.rope
    native.gate_limit, native.gate_offset = step.gate_limit, step.gate_offset
    native.matrix_count = len(step.matrices)
    for number, table in enumerate(step.matrices):
        native.matrices[number] = _matrix(table, weights)
    if step.experts:
        native.matrix_count = len(step.experts[0])
        native.experts = weights.matrices([table for expert in step.experts for table in expert])
    if step.sinks is not None:
        native.sinks = weights.vector(step.sinks)
    for name in ("norm", "query_norm", "key_norm"):
        if (norm := getattr(step, name)) is not None:
            setattr(native, name, _norm(norm, weights))
    native.query_distances = NO_BUFFER if step.query_distances is None else step.query_distances
    native.key_distances = NO_BUFFER if step.key_distances is None else step.key_distances
    if (heads := step.distance_heads) is not None:
        values = weights.derived(heads, lambda: heads.values(lambda name: weights.stored(name).to_float32()))
        native.matrix_count, native.matrices[0] = 1, NativeMatrix(values, None, MatrixKind.F32, *heads.shape)
    if (buckets := step.distances) is not None:
        native.max_distance = buckets.max_distance
        native.distance_buckets = weights.derived(buckets, buckets.numbers)
    if (bias := step.distance_bias) is not None:
        native.max_distance = bias.max_distance
        native.distance_bias = weights.derived(bias, lambda: bias.values(weights.stored(bias.table).to_float32()))


def _matrix(table: Table, weights: NativeWeights) -> NativeMatrix:
    if isinstance(table, SinusoidTable):
        made = weights.derived(table, lambda: weights.stored_or(table.stored, table.shape, table.values))
        return NativeMatrix(made, None, MatrixKind.F32, *table.shape)
    return weights.matrix(table.names, table.shape, table.biases, table.part)


def _norm(norm: NormRef, weights: NativeWeights) -> NativeNorm:
    bias = weights.vector(norm.bias) if norm.bias else None
    return NativeNorm(weights.vector(norm.weight, plus=norm.offset), bias, norm.eps, norm.kind)
