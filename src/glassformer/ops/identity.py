"""identity: the same value at one more site."""

from __future__ import annotations

from glassformer.engine.program import StepKind
from glassformer.ops.op import PassThrough
from glassformer.ops.program_writer import ProgramWriter
from glassformer.ops.recorder import Recorder, Value


class Identity(PassThrough):
    __slots__ = ()
    kind = "identity"
    keeps_heads = True

    def lower(self, writer: ProgramWriter, index: int) -> None:
        if len(self.shape) == 4:
            return  # of heads: done by the attention that reads them
        buffer = writer.buffer_of[self.inputs[0]]
        if self.site in writer.changes:  # a change is seen by those who read it here, and by nobody else
            copy = writer.allocate(self.width)
            writer.emit(StepKind.COPY, input=buffer, output=copy)
            buffer = copy
        writer.set_result(index, buffer)


def build_identity(b: Recorder, x: Value, site: str, module: str = "") -> Value:
    return b.record(Identity, module, (x,), x.shape, site)
