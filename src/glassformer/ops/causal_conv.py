"""causal_conv: a sum over each number's last values, weighted by how long ago they were, activated. Options: how, or none.

The row keeps the inputs that later tokens need: one fewer than the kernel has weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from glassformer.engine.program import StepKind
from glassformer.ops.activate import activation, explain_activation, native_activation
from glassformer.ops.module_steps import At, path_of, step
from glassformer.ops.op import ArithmeticDraft, Array, Op, TokenContext
from glassformer.ops.products import stored_weight
from glassformer.ops.program_writer import ProgramWriter
from glassformer.ops.recorder import Recorder, Value


class CausalConv(Op):
    __slots__ = ()
    kind = "causal_conv"

    @property
    def kernel_size(self) -> int:
        return self.weights[0].shape[-1]

    @property
    def state_size(self) -> int:
        return self.width * (self.kernel_size - 1)

    @property
    def module_label(self) -> str:
        return self.module.rpartition(".")[2]

    def _window(self, token: TokenContext) -> Array:
        """Its input at the last tokens, zeros before the first: (kernel, width)."""
        assert token.everywhere is not None, "a convolution needs its input at earlier tokens"
        x = token.everywhere(self.inputs[0])[max(0, token.position + 1 - self.kernel_size) : token.position + 1]
        return np.concatenate((np.zeros((self.kernel_size - len(x), self.width), x.dtype), x))

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        kernel = stored_weight(token.weights, self.weights[0]).reshape(self.width, self.kernel_size)
        total = (self._window(token) * kernel.T).sum(0)
        if len(self.weights) > 1:
            total = total + stored_weight(token.weights, self.weights[1])
        return np.asarray(activation(self)(total))

    def formula(self) -> str:
        total = f"sum of each number's last {self.kernel_size} values × weights" + (
            " + bias" if len(self.weights) > 1 else ""
        )
        return f"{self.options['how']}({total})" if self.options["how"] else total

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        token = e.token(self)
        kernel = stored_weight(token.weights, self.weights[0]).reshape(self.width, self.kernel_size)[index]
        name = self.weights[0].name
        window = ("x at its last tokens", self._window(token)[:, index])
        total = e.dot_product("weights · last values", (f"{name}[{index}]", kernel), window, every=True)
        total = e.step("sum", f"{self.kernel_size} terms", total)
        if len(self.weights) > 1:
            bias = float(stored_weight(token.weights, self.weights[1])[index])
            total = e.step("with bias", f"+ {bias:.4f}", total + bias)
        explain_activation(self, e, total, f"{self.options['how']}(sum)")

    def write_modules(self, derivation: Any, index: int) -> None:
        path = path_of(self.module)
        derivation.causal_conv(self, path)
        derivation.add(index, path[:-1], step(convolve, At(path)))

    def lower(self, writer: ProgramWriter, index: int) -> None:
        buffer = writer.allocate(self.width)
        kernel, *bias = (weight.name for weight in self.weights)
        writer.emit(
            StepKind.CAUSAL_CONV, input=writer.buffer_of[self.inputs[0]], output=buffer, kernel=kernel,
            kernel_bias=bias[0] if bias else None, kernel_size=self.kernel_size, width=self.width,
            state_offset=writer.state_offset(index), activation=native_activation(self),
        )  # fmt: skip
        writer.set_result(index, buffer)

    def split(self, splitter: Any, index: int) -> None:
        raise splitter.cannot_split(self, "its state is not divided among processes")


def convolve(path: Any, read: int, write: int, m: Any, values: Any, p: Any) -> None:
    for name in path:
        m = m._modules[name]
    values[write] = m(values[read], p)


def build_causal_conv(
    b: Recorder, x: Value, module: str, kernel: int, how: str | None, bias: bool = False, site: str | None = None
) -> Value:
    """A convolution over each number's own last values; `how`: the activation of its results."""
    weights: dict[str, tuple[int, ...]] = {f"{module}.weight": (x.width, 1, kernel)}
    weights |= {f"{module}.bias": (x.width,)} if bias else {}
    return b.record(CausalConv, module, (x,), x.shape, site, weights, how=how)
