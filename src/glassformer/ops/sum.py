"""sum: over all ranks, each of which has a part of it. Only where a model is split."""

from __future__ import annotations

from collections.abc import Callable

from glassformer.engine.program import StepKind
from glassformer.ops.op import Array, Backwards, Op, Weights
from glassformer.ops.program_writer import ProgramWriter


class Sum(Op):
    __slots__ = ()
    kind = "sum"

    def linear(self, x: Array, weights: Weights, held: Array | None) -> Array:
        return x

    def backwards(self, g: Array, weights: Weights, width: int, held: Callable[[], Array]) -> Backwards:
        return Backwards(g)

    def lower(self, writer: ProgramWriter, index: int) -> None:
        buffer = writer.buffer_of[self.inputs[0]]
        writer.emit(StepKind.SUM_OVER_RANKS, input=buffer, output=buffer)
        writer.set_result(index, buffer)
