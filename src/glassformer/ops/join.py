"""join: several results side by side, as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from glassformer.engine.program import StepKind
from glassformer.ops.module_steps import path_of, step
from glassformer.ops.op import ArithmeticDraft, Array, Op, TokenContext
from glassformer.ops.program_writer import ProgramWriter
from glassformer.ops.recorder import Recorder, Value


class Join(Op):
    __slots__ = ()
    kind = "join"

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        return np.concatenate(inputs, -1)

    def formula(self) -> str:
        return f"{len(self.inputs)} results side by side"

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        for source in self.inputs:
            if index < (width := e.ops[source].width):
                e.explain(source, index)
                return
            index -= width

    def write_modules(self, derivation: Any, index: int) -> None:
        derivation.add(index, path_of(self.module), step(join))

    def lower(self, writer: ProgramWriter, index: int) -> None:
        buffer, start = writer.allocate(self.width), 0
        for source in self.inputs:
            writer.emit(StepKind.COPY, input=writer.buffer_of[source], output=buffer, output_offset=start)
            start += writer.ops[source].width
        writer.set_result(index, buffer)


def join(*rest: Any) -> None:
    import torch

    *reads, write, _, values, _ = rest
    values[write] = torch.cat([values[read] for read in reads], -1)


def build_join(b: Recorder, parts: Sequence[Value], module: str) -> Value:
    shape = (*parts[0].shape[:-1], sum(part.width for part in parts))
    return b.record(Join, module, (*parts,), shape)
