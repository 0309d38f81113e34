"""scores, pool: the head.

scores   vectors → scores. Options: scale, softcap
pool     one vector per text: its first or last token's, its last end token's, or the mean. Options: how
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from glassformer.engine.program import BufferShape, MatrixRef, StepKind, TokenScope
from glassformer.ground.errors import ExecutorError
from glassformer.ops.embed import Embed
from glassformer.ops.module_steps import At, Path, Values, call, part, path_of, step
from glassformer.ops.op import ArithmeticDraft, Array, Op, TokenContext, Weight
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

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        scores = product(self, inputs[0], token.weights)
        return scores if self.softcap is None else np.asarray(self.softcap * np.tanh(scores / self.softcap), scores.dtype)

    def formula(self) -> str:
        score = "weights · x" + (f" × {self.scale:.4g}" if self.scale != 1 else "")
        if self.softcap is not None:
            score = f"{self.softcap:g} × tanh({score} ÷ {self.softcap:g})"
        return f"{score}: a score for each {'token of the vocabulary' if self.shape[-1] != 2 else 'answer'}"

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        total, softcap = explain_scaled_product(self, e, index), self.softcap
        if softcap is not None:
            e.step("soft-capped", f"{softcap:g} × tanh(score ÷ {softcap:g})", softcap * np.tanh(total / softcap))

    def write_modules(self, derivation: Any, index: int) -> None:
        """A Linear, or a step that scales and caps what it gives, too. A bias of two axes is not the layer's: a buffer."""
        path, (weight, *biases) = path_of(self.module), self.weights
        reads = derivation.dropped_input(index, path[:-1])
        buffer = biases[0] if biases and len(biases[0].shape) == 2 else None
        derivation.output_layer(path, weight, bool(biases) and buffer is None)
        if buffer is not None:
            derivation.zeros(buffer)
        scored = step(call, At(path))
        if buffer is not None or self.scale != 1.0 or self.softcap is not None:
            name = "" if buffer is None else buffer.name.rpartition(".")[2]
            scored = step(score, At(path), self.scale, derivation.family.scales_states, self.softcap, name)
        derivation.add(index, path[:-1], scored, reads, seen=False)

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


class Pool(Op):
    __slots__ = ()
    kind = "pool"

    @property
    def pooling(self) -> str:
        return str(self.options["how"])

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        if self.options["how"] != "mean":
            return inputs[0]
        assert token.everywhere is not None
        return np.asarray(token.everywhere(self.inputs[0]).mean(0))

    def formula(self) -> str:
        how = self.options["how"]
        return "the mean of all tokens' vectors" if how == "mean" else f"the {how} token's vector"

    def write_modules(self, derivation: Any, index: int) -> None:
        """Around the head, which is given one vector per text."""
        derivation.add(index, ())

    def lower(self, writer: ProgramWriter, index: int) -> None:
        raise ExecutorError("native engines have no heads that pool.")


def score(
    path: Path, factor: float, before: bool, limit: float | None, bias: str, read: int, write: int, m: Any,
    values: Values, p: Any,
) -> None:  # fmt: skip
    """The last layer, scaled (`before`: as the states that it reads) and capped; `bias`: a buffer beside it."""
    x = values[read]
    result = part(m, path)(x * factor if before else x)
    if factor != 1.0 and not before:
        result = result * factor
    if bias:
        result = result + getattr(part(m, path[:-1]), bias)
    values[write] = result if limit is None else limit * (result / limit).tanh()


def build_pool(b: Recorder, x: Value, how: str = "first") -> Value:
    """One vector per text, as if that were its only token."""
    return b.record(Pool, "", (x,), (x.shape[0], 1, x.shape[-1]), how=how)


def build_scores(
    b: Recorder, x: Value, module: str, out: int, bias: bool | Weight = False, tied: bool = False,
    dropout: float | None = None, dropout_module: str = "dropout", **options: Any,
) -> Value:  # fmt: skip
    """The last layer; a tied one has no weight of its own, and some have a bias stored under another name. `dropout`: of
    what it reads, in training."""
    tables = (op for op in b.ops if isinstance(op, Embed) and not op.stack)
    table = next(tables).weights[0].name if tied else f"{module}.weight"
    weights: dict[str, tuple[int, ...]] = {table: (out, x.width)}
    if bias:
        added = Weight(f"{module}.bias", (out,)) if bias is True else bias
        weights[added.name] = added.shape
    result = b.record(Scores, module, (x,), (*x.shape[:-1], out), "scores", weights, **options)
    return result if dropout is None else b.dropout(result, dropout, dropout_module)
