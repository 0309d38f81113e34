"""linear: (x · Wᵀ (+ b)) · scale. Options: columns (the weight is stored transposed), scale, jitter (the largest share
by which x is changed at random in training: https://arxiv.org/abs/2101.03961)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from glassformer.engine.program import MatrixRef
from glassformer.ops.module_steps import At, Path, Values, call, part, path_of, step
from glassformer.ops.op import ArithmeticDraft, Array, Backwards, Op, TokenContext, WeightSource
from glassformer.ops.products import explain_scaled_product, matrix_and_bias, matrix_ref, product
from glassformer.ops.program_writer import ProgramWriter
from glassformer.ops.recorder import Recorder, Value, linear_weights
from glassformer.ops.split import Split, joined


class LinearMap(Op):
    __slots__ = ()
    kind = "linear"
    weight_role = "product"
    applies_norm = True
    updatable_matrices = 1

    @property
    def is_plain(self) -> bool:
        return self.has_own_weights and self.options["scale"] == 1

    @property
    def module_label(self) -> str:
        return self.module.rpartition(".")[2] if len(self.weights) > 2 else super().module_label

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        return product(self, inputs[0], token.weights)

    def formula(self) -> str:
        made = "weights · x" + (" + bias" if len(self.weights) > 1 else "")
        return made if self.options["scale"] == 1 else f"({made}) × {self.options['scale']:.4g}"

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        explain_scaled_product(self, e, index)

    def linear(self, x: Array, weights: WeightSource, held: Array | None) -> Array:
        matrix, _ = matrix_and_bias(self, weights)
        return np.asarray(x @ matrix.T * x.dtype.type(self.options["scale"]))

    def backwards(self, g: Array, weights: WeightSource, width: int, held: Callable[[], Array]) -> Backwards:
        matrix, bias = matrix_and_bias(self, weights)
        g = g * float(self.options["scale"])
        return Backwards(g @ matrix, None if bias is None else g @ bias.astype(g.dtype))

    def write_modules(self, derivation: Any, index: int) -> None:
        path, factor = path_of(self.module), self.options["scale"]
        derivation.linear(self, path)
        called = step(call, At(path)) if factor == 1.0 else step(scaled_call, At(path), factor)
        if jitter := self.options.get("jitter"):
            called = step(jittered_call, At(path), jitter)
        derivation.add(index, path[:-1], called)

    def lower(self, writer: ProgramWriter, index: int) -> None:
        consumers = writer.consumers.get(index, [])
        if any(writer.is_taken_apart(result) for result in (index, *(c for c in consumers if writer.ops[c].keeps_heads))):
            return  # a fused projection: done by those who read its parts
        fused = None
        if len(consumers) == 1 and self.site not in writer.watched:
            fused = writer.ops[consumers[0]].epilogue(writer, consumers[0], index)
        result, fields = (index, {}) if fused is None else (consumers[0], fused)
        writer.matmul(self.inputs[0], [matrix_ref(self)], self.width, result, scale=self.options["scale"], **fields)

    def matrices(self, source: Op | None) -> list[MatrixRef]:
        return [matrix_ref(self)]

    def split(self, splitter: Any, index: int) -> None:
        weight, *bias = self.weights
        inputs, outputs = (0, 1) if self.options["columns"] else (1, 0)
        if (divided := splitter.results.get(self.inputs[0])) is not None:  # each rank has a part of the sum
            splitter.split_weights([weight], divided.along(inputs))
            for added in bias:  # once, and not by each rank
                first = ((range(added.shape[0]),), *((),) * (splitter.ranks - 1))
                splitter.split_weights([added], Split(0, added.shape[0], first))
            splitter.summed[index] = self.module
            return
        readers = splitter.readers[index]
        if readers and all(splitter.ops[reader].takes_part for reader in readers):
            parts: list[list[range]] = [[] for _ in range(splitter.ranks)]
            for reader in readers:
                for rank_ranges, ranges in zip(parts, splitter.ops[reader].projection_ranges(splitter, reader), strict=True):
                    rank_ranges += ranges
            fused = Split(-1, self.width, tuple(joined(rank_ranges) for rank_ranges in parts))
            splitter.split_weights([weight], fused.along(outputs))
            splitter.split_weights(bias, fused.along(0))
            splitter.results[index] = fused
        elif all(self._leads_to_linear(splitter, reader) for reader in readers):
            splitter.divide_neurons(self, index, outputs)

    @staticmethod
    def _leads_to_linear(splitter: Any, reader: int) -> bool:
        """Whether a reader only activates the result for another product: as in the first half of an MLP."""
        after = [splitter.ops[index] for index in splitter.readers[reader]]
        return splitter.ops[reader].elementwise and all(isinstance(op, LinearMap) for op in after)

    def with_updates(self, rewriter: Any) -> int:
        columns = bool(self.options.get("columns"))
        made: int = rewriter.product(self, self.weights, self.shape, self.site, columns)
        return made


def scaled_call(path: Path, factor: float, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    values[write] = part(m, path)(values[read]) * factor


def jittered_call(path: Path, jitter: float, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    import torch

    x = values[read]
    if m.training:
        x = x * torch.empty_like(x).uniform_(1 - jitter, 1 + jitter)
    values[write] = part(m, path)(x)


def build_linear(
    b: Recorder, x: Value, module: str, out: int, bias: bool = False, site: str | None = None, columns: bool = False,
    scale: float = 1.0, summed: bool = False, jitter: float = 0.0,
) -> Value:  # fmt: skip
    """`summed`: the module around it in PyTorch gives the sum with the stream; `jitter`: of what it reads, in training."""
    weights = linear_weights(module, x, out, bias)
    if columns:
        weights[f"{module}.weight"] = (x.width, out)
    options: dict[str, Any] = {**({"summed": True} if summed else {}), **({"jitter": jitter} if jitter else {})}
    return b.record(LinearMap, module, (x,), (*x.shape[:-1], out), site, weights, columns=columns, scale=scale, **options)
