"""heads: split into heads, (batch, heads, length, head_size): of a product of its own, or some of another's.

Options, of the latter: first, step (where the first head begins among the projection's numbers, and how far on the
next), run (how many lie side by side each time). These may have a bias of their own (DeBERTa).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from glassformer.engine.program import MatrixRef, RowRuns
from glassformer.ops.linear import LinearMap
from glassformer.ops.module_steps import At, Path, Values, part, path_of, step
from glassformer.ops.op import ArithmeticDraft, Array, Backwards, Floats, Op, TokenContext, WeightSource, integer
from glassformer.ops.products import explain_scaled_product, matrix_and_bias, matrix_ref, part_of, product, stored_weight
from glassformer.ops.program_writer import ProgramWriter
from glassformer.ops.recorder import Recorder, Value, linear_weights
from glassformer.ops.split import contiguous


class ProjectToHeads(Op):
    __slots__ = ()
    kind = "heads"
    weight_role = "product"
    applies_norm = True
    updatable_matrices = 1

    @property
    def takes_part(self) -> bool:
        return "first" in self.options

    @property
    def is_plain(self) -> bool:
        return not self.takes_part

    @property
    def module_label(self) -> str:
        return self.module.rpartition(".")[2] if len(self.weights) > 2 else super().module_label

    @property
    def runs(self) -> RowRuns:
        """Which of a projection's numbers are its own."""
        run = self.options.get("run", 1)
        return RowRuns(run * self.width, self.options["first"], self.options["step"], self.head_shape[0] // run)

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        (x,) = inputs
        if not self.takes_part:
            return product(self, x, token.weights).reshape(*x.shape[:-1], *self.head_shape)
        bias = self._own_bias(token.weights)
        made = x[..., self.runs.rows] if bias is None else x[..., self.runs.rows] + bias
        return made.reshape(*x.shape[:-1], *self.head_shape)

    def _own_bias(self, weights: WeightSource) -> Floats | None:
        """What is added to a part of a projection."""
        return stored_weight(weights, self.weights[0]) if self.weights else None

    def formula(self) -> str:
        heads, size = self.head_shape
        made = "a part of the projection" if self.takes_part else "weights · x"
        return f"{made}{' + bias' if self.takes_part and self.weights else ''}, as {heads} heads of {size} numbers"

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        if not self.takes_part:
            explain_scaled_product(self, e, index)
            return
        head, column = divmod(index, self.width)
        made = e.explain(self.inputs[0], int(self.runs.rows[head * self.width]) + column)
        if (bias := self._own_bias(e.token(self).weights)) is not None:
            e.step("with bias", f"+ {float(bias[index]):.4f}", made + float(bias[index]))

    def linear(self, x: Array, weights: WeightSource, held: Array | None) -> Array:
        if self.takes_part:
            return x[:, self.runs.rows].reshape(len(x), *self.head_shape)
        matrix, _ = matrix_and_bias(self, weights)
        return (x @ matrix.T).reshape(len(x), *self.head_shape)

    def backwards(self, g: Array, weights: WeightSource, width: int, held: Callable[[], Array]) -> Backwards:
        if not self.takes_part:
            matrix, bias = matrix_and_bias(self, weights)
            return Backwards(g @ matrix, None if bias is None else g @ bias.astype(g.dtype))
        sent, own = np.zeros((len(g), width)), self._own_bias(weights)
        sent[:, self.runs.rows] = g
        return Backwards(sent, None if own is None else g @ own.astype(g.dtype))

    def write_modules(self, derivation: Any, index: int) -> None:
        path, size = path_of(self.module), self.width
        if self.takes_part:
            self._write_part(derivation, index, path)
            return
        modules = list(dict.fromkeys(path_of(weight.name)[:-1] for weight in self.weights))
        for module in modules:
            derivation.linear(self, module)
        if len(modules) > 1:  # around the list of heads
            derivation.add(index, path[:-2], step(separate_heads, tuple(map(At, modules))))
        else:
            derivation.add(index, path[:-1], step(own_heads, At(path), size))

    def _write_part(self, derivation: Any, index: int, path: Path) -> None:
        total, (count, size) = integer(derivation.ops[self.inputs[0]].shape[-1]), self.head_shape
        first, every, run = self.options["first"], self.options["step"], self.options.get("run", 1)
        fused = step(fused_heads, first, every, count, size, total)
        fused = fused if run == 1 else step(heads_in_runs, first, every, run * size, size)
        if self.weights:
            bias = path_of(self.weights[0].name)
            derivation.vector(self.weights[0], 0.0)
            fused = step(biased_heads, At(bias[:-1]), bias[-1], first, every, count, size)
        derivation.add(index, path[:-1] if path in derivation.leaves else path, fused)

    def lower(self, writer: ProgramWriter, index: int) -> None:
        """Nothing yet: done by the attention that reads them."""

    def matrix(self, projection: Op) -> MatrixRef:
        """The matrix whose outputs they are: their own, or that of all heads, unless these take turns in it."""
        matrix = matrix_ref(projection)
        if not self.divides_matrix:
            return matrix
        part = part_of(matrix, self.runs)
        return part._replace(biases=(self.weights[0].name,)) if self.weights else part

    @property
    def divides_matrix(self) -> bool:
        return self.takes_part and (self.options["step"] != self.width or bool(self.weights))

    def matrices(self, source: Op | None) -> list[MatrixRef]:
        projection = source if self.divides_matrix else self
        return [self.matrix(projection)] if projection is not None and projection.weights else []

    def split_heads(self, splitter: Any, heads: Sequence[range]) -> None:
        if self.takes_part and not isinstance(source := splitter.ops[self.inputs[0]], LinearMap):
            raise splitter.cannot_split(source)
        if len(self.weights) > 2:  # more than a weight and a bias
            raise splitter.cannot_split(self, "each head has a projection of its own")
        splitter.split_weights(self.weights, contiguous(0, heads, self.width))

    def projection_ranges(self, splitter: Any, index: int) -> list[list[range]]:
        if self.head_shape[0] < splitter.ranks:
            reason = "query, key and value are one projection here, and there are fewer key heads than ranks"
            raise splitter.cannot_split(self, reason)
        size, rows = self.width, self.runs.rows
        starts = [[int(rows[head * size]) for head in heads] for heads in splitter.heads[index]]
        return [[range(start, start + size) for start in rank_starts] for rank_starts in starts]

    def with_updates(self, rewriter: Any) -> int:
        batch, _, length, _ = self.shape
        heads, size = self.head_shape
        made = rewriter.product(self, self.weights, (batch, length, heads * size))
        options = {**self.options, "first": 0, "step": size, "run": 1}
        appended: int = rewriter.append(replace(self, inputs=(made,), weights=(), options=options))
        return appended


def own_heads(path: Path, size: int, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    for name in path:
        m = m._modules[name]
    x = m(values[read])
    values[write] = x.view(*x.shape[:-1], -1, size).transpose(1, 2)


def separate_heads(paths: tuple[Path, ...], read: int, write: int, m: Any, values: Values, p: Any) -> None:
    import torch

    x = values[read]
    values[write] = torch.stack([part(m, path)(x) for path in paths], dim=1)


def fused_heads(
    first: int, every: int, count: int, size: int, total: int, read: int, write: int, m: Any, values: Values, p: Any
) -> None:
    """`count` heads of a projection's `total` numbers, of which a rank of a split model has a share."""
    x = values[read]
    if (there := x.shape[-1]) != total:
        first = first * there // total if every == size else first
        count = count * there // total
    values[write] = x[..., first : first + (count - 1) * every + size].unfold(-1, size, every).transpose(1, 2)


def biased_heads(
    path: Path, name: str, first: int, every: int, count: int, size: int, read: int, write: int, m: Any, values: Values,
    p: Any,
) -> None:  # fmt: skip
    x, bias = values[read], getattr(part(m, path), name)
    heads = x[..., first : first + (count - 1) * every + size].unfold(-1, size, every)
    values[write] = (heads + bias.view(count, size)).transpose(1, 2)


def heads_in_runs(
    first: int, every: int, run: int, size: int, read: int, write: int, m: Any, values: Values, p: Any
) -> None:
    """Heads of which several lie side by side, `run` numbers together, each time `every` numbers on."""
    x = values[read]
    values[write] = (
        x.unflatten(-1, (-1, every))[..., first : first + run].unflatten(-1, (-1, size)).flatten(2, 3).transpose(1, 2)
    )


def heads_shape(x: Value, heads: int, size: int) -> tuple[int | str, int, int | str, int]:
    return x.shape[0], heads, x.shape[1], size


def build_heads(
    b: Recorder, x: Value, module: str, heads: int, size: int, bias: bool = False, site: str | None = None
) -> Value:
    return b.record(
        ProjectToHeads, module, (x,), heads_shape(x, heads, size), site, linear_weights(module, x, heads * size, bias)
    )


def build_separate_heads(b: Recorder, x: Value, modules: Sequence[str], size: int, site: str | None = None) -> Value:
    """Heads that have a projection each."""
    weights = {name: shape for module in modules for name, shape in linear_weights(module, x, size).items()}
    home = modules[0].rpartition(".")[0]
    return b.record(ProjectToHeads, home, (x,), heads_shape(x, len(modules), size), site, weights)


def build_fused_heads(
    b: Recorder, x: Value, module: str, first: int, heads: int, size: int, site: str | None = None, step: int = 1,
    run: int = 1, bias: str = "",
) -> Value:  # fmt: skip
    """Heads of a projection that makes several things: from its `first` head on, every `step`-th, or `run` of `step`;
    `bias`: the name of one of their own."""
    return build_heads_at(b, x, module, first * size, heads, size, step * size, site, run, bias)


def build_heads_at(
    b: Recorder, x: Value, module: str, first: int, heads: int, size: int, every: int = 0, site: str | None = None,
    run: int = 1, bias: str = "",
) -> Value:  # fmt: skip
    """Heads that begin at the `first` of a projection's numbers, and each `every` numbers after the one before; 0: they lie
    side by side. `run`: how many do so each time."""
    options: dict[str, Any] = {"first": first, "step": every or size, **({} if run == 1 else {"run": run})}
    weights = {bias: (heads * size,)} if bias else {}
    return b.record(ProjectToHeads, module, (x,), heads_shape(x, heads, size), site, weights, **options)
