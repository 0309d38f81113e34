"""add: the residual sum. Options: adapter (it is that of an adapter's update and the product beside it)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from glassformer.engine.program import Epilogue, StepKind
from glassformer.ops.op import Array, Explanation, PassThrough, Token
from glassformer.ops.program_writer import ProgramWriter
from glassformer.ops.recorder import Recorder, Value


class Add(PassThrough):
    __slots__ = ()
    kind = "add"

    @property
    def adds_to_stream(self) -> bool:
        return not self.options.get("adapter")

    @property
    def _names(self) -> tuple[str, str]:
        return ("residual stream", "update") if self.adds_to_stream else ("adapter's update", "product")

    def value(self, inputs: Sequence[Array], token: Token) -> Array:
        return np.asarray(inputs[0] + inputs[1])

    def formula(self) -> str:
        return " + ".join(self._names)

    def explain(self, e: Explanation, index: int) -> None:
        first, second = (e.value(source)[index] for source in self.inputs)
        e.step(self._names[0], f"x[{index}]", first)
        e.step(self._names[1], f"{self._names[1]}[{index}]", second)
        e.step("sum", self.formula(), first + second)

    def lower(self, writer: ProgramWriter, index: int) -> None:
        first, second = (writer.buffer_of[operand] for operand in self.inputs)
        buffer = writer.allocate(self.width)
        writer.emit(StepKind.ADD, input=second, second_input=first, output=buffer)
        writer.set_result(index, buffer)

    def epilogue(self, writer: ProgramWriter, index: int, source: int) -> Mapping[str, Any] | None:
        """The sum with a matmul's result; in place, unless the residual is still needed."""
        residual = writer.other_operand(source, index)
        if residual not in writer.buffer_of:
            return None
        writer.fused.add(index)
        buffer = writer.buffer_of[residual]
        into = buffer if writer.can_overwrite(residual, source) else None
        return {"epilogue": Epilogue.ADD, "second_input": buffer, "into": into}


def build_add(b: Recorder, x: Value, update: Value, site: str | None = None) -> Value:
    return b.record(Add, "", (x, update), x.shape, site)
