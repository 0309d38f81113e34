"""add, identity, sum: values that pass through.

add        the residual sum. Options: of (what it is the sum of instead), scale (of the sum), factor (of
           what is added)
scale      the stream times one learned number
times      the same values times a number of the config. Options: factor
scales     each of its numbers times a learned one
identity   the same value at one more site
sum        over all ranks, each of which has a part of it: only where a model is split
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glassformer.engine.program import Activation, ActivationNumbers, Epilogue, StepKind
from glassformer.ops.module_steps import At, Path, Values, part, path_of, step
from glassformer.ops.op import ArithmeticDraft, Array, Backwards, Floats, Op, PassThrough, TokenContext, WeightSource
from glassformer.ops.products import stored_weight
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
        return np.asarray((inputs[0] + inputs[1] * inputs[1].dtype.type(self._factor)) * inputs[0].dtype.type(self._scale))

    @property
    def _scale(self) -> float:
        return float(self.options.get("scale", 1.0))

    @property
    def _factor(self) -> float:
        return float(self.options.get("factor", 1.0))

    def formula(self) -> str:
        total = (" − " if self._factor == -1 else " + ").join(self._names)
        return total if self._scale == 1 else f"({total}) × {self._scale:.4g}"

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        first, second = (e.value(source)[index] for source in self.inputs)
        e.step(self._names[0], f"x[{index}]", first)
        e.step(self._names[1], f"{self._names[1]}[{index}]", second)
        e.step("sum", self.formula(), (first + self._factor * second) * self._scale)

    def write_modules(self, derivation: Any, index: int) -> None:
        plain = self._scale == self._factor == 1
        added = step(add) if plain else step(add_scaled, self._scale, self._factor)
        derivation.add(index, path_of(self.module), added)

    def lower(self, writer: ProgramWriter, index: int) -> None:
        first, second = (writer.buffer_of[operand] for operand in self.inputs)
        buffer = writer.allocate(self.width)
        writer.emit(StepKind.ADD, input=second, second_input=first, output=buffer, scale=self._scale, factor=self._factor)
        writer.set_result(index, buffer)

    def epilogue(self, writer: ProgramWriter, index: int, source: int) -> Mapping[str, Any] | None:
        """The sum with a matmul's result; in place, unless the residual is still needed."""
        residual = writer.other_operand(source, index)
        if residual not in writer.buffer_of or self._scale != 1 or self._factor != 1:
            return None
        writer.fused.add(index)
        buffer = writer.buffer_of[residual]
        into = buffer if writer.can_overwrite(residual, source) else None
        return {"epilogue": Epilogue.ADD, "second_input": buffer, "into": into}


class LearnedScale(PassThrough):
    __slots__ = ()
    kind = "scale"
    elementwise = True

    def factor(self, weights: WeightSource) -> float:
        return float(stored_weight(weights, self.weights[0]).reshape(()))

    @property
    def numbers(self) -> ActivationNumbers:
        return ActivationNumbers((self.weights[0].name,), one_number)

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        return np.asarray(inputs[0] * inputs[0].dtype.type(self.factor(token.weights)))

    def formula(self) -> str:
        return "x × a learned number"

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        x = e.step("before", f"x[{index}]", e.value(self.inputs[0])[index])
        factor = self.factor(e.token(self).weights)
        e.step("scaled", f"× {factor:.6g}", x * factor)

    def linear(self, x: Array, weights: WeightSource, held: Array | None) -> Array:
        return np.asarray(x * self.factor(weights))

    def backwards(self, g: Array, weights: WeightSource, width: int, held: Callable[[], Array]) -> Backwards:
        return Backwards(g * self.factor(weights))

    def write_modules(self, derivation: Any, index: int) -> None:
        path = path_of(self.weights[0].name)
        derivation.ones(self.weights[0])
        derivation.add(index, path[:-1], step(scale_by_buffer, path[-1]))

    def lower(self, writer: ProgramWriter, index: int) -> None:
        buffer, source = writer.allocate(self.width), writer.buffer_of[self.inputs[0]]
        fields: dict[str, Any] = {"activation": Activation.SCALE, "activation_numbers": self.numbers}
        writer.emit(StepKind.ACTIVATE, input=source, output=buffer, **fields)
        writer.set_result(index, buffer)


