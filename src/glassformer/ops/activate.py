"""activate: an activation function of each number. Options: how (its name), scale (what its result is multiplied by).

learned_activate: one with numbers of its own, which are learned: xIELU (https://arxiv.org/abs/2411.13010).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from glassformer.engine.program import Activation, ActivationNumbers, Epilogue, StepKind
from glassformer.ground.errors import InputError
from glassformer.ops.module_steps import At, Values, call, path_of, step
from glassformer.ops.op import ArithmeticDraft, Array, Backwards, Floats, Op, TokenContext, WeightSource
from glassformer.ops.products import stored_weight
from glassformer.ops.program_writer import ProgramWriter
from glassformer.ops.recorder import Recorder, Value


def _gelu(x: Array) -> Array:
    return np.asarray(x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))), np.float32)


def _gelu_tanh(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))), np.float32)


def _sigmoid(x: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(x / 2)), np.float32)


class Function(NamedTuple):
    """An activation: in numpy, in PyTorch (by `torch.nn.functional`), and the engines' own."""

    compute: Callable[[Array], Array]
    in_torch: Callable[[Any, Any], Any]
    native: Activation


SILU = Function(lambda x: x * _sigmoid(x), lambda f, x: f.silu(x), Activation.SILU)
GELU = Function(_gelu, lambda f, x: f.gelu(x), Activation.GELU)
GELU_TANH = Function(_gelu_tanh, lambda f, x: f.gelu(x, approximate="tanh"), Activation.GELU_TANH)
QUICK_GELU = Function(
    lambda x: x * _sigmoid(np.float32(1.702) * x), lambda f, x: x * f.sigmoid(1.702 * x), Activation.QUICK_GELU
)
RELU = Function(lambda x: np.maximum(x, 0), lambda f, x: f.relu(x), Activation.RELU)
RELU2 = Function(lambda x: np.maximum(x, 0) ** 2, lambda f, x: f.relu(x).square(), Activation.RELU2)
TANH = Function(np.tanh, lambda f, x: f.tanh(x), Activation.TANH)
SIGMOID = Function(_sigmoid, lambda f, x: f.sigmoid(x), Activation.SIGMOID)
ACTIVATIONS: Mapping[str, tuple[Function, str]] = {  # by all their names, and what PyTorch prints
    "silu": (SILU, "SiLUActivation"),
    "swish": (SILU, "SiLU"),
    "gelu": (GELU, "GELUActivation"),
    "gelu_python": (GELU, "GELUActivation"),
    "gelu_new": (GELU_TANH, "NewGELUActivation"),
    "gelu_fast": (GELU_TANH, "FastGELUActivation"),
    "gelu_accurate": (GELU_TANH, "AccurateGELUActivation"),
    "gelu_pytorch_tanh": (GELU_TANH, "GELUTanh"),
    "gelu_python_tanh": (GELU_TANH, "GELUTanh"),
    "quick_gelu": (QUICK_GELU, "QuickGELUActivation"),
    "relu": (RELU, "ReLU"),
    "relu2": (RELU2, "ReLUSquaredActivation"),
    "tanh": (TANH, "Tanh"),
    "sigmoid": (SIGMOID, "Sigmoid"),
}
TINY = 1e-8  # a number that an activation takes for zero
XIELU = ("alpha_p", "alpha_n", "beta", "eps")  # its numbers, as files call them


