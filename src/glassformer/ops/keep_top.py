"""keep_top: what of some numbers is above a threshold that all but a share of them are expected to lie below, as if they
were normally distributed; the threshold is taken off them (Gaussian top-k, of Spark Transformer,
https://arxiv.org/abs/2506.06644). Options: share (of those that become 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from glassformer.engine.program import StepKind
from glassformer.ops.module_steps import Values, path_of, step
from glassformer.ops.op import ArithmeticDraft, Array, Op, TokenContext
from glassformer.ops.program_writer import ProgramWriter
from glassformer.ops.recorder import Recorder, Value


class KeepTop(Op):
    __slots__ = ()
    kind = "keep_top"

    @property
    def deviations(self) -> float:
        """How many standard deviations above the mean the threshold is."""
        return NormalDist().inv_cdf(float(self.options["share"]))

    def threshold(self, x: Array) -> Array:
        spread = x.dtype.type(self.deviations) * x.std(-1, keepdims=True)
        return np.asarray(x.mean(-1, keepdims=True) + spread)

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        (x,) = inputs
        return np.asarray(np.maximum(x - self.threshold(x), 0))

    def formula(self) -> str:
        return f"relu(x − mean(x) − {self.deviations:.4g} × standard deviation of x)"

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        x = e.value(self.inputs[0])
        before = e.explain(self.inputs[0], index)
        of = f"mean + {self.deviations:.4g} standard deviations of all {x.size}"
        threshold = e.step("threshold", of, self.threshold(x)[0])
        e.step("kept", "what is above the threshold, or 0", max(before - threshold, 0.0))

    def write_modules(self, derivation: Any, index: int) -> None:
        derivation.add(index, path_of(self.module), step(keep_top, self.deviations))

    def lower(self, writer: ProgramWriter, index: int) -> None:
        buffer = writer.allocate(self.width)
        source = writer.buffer_of[self.inputs[0]]
        writer.emit(StepKind.KEEP_TOP, input=source, output=buffer, scale=self.deviations)
        writer.set_result(index, buffer)


def keep_top(deviations: float, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    x = values[read]
    threshold = x.mean(-1, keepdim=True) + x.std(-1, keepdim=True, unbiased=False) * deviations
    values[write] = (x - threshold).relu()


def build_keep_top(b: Recorder, x: Value, share: float, module: str) -> Value:
    """`share`: of the numbers that become 0."""
    return b.record(KeepTop, module, (x,), x.shape, share=share)
