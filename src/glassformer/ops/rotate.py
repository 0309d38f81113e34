"""rotate: RoPE, by which pairs of a head's numbers are turned by their position (https://arxiv.org/abs/2104.09864).

Options: rope (`rope.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from glassformer.ops.module_steps import Values, path_of, step
from glassformer.ops.op import ArithmeticDraft, Array, Floats, Op, TokenContext, WeightSource
from glassformer.ops.program_writer import ProgramWriter
from glassformer.ops.recorder import Recorder, Value
from glassformer.ops.rope import Rope


class Rotate(Op):
    __slots__ = ()
    kind = "rotate"
    keeps_heads = True

    @property
    def rope(self) -> Rope:
        rope: Rope = self.options["rope"]
        return rope

    def angles(self, token: TokenContext) -> Floats:
        """By how much each pair of numbers is turned, in radians: (pairs,)."""
        return self.rope.frequencies(self.width, token.length) * np.float32(token.position)

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        """The pairs of a head's numbers, turned; what is in no pair stays."""
        (x,) = inputs
        cosine, sine = (np.float32(self.rope.scale) * wave(self.angles(token)) for wave in (np.cos, np.sin))
        first, partner = self.rope.pairs(self.width)
        turned = x.copy()
        turned[..., first] = x[..., first] * cosine - x[..., partner] * sine
        turned[..., partner] = x[..., partner] * cosine + x[..., first] * sine
        return turned

    def formula(self) -> str:
        return f"RoPE: pairs of numbers turned by position × frequency (theta {self.rope.theta:g})"

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        x = e.value(self.inputs[0])
        head, column = divmod(index, x.shape[-1])
        mine = e.step("before", f"x[{column}]", x[head, column])
        firsts, seconds = self.rope.pairs(x.shape[-1])
        if column not in firsts and column not in seconds:
            e.step("the same number", f"RoPE turns {2 * len(firsts)} numbers of a head, and this is none of them", mine)
            return
        sign = 1 if column in seconds else -1
        pair = int(np.flatnonzero((seconds if sign > 0 else firsts) == column)[0])
        other = int((firsts if sign > 0 else seconds)[pair])
        angle = float(self.angles(e.token(self))[pair])
        partner = e.step("its partner", f"x[{other}]", x[head, other])
        e.step("angle", f"position {e.position} × frequency of pair {pair}, in radians", angle)
        scale = self.rope.scale
        turned = scale * (mine * np.cos(angle) + sign * partner * np.sin(angle))
        expression = f"before × cos(angle) {'+' if sign > 0 else '−'} partner × sin(angle)"
        e.step("turned", expression if scale == 1 else f"({expression}) × {scale:.4g}", turned)

    def linear(self, x: Array, weights: WeightSource, held: Array | None) -> Array:
        """As at position 0, where nothing is turned."""
        return x

    def write_modules(self, derivation: Any, index: int) -> None:
        path, ropes = path_of(self.module), derivation.config.ropes.items()
        around = [path[:length] for length in range(len(path))]  # a table may be its stack's
        name = next(name for name, rope in ropes if rope == self.rope and path_of(name)[:-1] in around)
        derivation.add(index, path, step(rotate, name))

    def lower(self, writer: ProgramWriter, index: int) -> None:
        """Nothing yet: done by the attention that reads them."""


def rotate(rope: str, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    values[write] = p.rotary[rope].rotate(values[read])


def build_rotate(b: Recorder, x: Value, module: str, rope: Rope, site: str | None = None) -> Value:
    return b.record(Rotate, module, (x,), x.shape, site, rope=rope)