@dataclass(frozen=True)
class Constant:
    """A number of a config, where engines take learned ones."""

    number: float

    def __call__(self) -> Floats:
        return np.full(1, self.number, np.float32)


class Times(LearnedScale):
    __slots__ = ()
    kind = "times"

    def factor(self, weights: WeightSource) -> float:
        return float(self.options["factor"])

    @property
    def numbers(self) -> ActivationNumbers:
        return ActivationNumbers((), Constant(self.options["factor"]))

    def formula(self) -> str:
        return f"x × {self.options['factor']:.4g}"

    def write_modules(self, derivation: Any, index: int) -> None:
        home = path_of(self.module) if self.module else derivation.home_of_value(self)
        derivation.add(index, home, step(times, self.options["factor"]))


class LearnedScales(Op):
    __slots__ = ()
    kind = "scales"
    elementwise = True

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        return np.asarray(inputs[0] * stored_weight(token.weights, self.weights[0]))

    def formula(self) -> str:
        return "x × weight, number by number"

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        x = e.step("before", f"x[{index}]", e.value(self.inputs[0])[index])
        weight = stored_weight(e.token(self).weights, self.weights[0])[index]
        e.step("scaled", f"× {self.weights[0].name}[{index}]", x * weight)

    def write_modules(self, derivation: Any, index: int) -> None:
        path = path_of(self.weights[0].name)
        derivation.vector(self.weights[0], 1.0)
        derivation.add(index, path[:-1], step(scale_by_vector, At(path[:-1]), path[-1]))

    def lower(self, writer: ProgramWriter, index: int) -> None:
        buffer, source = writer.allocate(self.width), writer.buffer_of[self.inputs[0]]
        writer.emit(StepKind.MULTIPLY, input=source, output=buffer, vector=self.weights[0].name)
        writer.set_result(index, buffer)


def one_number(number: Array) -> Array:
    return number.reshape(1).astype(np.float32)


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


def add_scaled(scale: float, factor: float, first: int, second: int, write: int, m: Any, values: Values, p: Any) -> None:
    added = values[second] if factor == 1 else values[second] * factor
    total = values[first] + added
    values[write] = total if scale == 1 else total * scale


def scale_by_buffer(name: str, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    values[write] = values[read] * m._buffers[name]


def times(factor: float, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    values[write] = values[read] * factor


def scale_by_vector(path: Path, name: str, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    values[write] = values[read] * getattr(part(m, path), name)


def build_add(
    b: Recorder, x: Value, update: Value, site: str | None = None, module: str = "", of: tuple[str, str] | None = None,
    scale: float = 1.0, factor: float = 1.0,
) -> Value:  # fmt: skip
    """`of`: what it is the sum of, where that is not the residual stream and an update; `scale`: of the sum; `factor`: of
    what is added."""
    numbers = {name: number for name, number in (("scale", scale), ("factor", factor)) if number != 1.0}
    options: dict[str, Any] = {**({} if of is None else {"of": of}), **numbers}
    return b.record(Add, module, (x, update), x.shape, site, **options)


def build_scale(b: Recorder, x: Value, number: str, site: str | None = None) -> Value:
    """Times a learned number."""
    return b.record(LearnedScale, "", (x,), x.shape, site, {number: (1,)})


def build_times(b: Recorder, x: Value, factor: float, site: str, module: str = "") -> Value:
    """The same values times a number of the config, at a site of their own; `module`: the one that does it, if any."""
    return build_identity(b, x, site, module) if factor == 1 else b.record(Times, module, (x,), x.shape, site, factor=factor)


def build_scales(b: Recorder, x: Value, weight: str) -> Value:
    """Times a learned number each."""
    return b.record(LearnedScales, "", (x,), x.shape, None, {weight: (x.width,)})


def build_identity(b: Recorder, x: Value, site: str, module: str = "") -> Value:
    return b.record(Identity, module, (x,), x.shape, site)
