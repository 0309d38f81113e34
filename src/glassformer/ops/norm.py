"""norm: RMS or layer norm over the last axis. Options: eps, how (rms, layer), offset (added to the weight)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.engine.program import NormKind, NormRef, StepKind
from glassformer.ops.module_steps import At, below, call, path_of, step
from glassformer.ops.op import ArithmeticDraft, Array, Backwards, Floats, Op, TokenContext, WeightSource
from glassformer.ops.program_writer import ProgramWriter
from glassformer.ops.recorder import Recorder, Value


class Norm(Op):
    __slots__ = ()
    kind = "norm"
    keeps_heads = True
    holds_input = True

    def scale_and_bias(self, weights: WeightSource, dtype: npt.DTypeLike = np.float32) -> tuple[Array, Floats | None]:
        """What it multiplies by, and what it adds; where a checkpoint leaves out its weight, that is one."""
        scale, *bias = (weights.weight(weight.name) for weight in self.weights) if self.weights else (None,)
        scale = np.ones(self.width, np.float32) if scale is None else scale
        return np.asarray(scale.astype(dtype) + np.asarray(self.options["offset"], dtype)), bias[0] if bias else None

    def centred(self, x: Array) -> Array:
        return x - x.mean(-1, keepdims=True) if self.options["how"] == "layer" else x

    def divisor(self, x: Array) -> Array:
        """What it divides x by: (…, 1)."""
        x = self.centred(x)
        return np.asarray(np.sqrt((x * x).mean(-1, keepdims=True) + x.dtype.type(self.options["eps"])))

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        (x,) = inputs
        scale, bias = self.scale_and_bias(token.weights, x.dtype)
        normed = self.centred(x) / self.divisor(x) * scale
        return np.asarray(normed if bias is None else normed + bias)

    def formula(self) -> str:
        weight = f" × ({self.options['offset']:g} + weight)" if self.options["offset"] else " × weight"
        weight = weight if self.weights else ""
        if self.options["how"] == "rms":
            return f"RMS norm: x ÷ √(mean(x²) + {self.options['eps']:g}){weight}"
        bias = " + bias" if len(self.weights) > 1 else ""
        return f"layer norm: (x − mean) ÷ √(variance + {self.options['eps']:g}){weight}{bias}"

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        x, eps, layer = e.value(self.inputs[0]), self.options["eps"], self.options["how"] == "layer"
        head, column = divmod(index, x.shape[-1])
        vector = x[head] if x.ndim == 2 else x
        value = e.step("before", f"x[{column}]", vector[column])
        if layer:
            mean = e.step("mean", f"of x's {len(vector)} numbers", vector.mean())
            value = e.step("centred", "before − mean", value - mean)
            square = e.step("variance", "the mean of (x − mean)²", vector.var())
        else:
            square = e.step("mean square", f"of x's {len(vector)} numbers", (vector * vector).mean())
        root = e.step("root", f"√({'variance' if layer else 'mean square'} + {eps:g})", np.sqrt(square + eps))
        value = e.step("normed", "÷ root", value / root)
        if not self.weights:
            return
        scale, bias = self.scale_and_bias(e.token(self).weights)
        offset = f" (stored as its difference from {self.options['offset']:g})" if self.options["offset"] else ""
        weight = e.step("weight", f"{self.weights[0].name}[{column}]{offset}", scale[column])
        value = e.step("result", "normed × weight", value * weight)
        if bias is not None:
            e.step("with bias", f"+ {bias[column]:.4f}", value + bias[column])

    def linear(self, x: Array, weights: WeightSource, held: Array | None) -> Array:
        scale, _ = self.scale_and_bias(weights, np.float64)
        return np.asarray(self.centred(x) * scale / (1 if held is None else self.divisor(held)), x.dtype)

    def backwards(self, g: Array, weights: WeightSource, width: int, held: Callable[[], Array]) -> Backwards:
        scale, bias = self.scale_and_bias(weights, np.float64)
        return Backwards(self.centred(g * scale) / self.divisor(held()), None if bias is None else g @ bias.astype(g.dtype))

    def write_modules(self, derivation: Any, index: int) -> None:
        """Around its module; but the norm of a sum that nothing else reads is computed where the sum is."""
        path, (source,) = path_of(self.module), self.inputs
        bias = len(self.weights) > 1
        options = {name: self.options[name] for name in ("eps", "how", "offset")}
        derivation.norm(path, self.width, **options, weight=bool(self.weights), bias=bias)
        if source in derivation.ambient:
            derivation.norm_distances(index, path)
            return
        before: Op = derivation.ops[source]
        home = path[:-1]
        if before.adds_to_stream and before.block == self.block and len(derivation.readers[source]) == 1:
            home = derivation.homes[source] if below(home, derivation.homes[source]) else home
        derivation.add(index, home, step(call, At(path)))

    @property
    def ref(self) -> NormRef:
        """For a program."""
        weight, *bias = (weight.name for weight in self.weights) if self.weights else (None,)
        kind = NormKind.LAYER_NORM if self.options["how"] == "layer" else NormKind.RMS_NORM
        return NormRef(kind, weight, bias[0] if bias else None, self.options["offset"], self.options["eps"], self.width)

    def lower(self, writer: ProgramWriter, index: int) -> None:
        if len(self.shape) == 4 or not self.has_value_at_token or writer.is_taken_apart(index):
            return  # of heads, or of distances' vectors: done by the attention that reads them
        readers = writer.readers(index)
        if readers and all(reader.applies_norm for reader in readers) and self.site not in writer.watched:
            writer.deferred_norms[index] = (self.ref, self.inputs[0])
            return
        buffer = writer.allocate(self.width)
        writer.emit(StepKind.NORM, input=writer.buffer_of[self.inputs[0]], output=buffer, norm=self.ref)
        writer.set_result(index, buffer)


def build_norm(
    b: Recorder, x: Value, module: str, eps: float, site: str | None = None, how: str = "rms", offset: float = 0.0,
    bias: bool = True, weight: bool = True,
) -> Value:  # fmt: skip
    """A norm; `weight`, `bias`: whether it has one, the latter of a layer norm."""
    size = (x.width,)
    weights = (
        {} if not weight else {f"{module}.weight": size} | ({f"{module}.bias": size} if how == "layer" and bias else {})
    )
    return b.record(Norm, module, (x,), x.shape, site, weights, eps=eps, how=how, offset=offset)
