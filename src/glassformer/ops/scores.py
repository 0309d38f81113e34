"""scores: the head, vectors → scores. Options: scale, softcap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from glassformer.engine.program import BufferShape, MatrixRef, StepKind, TokenScope
from glassformer.ops.op import Array, Explanation, Op, Token, Weight
from glassformer.ops.products import explain_scaled_product, matrix_ref, product
from glassformer.ops.program_writer import ProgramWriter
from glassformer.ops.recorder import Recorder, Value


class Scores(Op):
    __slots__ = ()
    kind = "scores"
    weight_role = "table"
    applies_norm = True

    @property
    def scale(self) -> float:
        return float(self.options.get("scale", 1.0))

    @property
    def softcap(self) -> float | None:
        softcap: float | None = self.options.get("softcap")
        return softcap

    @property
    def is_plain(self) -> bool:
        return self.has_own_weights and self.options.get("scale") in (None, 1) and self.softcap is None

    def value(self, inputs: Sequence[Array], token: Token) -> Array:
        scores = product(self, inputs[0], token.weights)
        return scores if self.softcap is None else np.asarray(self.softcap * np.tanh(scores / self.softcap), scores.dtype)

    def formula(self) -> str:
        score = "weights · x" + (f" × {self.scale:.4g}" if self.scale != 1 else "")
        if self.softcap is not None:
            score = f"{self.softcap:g} × tanh({score} ÷ {self.softcap:g})"
        return f"{score}: a score for each {'token of the vocabulary' if self.shape[-1] != 2 else 'answer'}"

    def explain(self, e: Explanation, index: int) -> None:
        total, softcap = explain_scaled_product(self, e, index), self.softcap
        if softcap is not None:
            e.step("soft-capped", f"{softcap:g} × tanh(score ÷ {softcap:g})", softcap * np.tanh(total / softcap))

    def lower(self, writer: ProgramWriter, index: int) -> None:
        norm, source = writer.matmul_input(self.inputs[0])
        buffer = writer.add_pinned(BufferShape(self.width))  # its own: it has fewer rows
        writer.emit(
            StepKind.MATMUL, input=source, output=buffer, norm=norm, matrices=(matrix_ref(self),),
            scale=self.options.get("scale", 1.0), softcap=self.softcap or 0.0, scope=TokenScope.GATHERED,
        )  # fmt: skip
        writer.program.scores = buffer

    def matrices(self, source: Op | None) -> list[MatrixRef]:
        return [matrix_ref(self)]

    def split(self, splitter: Any, index: int) -> None:
        splitter.scores = splitter.divide_vocabulary(self)


def build_scores(
    b: Recorder, x: Value, module: str, out: int, bias: bool | Weight = False, tied: bool = False,
    dropout: float | None = None, dropout_module: str = "dropout", **options: Any,
) -> Value:  # fmt: skip
    """The last layer; a tied one has no weight of its own, and some have a bias stored under another name. `dropout`: of
    what it reads, in training."""
    table = b.ops[0].weights[0].name if tied else f"{module}.weight"
    weights: dict[str, tuple[int, ...]] = {table: (out, x.width)}
    if bias:
        added = Weight(f"{module}.bias", (out,)) if bias is True else bias
        weights[added.name] = added.shape
    result = b.record(Scores, module, (x,), (*x.shape[:-1], out), "scores", weights, **options)
    return result if dropout is None else b.dropout(result, dropout, dropout_module)
