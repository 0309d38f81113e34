"""Several streams side by side, as AltUp has them (https://arxiv.org/abs/2301.13310): a block computes one, and the others
follow from it.

stream       one of them. Options: index
mix          to each of some streams, a sum of others, with factors that a token has made: result i is base i plus the sum of
             (offset + factor i, j) times x j. Options: offset
rescale      a vector with the length of another. Options: floor (of its own mean square)

Shapes: streams (…, streams * width), factors (…, results * streams), those of a result together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from glassformer.engine.program import StepKind
from glassformer.ops.module_steps import Values, path_of, step
from glassformer.ops.op import ArithmeticDraft, Array, Backwards, Op, TokenContext, WeightSource
from glassformer.ops.program_writer import ProgramWriter
from glassformer.ops.recorder import Recorder, Value


class Stream(Op):
    __slots__ = ()
    kind = "stream"

    @property
    def first(self) -> int:
        """The column that it begins at."""
        return int(self.options["index"]) * self.width

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        return np.asarray(inputs[0][..., self.first : self.first + self.width])

    def formula(self) -> str:
        return f"stream {self.options['index']} of those side by side"

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        e.step("the same number", f"x[{self.first + index}]", e.value(self.inputs[0])[self.first + index])

    def linear(self, x: Array, weights: WeightSource, held: Array | None) -> Array:
        return np.asarray(x[:, self.first : self.first + self.width])

    def backwards(self, g: Array, weights: WeightSource, width: int, held: Callable[[], Array]) -> Backwards:
        sent = np.zeros((len(g), width))
        sent[:, self.first : self.first + self.width] = g
        return Backwards(sent)

    def write_modules(self, derivation: Any, index: int) -> None:
        derivation.add(index, path_of(self.module), step(take_stream, self.first, self.width))

    def lower(self, writer: ProgramWriter, index: int) -> None:
        buffer, source = writer.allocate(self.width), writer.buffer_of[self.inputs[0]]
        writer.emit(StepKind.COPY, input=source, output=buffer, column=self.first, width=self.width)
        writer.set_result(index, buffer)


class Mix(Op):
    """Its inputs: the streams that are mixed, the factors, and the base."""

    __slots__ = ()
    kind = "mix"

    @property
    def offset(self) -> float:
        return float(self.options["offset"])

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        x, factors, base = inputs
        size = int(self.options["size"])
        streams, bases = (value.reshape(*value.shape[:-1], -1, size) for value in (x, base))
        table = factors.reshape(*factors.shape[:-1], bases.shape[-2], streams.shape[-2]) + factors.dtype.type(self.offset)
        return np.asarray(bases + table @ streams).reshape(base.shape)

    def formula(self) -> str:
        factor = "factor" if self.offset == 0 else f"({self.offset:g} + factor)"
        return f"base + the sum of {factor} × stream"

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        x, factors, base = (e.value(source) for source in self.inputs)
        size = int(self.options["size"])
        result, column = divmod(index, size)
        count = x.size // size
        total = e.step("base", f"base[{index}]", base[index])
        for stream in range(count):
            factor, number = factors[result * count + stream] + self.offset, x[stream * size + column]
            e.step(f"stream {stream}", f"{factor:.6g} × x[{stream * size + column}]", factor * number)
            total += factor * number
        e.step("sum", "base + streams", total)

    def write_modules(self, derivation: Any, index: int) -> None:
        derivation.add(index, path_of(self.module), step(mix, int(self.options["size"]), self.offset))

    def lower(self, writer: ProgramWriter, index: int) -> None:
        x, factors, base = (writer.buffer_of[source] for source in self.inputs)
        buffer, size = writer.allocate(self.width), int(self.options["size"])
        writer.emit(
            StepKind.MIX, input=x, second_input=factors, third_input=base, output=buffer, width=size, gate_offset=self.offset
        )
        writer.set_result(index, buffer)


class Rescale(Op):
    """Its inputs: the vector, and the one whose length it gets."""

    __slots__ = ()
    kind = "rescale"

    @property
    def floor(self) -> float:
        return float(self.options["floor"])

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        x, other = inputs
        own = np.maximum(np.mean(x * x, -1, keepdims=True), x.dtype.type(self.floor))
        return np.asarray(x * np.sqrt(np.mean(other * other, -1, keepdims=True) / own))

    def formula(self) -> str:
        return f"x × √(mean(y²) ÷ mean(x²)), the latter at least {self.floor:g}"

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        x, other = (e.value(source) for source in self.inputs)
        before = e.step("before", f"x[{index}]", x[index])
        own = e.step("mean square", f"of x's {x.size} numbers, at least {self.floor:g}", max(np.mean(x * x), self.floor))
        target = e.step("its own", "the mean of y²", np.mean(other * other))
        e.step("rescaled", "before × √(its own ÷ mean square)", before * np.sqrt(target / own))

    def write_modules(self, derivation: Any, index: int) -> None:
        derivation.add(index, path_of(self.module), step(rescale, self.floor))

    def lower(self, writer: ProgramWriter, index: int) -> None:
        x, other = (writer.buffer_of[source] for source in self.inputs)
        buffer = writer.allocate(self.width)
        writer.emit(StepKind.RESCALE, input=x, second_input=other, output=buffer, floor=self.floor)
        writer.set_result(index, buffer)


def take_stream(first: int, size: int, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    values[write] = values[read][..., first : first + size]


def mix(size: int, offset: float, x: int, factors: int, base: int, write: int, m: Any, values: Values, p: Any) -> None:
    streams, bases = (values[read].unflatten(-1, (-1, size)) for read in (x, base))
    table = values[factors].unflatten(-1, (bases.shape[-2], streams.shape[-2]))
    table = table if offset == 0 else table + offset
    values[write] = (bases + table @ streams).flatten(-2)


def rescale(floor: float, read: int, other: int, write: int, m: Any, values: Values, p: Any) -> None:
    x, target = values[read], values[other].square().mean(-1, keepdim=True).sqrt()
    values[write] = x * target / x.square().mean(-1, keepdim=True).clamp(min=floor).sqrt()


def build_stream(b: Recorder, x: Value, index: int, size: int, module: str = "", site: str | None = None) -> Value:
    """One of several streams of a size."""
    return b.record(Stream, module, (x,), (*x.shape[:-1], size), site, index=index)


def build_mix(b: Recorder, x: Value, factors: Value, base: Value, size: int, module: str = "", offset: float = 0.0) -> Value:
    """To each stream of the base, a sum of those of x; `size`: of a stream."""
    return b.record(Mix, module, (x, factors, base), base.shape, size=size, offset=offset)


def build_rescale(b: Recorder, x: Value, other: Value, floor: float, module: str = "") -> Value:
    """A vector with the length of another."""
    return b.record(Rescale, module, (x, other), x.shape, floor=floor)
