"""sum: over all ranks, each of which has a part of it. Only where a model is split."""

from __future__ import annotations

from glassformer.engine.program import StepKind
from glassformer.ops.op import PassThrough
from glassformer.ops.program_writer import ProgramWriter


class Sum(PassThrough):
    __slots__ = ()
    kind = "sum"

    def lower(self, writer: ProgramWriter, index: int) -> None:
        buffer = writer.buffer_of[self.inputs[0]]
        writer.emit(StepKind.SUM_OVER_RANKS, input=buffer, output=buffer)
        writer.set_result(index, buffer)