def activation(op: Op) -> Callable[[Array], Array]:
    """The function that an op applies to each number; nothing is done where it has none."""
    how = op.options["how"]
    if how is None:
        return lambda x: x
    if how not in ACTIVATIONS:
        raise InputError(f"the activation {how!r} cannot be shown number by number. Known: {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[how][0].compute


def torch_activation(how: str | None, x: Any) -> Any:
    if how is None:
        return x
    import torch.nn.functional as functional

    return ACTIVATIONS[how][0].in_torch(functional, x)


def native_activation(op: Op) -> Activation:
    how = op.options["how"]
    return Activation.NO_ACTIVATION if how is None else ACTIVATIONS[how][0].native


def explain_activation(op: Op, e: ArithmeticDraft, x: float, expression: str) -> float:
    if op.options["how"] is None:
        return x
    return e.step(op.options["how"], expression, activation(op)(np.asarray([x], np.float32))[0])


class Activate(Op):
    __slots__ = ()
    kind = "activate"
    elementwise = True

    @property
    def scale(self) -> float:
        return float(self.options.get("scale", 1.0))

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        made = activation(self)(inputs[0])
        return made if self.scale == 1 else np.asarray(made * made.dtype.type(self.scale))

    def formula(self) -> str:
        return f"{self.options['how']}(x)" + ("" if self.scale == 1 else f" × {self.scale:g}")

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        (source,) = self.inputs
        if e.ops[source].site is None:
            x = e.explain(source, index)
        else:
            x = e.step("before", f"x[{index}]", e.value(source).reshape(-1)[index])
        made = explain_activation(self, e, x, f"{self.options['how']}(x)")
        if self.scale != 1:
            e.step("scaled", f"× {self.scale:g}", made * self.scale)

    @property
    def held_input(self) -> int:
        return self.inputs[0]

    def held_gain(self, held: Array) -> Array:
        """By what each number was multiplied, which is held as a norm's divisor is; near zero, by what a small one is."""
        x = np.where(np.abs(held) < TINY, TINY, held)
        return np.asarray(activation(self)(x) / x)

    def linear(self, x: Array, weights: WeightSource, held: Array | None) -> Array:
        return x if held is None else np.asarray(x * self.held_gain(held), x.dtype)

    def backwards(self, g: Array, weights: WeightSource, width: int, held: Callable[[], Array]) -> Backwards:
        return Backwards(g * self.held_gain(held()))

    def write_modules(self, derivation: Any, index: int) -> None:
        how, act = self.options["how"], derivation.activation(index, self.options["how"])
        if act is None:
            derivation.add(index, derivation.home_of_value(self), step(activate, how, self.scale))
        else:
            derivation.add(index, act[:-1], step(call, At(act)))

    def lower(self, writer: ProgramWriter, index: int) -> None:
        buffer = writer.allocate(self.width)
        source = writer.buffer_of[self.inputs[0]]
        writer.emit(StepKind.ACTIVATE, input=source, output=buffer, activation=native_activation(self))
        if self.scale != 1:  # twice it
            writer.emit(StepKind.ADD, input=buffer, second_input=buffer, output=buffer)
        writer.set_result(index, buffer)

    def epilogue(self, writer: ProgramWriter, index: int, source: int) -> Mapping[str, Any] | None:
        if self.scale != 1:
            return None
        return {"epilogue": Epilogue.ACTIVATE, "activation": native_activation(self)}

    def split(self, splitter: Any, index: int) -> None:
        if (divided := splitter.results.get(self.inputs[0])) is not None:
            splitter.set_result(index, divided)


def xielu_numbers(above: Array, below: Array, linear: Array, cut: Array) -> Floats:
    """By what x squared is multiplied above zero, and its like below; the part of x; and where the exponent is cut."""
    softplus = [np.logaddexp(0, np.asarray(number, np.float64)) for number in (above, below)]
    return np.array([softplus[0], linear + softplus[1], linear, cut], np.float32)


class LearnedActivate(Op):
    __slots__ = ()
    kind = "learned_activate"
    elementwise = True

    def numbers(self, token: TokenContext) -> Floats:
        return xielu_numbers(*(stored_weight(token.weights, weight).reshape(()) for weight in self.weights))

    def _curve(self, x: Array, numbers: Floats) -> Array:
        above, below, linear, cut = numbers
        curved = np.where(x > 0, above * x * x, (np.expm1(np.minimum(x, cut)) - x) * below)
        return np.asarray(curved + linear * x, x.dtype)

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        return self._curve(inputs[0], self.numbers(token))

    def formula(self) -> str:
        return "xIELU: a · x² + c · x above zero, b · (eˣ − 1 − x) + c · x below, with learned numbers a and b"

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        x, numbers = e.explain(self.inputs[0], index), self.numbers(e.token(self))
        above, below, linear, _ = numbers
        how = f"{above:.4f} · x²" if x > 0 else f"{below:.4f} · (eˣ − 1 − x)"
        e.step("xielu", f"{how} + {linear:g} · x", self._curve(np.asarray([x], np.float32), numbers)[0])

    def write_modules(self, derivation: Any, index: int) -> None:
        path = path_of(self.module)
        derivation.learned_activation(path)
        derivation.add(index, path[:-1], step(call, At(path)))

    def lower(self, writer: ProgramWriter, index: int) -> None:
        buffer = writer.allocate(self.width)
        source = writer.buffer_of[self.inputs[0]]
        numbers = ActivationNumbers(tuple(weight.name for weight in self.weights), xielu_numbers)
        writer.emit(StepKind.ACTIVATE, input=source, output=buffer, activation=Activation.XIELU, activation_numbers=numbers)
        writer.set_result(index, buffer)

    def split(self, splitter: Any, index: int) -> None:
        if (divided := splitter.results.get(self.inputs[0])) is not None:
            splitter.set_result(index, divided)


def activate(how: str, scale: float, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    made = torch_activation(how, values[read])
    values[write] = made if scale == 1 else made * scale


def build_activate(b: Recorder, x: Value, how: str, site: str | None = None, name: str = "", twice: bool = False) -> Value:
    """An activation, or twice it; `name`: of the module that it is in PyTorch, where it is one."""
    more: dict[str, Any] = {"scale": 2.0} if twice else {}
    return b.activation(b.record(Activate, "", (x,), x.shape, site, how=how, **more), name)


def build_learned_activate(b: Recorder, x: Value, module: str, site: str | None = None) -> Value:
    """xIELU, with the numbers that this module has learned."""
    shapes: dict[str, tuple[int, ...]] = {f"{module}.{name}": (1,) if name.startswith("alpha") else () for name in XIELU}
    return b.record(LearnedActivate, module, (x,), x.shape, site, shapes, how="xielu")
