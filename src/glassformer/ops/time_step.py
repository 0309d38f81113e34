"""time_step: softplus(x + bias), cut at limits; decay: exp(−exp(rate) · step). A number for each head of a recurrent layer,
or for each row of its state, of which those of one head may have one rate.

Options of time_step: least, most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from glassformer.engine.program import StepKind
from glassformer.ops.module_steps import Values, path_of, step
from glassformer.ops.op import ArithmeticDraft, Array, Op, TokenContext, integer
from glassformer.ops.products import stored_weight
from glassformer.ops.program_writer import ProgramWriter
from glassformer.ops.recorder import Recorder, Value


class HeadNumbers(Op):
    """What has a weight for each head, in the module around it."""

    __slots__ = ()
    elementwise = True

    @property
    def module_label(self) -> str:
        return self.weights[0].name.rpartition(".")[2]

    @property
    def repeats(self) -> int:
        """How many columns each number of its weight is for."""
        return self.width // math.prod(self.weights[0].shape)

    def stored(self, token: TokenContext) -> Array:
        return np.repeat(stored_weight(token.weights, self.weights[0]).reshape(-1), self.repeats)

    def _lower(self, writer: ProgramWriter, index: int, kind: StepKind, **fields: Any) -> None:
        buffer = writer.allocate(self.width)
        source = writer.buffer_of[self.inputs[0]]
        vector = {"vector": self.weights[0].name, "vector_repeats": self.repeats}
        writer.emit(kind, input=source, output=buffer, width=self.width, **vector, **fields)
        writer.set_result(index, buffer)


class TimeStep(HeadNumbers):
    __slots__ = ()
    kind = "time_step"

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        return np.asarray(np.clip(np.logaddexp(0, inputs[0] + self.stored(token)), *self.limits), np.float32)

    @property
    def limits(self) -> tuple[float, float]:
        return self.options["least"], self.options["most"]

    def formula(self) -> str:
        least, most = self.limits
        return "softplus(x + bias)" + ("" if (least, most) == (0, math.inf) else f", from {least:g} to {most:g}")

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        x = e.explain(self.inputs[0], index)
        bias = float(self.stored(e.token(self))[index])
        x = e.step("with bias", f"+ {bias:.4f}", x + bias)
        value = e.step("time step", "softplus: log(1 + exp(x))", np.logaddexp(0, x))
        if (cut := float(np.clip(value, *self.limits))) != value:
            e.step("cut", "from {:g} to {:g}".format(*self.limits), cut)

    def write_modules(self, derivation: Any, index: int) -> None:
        derivation.vector(self.weights[0], 1.0)
        derivation.add(index, path_of(self.module), step(soft_step, path_of(self.weights[0].name)[-1], *self.limits))

    def lower(self, writer: ProgramWriter, index: int) -> None:
        least, most = self.limits
        self._lower(writer, index, StepKind.TIME_STEP, least=least, most=most)


class Decay(HeadNumbers):
    __slots__ = ()
    kind = "decay"

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        return np.asarray(np.exp(-np.exp(self.stored(token)) * inputs[0]), np.float32)

    def formula(self) -> str:
        return "exp(−exp(rate) × time step)"

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        made = e.explain(self.inputs[0], index)
        name = f"{self.weights[0].name}[{index // self.repeats}]"
        rate = e.step("rate", f"exp({name})", np.exp(self.stored(e.token(self))[index]))
        e.step("decay", "exp(−rate × time step): what is kept of the state", np.exp(-rate * made))

    def write_modules(self, derivation: Any, index: int) -> None:
        derivation.vector(self.weights[0], 0.0)
        derivation.add(index, path_of(self.module), step(decay, path_of(self.weights[0].name)[-1], self.repeats))

    def lower(self, writer: ProgramWriter, index: int) -> None:
        self._lower(writer, index, StepKind.DECAY)


def soft_step(name: str, least: float, most: float, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    import torch
    import torch.nn.functional as functional

    x = values[read]
    made = functional.softplus(x.to(torch.promote_types(x.dtype, torch.float32)) + getattr(m, name))
    values[write] = made if (least, most) == (0, math.inf) else made.clamp(least, most)


def decay(name: str, repeats: int, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    rate = getattr(m, name).to(values[read].dtype).exp()
    rate = rate if repeats == 1 else rate.flatten().repeat_interleave(repeats)
    values[write] = (-rate * values[read]).exp()


def build_time_step(
    b: Recorder, x: Value, bias: str, least: float = 0.0, most: float = math.inf, site: str | None = None
) -> Value:
    """How far each head's state moves on with a token; `bias`: the name of what is added to x."""
    module = bias.rpartition(".")[0]
    return b.record(TimeStep, module, (x,), x.shape, site, {bias: (integer(x.width),)}, least=least, most=most)


def build_decay(b: Recorder, x: Value, rate: str, site: str = "attention.decay", heads: int = 0) -> Value:
    """What each head's state keeps of itself over a time step x; `rate`: the name of its logarithm; `heads`: that have one
    for all rows of a state, whose time steps lie side by side."""
    shape = (1, 1, heads, 1) if heads else (integer(x.width),)  # as files have it
    return b.record(Decay, rate.rpartition(".")[0], (x,), x.shape, site, {rate: shape})
