"""clip: each number held between minus a limit and the limit. Options: limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from glassformer.ops.op import ArithmeticDraft, Array, Backwards, Op, TokenContext, WeightSource
from glassformer.ops.program_writer import ProgramWriter
from glassformer.ops.recorder import Recorder, Value


class Clip(Op):
    __slots__ = ()
    kind = "clip"
    elementwise = True
    keeps_heads = True

    @property
    def limit(self) -> float:
        return float(self.options["limit"])

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        return np.asarray(np.clip(inputs[0], -self.limit, self.limit), inputs[0].dtype)

    def torch_value(self, x: Any) -> Any:
        return x.clamp(-self.limit, self.limit)

    def formula(self) -> str:
        return f"x, held between −{self.limit:g} and {self.limit:g}"

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        before = e.explain(self.inputs[0], index)
        e.step("clipped", f"between −{self.limit:g} and {self.limit:g}", min(max(before, -self.limit), self.limit))

    @property
    def held_input(self) -> int:
        return self.inputs[0]

    def held_gain(self, held: Array) -> Array:
        """By what each number was multiplied: 1 within the limit."""
        return np.asarray(self.limit / np.maximum(np.abs(held), self.limit))

    def linear(self, x: Array, weights: WeightSource, held: Array | None) -> Array:
        return x if held is None else np.asarray(x * self.held_gain(held), x.dtype)

    def backwards(self, g: Array, weights: WeightSource, width: int, held: Callable[[], Array]) -> Backwards:
        x = held()
        return Backwards((g.reshape(x.shape) * self.held_gain(x)).reshape(len(g), -1))

    def lower(self, writer: ProgramWriter, index: int) -> None:
        """Nothing yet: done by the attention that reads the heads."""


def build_clip(b: Recorder, x: Value, limit: float | None, site: str | None = None) -> Value:
    """Heads whose numbers are held within a limit, if there is one."""
    if limit is None:
        return x
    return b.record(Clip, "", (x,), x.shape, site, limit=limit)
