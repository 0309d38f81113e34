"""add, identity, sum: values that pass through.

add        the residual sum. Options: of (what it is the sum of instead)
identity   the same value at one more site
sum        over all ranks, each of which has a part of it: only where a model is split
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from glassformer.engine.program import Epilogue, StepKind
from glassformer.ops.module_steps import Values, path_of, step
from glassformer.ops.op import ArithmeticDraft, Array, PassThrough, TokenContext
from glassformer.ops.program_writer import ProgramWriter
from glassformer.ops.recorder import Recorder, Value


class Add(PassThrough):
    __slots__ = ()
    kind = "add"

    @property
    def adds_to_stream(self) -> bool:
        return "of" not in self.options

    @property
    def _names(self) -> tuple[str, str]:
        first, second = self.options.get("of", ("residual stream", "update"))
        return first, second

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        return np.asarray(inputs[0] + inputs[1])

    def formula(self) -> str:
        return " + ".join(self._names)

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        first, second = (e.value(source)[index] for source in self.inputs)
        e.step(self._names[0], f"x[{index}]", first)
        e.step(self._names[1], f"{self._names[1]}[{index}]", second)
        e.step("sum", self.formula(), first + second)

    def write_modules(self, derivation: Any, index: int) -> None:
        derivation.add(index, path_of(self.module), step(add))

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


class Identity(PassThrough):
    __slots__ = ()
    kind = "identity"
    keeps_heads = True

    def write_modules(self, derivation: Any, index: int) -> None:
        """In a container that the blueprint names, or where its input is."""
        path, block = path_of(self.module), derivation.block_of(self)
        named = len(path) > len(block) and path not in derivation.leaves
        derivation.add(index, path if named else derivation.home_of_value(self))

    def lower(self, writer: ProgramWriter, index: int) -> None:
        if len(self.shape) == 4:
            return  # of heads: done by the attention that reads them
        buffer = writer.buffer_of[self.inputs[0]]
        if self.site in writer.changes:  # a change is seen by those who read it here, and by nobody else
            copy = writer.allocate(self.width)
            writer.emit(StepKind.COPY, input=buffer, output=copy)
            buffer = copy
        writer.set_result(index, buffer)


class Sum(PassThrough):
    __slots__ = ()
    kind = "sum"

    def lower(self, writer: ProgramWriter, index: int) -> None:
        buffer = writer.buffer_of[self.inputs[0]]
        writer.emit(StepKind.SUM_OVER_RANKS, input=buffer, output=buffer)
        writer.set_result(index, buffer)


def add(first: int, second: int, write: int, m: Any, values: Values, p: Any) -> None:
    values[write] = values[first] + values[second]


def build_add(
    b: Recorder, x: Value, update: Value, site: str | None = None, module: str = "", of: tuple[str, str] | None = None
) -> Value:
    """`of`: what it is the sum of, where that is not the residual stream and an update."""
    options: dict[str, Any] = {} if of is None else {"of": of}
    return b.record(Add, module, (x, update), x.shape, site, **options)


def build_identity(b: Recorder, x: Value, site: str, module: str = "") -> Value:
    return b.record(Identity, module, (x,), x.shape, site)
