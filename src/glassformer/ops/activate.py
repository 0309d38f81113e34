"""activate: an activation function of each number. Options: how (its name)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from glassformer.engine.program import Activation, Epilogue, StepKind
from glassformer.ground.errors import InputError
from glassformer.ops.op import Array, Explanation, Op, Token
from glassformer.ops.program_writer import ProgramWriter
from glassformer.ops.recorder import Recorder, Value


def _gelu(x: Array) -> Array:
    return np.asarray(x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))), np.float32)


def _gelu_tanh(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))), np.float32)


def _sigmoid(x: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(x / 2)), np.float32)


class Function(NamedTuple):
    """An activation: in numpy, and the engines' own."""

    compute: Callable[[Array], Array]
    native: Activation


SILU = Function(lambda x: x * _sigmoid(x), Activation.SILU)
GELU = Function(_gelu, Activation.GELU)
GELU_TANH = Function(_gelu_tanh, Activation.GELU_TANH)
ACTIVATIONS: Mapping[str, Function] = {  # by all their names
    "silu": SILU,
    "swish": SILU,
    "gelu": GELU,
    "gelu_python": GELU,
    "gelu_new": GELU_TANH,
    "gelu_fast": GELU_TANH,
    "gelu_accurate": GELU_TANH,
    "gelu_pytorch_tanh": GELU_TANH,
    "gelu_python_tanh": GELU_TANH,
    "quick_gelu": Function(lambda x: x * _sigmoid(np.float32(1.702) * x), Activation.QUICK_GELU),
    "relu": Function(lambda x: np.maximum(x, 0), Activation.RELU),
    "tanh": Function(np.tanh, Activation.TANH),
}


def activation(op: Op) -> Callable[[Array], Array]:
    """The function that an op applies to each number."""
    how = op.options["how"]
    if how not in ACTIVATIONS:
        raise InputError(f"the activation {how!r} cannot be shown number by number. Known: {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[how].compute


def native_activation(op: Op) -> Activation:
    return ACTIVATIONS[op.options["how"]].native


def explain_activation(op: Op, e: Explanation, x: float, expression: str) -> float:
    return e.step(op.options["how"], expression, activation(op)(np.asarray([x], np.float32))[0])


class Activate(Op):
    __slots__ = ()
    kind = "activate"
    elementwise = True

    def value(self, inputs: Sequence[Array], token: Token) -> Array:
        return activation(self)(inputs[0])

    def formula(self) -> str:
        return f"{self.options['how']}(x)"

    def explain(self, e: Explanation, index: int) -> None:
        (source,) = self.inputs
        if e.ops[source].site is None:
            x = e.explain(source, index)
        else:
            x = e.step("before", f"x[{index}]", e.value(source).reshape(-1)[index])
        explain_activation(self, e, x, f"{self.options['how']}(x)")

    def lower(self, writer: ProgramWriter, index: int) -> None:
        buffer = writer.allocate(self.width)
        source = writer.buffer_of[self.inputs[0]]
        writer.emit(StepKind.ACTIVATE, input=source, output=buffer, activation=native_activation(self))
        writer.set_result(index, buffer)

    def epilogue(self, writer: ProgramWriter, index: int, source: int) -> Mapping[str, Any]:
        return {"epilogue": Epilogue.ACTIVATE, "activation": native_activation(self)}

    def split(self, splitter: Any, index: int) -> None:
        if (divided := splitter.results.get(self.inputs[0])) is not None:
            splitter.set_result(index, divided)


def build_activate(b: Recorder, x: Value, how: str, site: str | None = None, name: str = "") -> Value:
    """An activation; `name`: of the module that it is in PyTorch, where it is one."""
    return b.activation(b.record(Activate, "", (x,), x.shape, site, how=how), name)
