"""gate: act(x · Wgᵀ) * (x · Wuᵀ); without weights, act(x) * y of two results, or of the halves of one. Options: how.

Without `how`, a gate is not activated: the two are multiplied. Of two results, x may be one number, for all of y; or y may
be a part of a wider result: option column, where that begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from glassformer.engine.program import Epilogue, MatrixRef, RowRuns, StepKind
from glassformer.ops.activate import activation, explain_activation, native_activation, torch_activation
from glassformer.ops.module_steps import At, Path, Values, part, path_of, step
from glassformer.ops.op import ArithmeticDraft, Array, Backwards, Op, TokenContext, Weight, WeightSource
from glassformer.ops.products import explain_product, matrix_ref, part_of, product
from glassformer.ops.program_writer import ProgramWriter
from glassformer.ops.recorder import Recorder, Value, linear_weights
from glassformer.ops.split import contiguous, even_parts


class Gate(Op):
    __slots__ = ()
    kind = "gate"
    weight_role = "product"
    applies_norm = True
    updatable_matrices = 2

    @property
    def takes_part(self) -> bool:
        return not self.weights and len(self.inputs) == 1

    @property
    def module_label(self) -> str:
        return ""

    @property
    def halves(self) -> tuple[tuple[Weight, ...], tuple[Weight, ...]]:
        """The weights of its two products: gate and up."""
        half = len(self.weights) // 2
        return self.weights[:half], self.weights[half:]

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        if self.weights:
            gate, up = (product(self, inputs[0], token.weights, weights) for weights in self.halves)
        else:
            gate, up = inputs if len(inputs) == 2 else np.split(inputs[0], 2, -1)
            up = up[..., self.column : self.column + self.width]
        return np.asarray(activation(self)(gate) * up)

    @property
    def column(self) -> int:
        """Of its second input: where its part of that begins."""
        return int(self.options.get("column", 0))

    def formula(self) -> str:
        if self.takes_part:
            return f"{self.opened('the first half of x')} × the second half"
        parts = ("gate weights · x", "up weights · x") if self.weights else ("gate", "up")
        return f"{self.opened(parts[0])} × ({parts[1]})"

    def opened(self, gate: str) -> str:
        """The activation of a gate, in words."""
        return f"{self.options['how'] or ''}({gate})"

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        if len(self.inputs) == 2:  # of two products that are there already
            gates, values = (e.value(source) for source in self.inputs)
            of = index if gates.size > 1 else 0
            gate, up = (
                e.step("gate", f"gate[{of}]", gates[of]),
                e.step("up", f"up[{self.column + index}]", values[self.column + index]),
            )
            opened = explain_activation(self, e, gate, self.opened("gate"))
        else:
            gate = self._explain_product(e, index, 0)
            opened = explain_activation(self, e, gate, self.opened("gate"))
            up = self._explain_product(e, index, 1)
        e.step("neuron", f"{self.opened('gate')} × up", opened * up)

    def _explain_product(self, e: ArithmeticDraft, index: int, part: int) -> float:
        """One of its two products: its own, or a part of the projection before it."""
        name = ("gate", "up")[part]
        if self.weights:
            return explain_product(self, e, index, name, self.halves[part])
        projection, output = e.ops[self.inputs[0]], part * self.width + index
        if not projection.weights:  # a sum of a product and an adapter's update
            return e.step(name, f"x[{output}]", e.value(self.inputs[0])[output])
        return explain_product(projection, e, output, name, title="weights · input")

    @property
    def linear_inputs(self) -> tuple[int, ...]:
        """Of what a gate that is there already lets through, while the gate is held."""
        return self.inputs[1:]

    @property
    def held_input(self) -> int | None:
        return self.inputs[0] if len(self.inputs) == 2 else None

    def linear(self, x: Array, weights: WeightSource, held: Array | None) -> Array:
        return x if held is None else np.asarray(x * activation(self)(held))

    def backwards(self, g: Array, weights: WeightSource, width: int, held: Callable[[], Array]) -> Backwards:
        return Backwards(g * activation(self)(held()))

    def write_modules(self, derivation: Any, index: int) -> None:
        if len(self.inputs) == 2:
            how = self.options["how"]
            beside = self.inputs[1] in derivation.ambient
            gated = step(let_layer_input_through, how, self.column, self.width) if beside else step(let_through, how)
            derivation.add(index, path_of(self.module), gated)
            return
        act = derivation.activation(index, self.options["how"])
        modules = list(dict.fromkeys(path_of(weight.name)[:-1] for weight in self.weights))
        for module in modules:
            derivation.linear(self, module)
        gated = step(gate if modules else fused_gate, *map(At, (act, *modules)))
        derivation.add(index, path_of(self.module), gated)

    def lower(self, writer: ProgramWriter, index: int) -> None:
        how = native_activation(self)
        projection = self if self.weights else writer.ops[self.inputs[0]]
        if len(self.inputs) == 2 or not projection.weights:  # of results that are there already: two, or the halves of one
            gate, up = writer.buffer_of[self.inputs[0]], writer.buffer_of[self.inputs[-1]]
            column = self.column if len(self.inputs) == 2 else self.width
            buffer = writer.allocate(self.width)
            writer.emit(StepKind.GATE, input=gate, second_input=up, column=column, output=buffer, activation=how)
        else:
            norm, source = writer.matmul_input(projection.inputs[0])
            buffer = writer.allocate(self.width)
            fused = {"norm": norm, "epilogue": Epilogue.GATE, "activation": how}
            writer.emit(StepKind.MATMUL, input=source, output=buffer, matrices=self._pair(projection), **fused)
        writer.set_result(index, buffer)

    def _pair(self, projection: Op) -> tuple[MatrixRef, MatrixRef]:
        """The matrices of its two products: its own, or the two halves of a fused one."""
        if self.weights:
            gates, ups = (matrix_ref(self, weights) for weights in self.halves)
        else:
            matrix = matrix_ref(projection)
            gates, ups = (part_of(matrix, RowRuns(self.width, part * self.width, self.width, 1)) for part in (0, 1))
        return gates, ups

    def matrices(self, source: Op | None) -> list[MatrixRef]:
        projection = source if self.takes_part else self
        return [*self._pair(projection)] if projection is not None and projection.weights else []

    @property
    def divides_matrix(self) -> bool:
        return self.takes_part

    def split(self, splitter: Any, index: int) -> None:
        if self.weights:
            splitter.divide_neurons(self, index)
        else:  # the projection before it has both products, and is divided
            splitter.set_result(index, contiguous(-1, even_parts(self.width, splitter.ranks)))

    def projection_ranges(self, splitter: Any, index: int) -> list[list[range]]:
        inner = self.width
        return [[part, range(inner + part.start, inner + part.stop)] for part in even_parts(inner, splitter.ranks)]

    def with_updates(self, rewriter: Any) -> int:
        products = tuple(rewriter.product(self, weights, self.shape) for weights in self.halves)
        appended: int = rewriter.append(replace(self, inputs=products, weights=()))
        return appended


def gate(act: Path, gate_path: Path, up: Path, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    x = values[read]
    values[write] = part(m, act)(part(m, gate_path)(x)) * part(m, up)(x)


def let_through(how: str | None, gate: int, up: int, write: int, m: Any, values: Values, p: Any) -> None:
    values[write] = torch_activation(how, values[gate]) * values[up]


def let_layer_input_through(
    how: str | None, column: int, width: int, gate: int, write: int, m: Any, values: Values, p: Any
) -> None:
    values[write] = torch_activation(how, values[gate]) * p.layer_inputs[..., column : column + width]


def fused_gate(act: Path, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    first, second = values[read].chunk(2, -1)
    values[write] = part(m, act)(first) * second


def build_gate(
    b: Recorder, x: Value, gate: str, up: str, inner: int, how: str, bias: bool = False, site: str | None = "mlp.hidden",
    name: str = "act_fn",
) -> Value:  # fmt: skip
    """act(gate(x)) * up(x); `name`: of the activation in PyTorch, beside the two projections."""
    weights, module = linear_weights(gate, x, inner, bias) | linear_weights(up, x, inner, bias), gate.rpartition(".")[0]
    return b.activation(b.record(Gate, module, (x,), (*x.shape[:-1], inner), site, weights, how=how), f"{module}.{name}")


def build_gated(
    b: Recorder, gate: Value, x: Value, how: str | None, module: str = "", site: str | None = None, column: int | None = None
) -> Value:
    """What a gate, which is there already, lets through of x, or of the part of x that begins at a column."""
    if column is not None:
        return b.record(Gate, module, (gate, x), gate.shape, site, how=how, column=column)
    return b.record(Gate, module, (gate, x), x.shape, site, how=how)


def build_fused_gate(
    b: Recorder, x: Value, module: str, inner: int, how: str, site: str | None = "mlp.hidden", name: str = "activation_fn"
) -> Value:
    """A gate whose two products are one projection, `x`: first that of the gate."""
    return b.activation(b.record(Gate, module, (x,), (*x.shape[:-1], inner), site, how=how), f"{module}.{name}")
