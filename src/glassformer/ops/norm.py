"""norm: RMS, layer or L2 norm over the last axis. Options: eps, how (rms, layer, l2), offset (added to the weight), groups
(parts of the axis, each normed by itself).

head_norms: a layer norm of each head, with a weight of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.engine.program import NormKind, NormRef, StepKind
from glassformer.ops.module_steps import At, Path, Values, below, call, part, path_of, step
from glassformer.ops.op import ArithmeticDraft, Array, Backwards, Floats, Op, TokenContext, WeightSource, integer
from glassformer.ops.products import stored_weight
from glassformer.ops.program_writer import ProgramWriter
from glassformer.ops.recorder import Recorder, Value

KINDS = {"rms": NormKind.RMS_NORM, "layer": NormKind.LAYER_NORM, "l2": NormKind.L2_NORM}


class Norm(Op):
    __slots__ = ()
    kind = "norm"
    keeps_heads = True

    @property
    def held_input(self) -> int:
        return self.inputs[0]

    @property
    def is_plain(self) -> bool:
        return self.groups == 1

    @property
    def groups(self) -> int:
        """Into how many parts its axis is divided, which are normed by themselves."""
        return int(self.options.get("groups", 1))

    def scale_and_bias(self, weights: WeightSource, dtype: npt.DTypeLike = np.float32) -> tuple[Array, Floats | None]:
        """What it multiplies by, and what it adds; where a checkpoint leaves out its weight, that is one."""
        scale, *bias = (weights.weight(weight.name) for weight in self.weights) if self.weights else (None,)
        scale = np.ones(self.width, np.float32) if scale is None else scale
        scale = np.tile(scale, self.width // len(scale))
        return np.asarray(scale.astype(dtype) + np.asarray(self.options["offset"], dtype)), bias[0] if bias else None

    def centred(self, x: Array) -> Array:
        return x - x.mean(-1, keepdims=True) if self.options["how"] == "layer" else x

    def divisor(self, x: Array) -> Array:
        """What it divides x by: (…, 1), or one for each number where its groups have their own."""
        x = self.centred(x)
        parts = x.reshape(*x.shape[:-1], self.groups, -1)
        squares = parts * parts
        square = squares.sum(-1, keepdims=True) if self.options["how"] == "l2" else squares.mean(-1, keepdims=True)
        divisor = np.sqrt(square + x.dtype.type(self.options["eps"]))
        if self.groups == 1:
            return np.asarray(divisor[..., 0])
        return np.asarray(np.broadcast_to(divisor, parts.shape).reshape(x.shape))

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        (x,) = inputs
        scale, bias = self.scale_and_bias(token.weights, x.dtype)
        normed = self.centred(x) / self.divisor(x) * scale
        return np.asarray(normed if bias is None else normed + bias)

    def formula(self) -> str:
        weight = f" × ({self.options['offset']:g} + weight)" if self.options["offset"] else " × weight"
        weight = weight if self.weights else ""
        if self.options["how"] == "l2":
            return f"L2 norm: x ÷ √(sum(x²) + {self.options['eps']:g})"
        if self.options["how"] == "rms":
            parts = "" if self.groups == 1 else f", in {self.groups} parts"
            return f"RMS norm{parts}: x ÷ √(mean(x²) + {self.options['eps']:g}){weight}"
        bias = " + bias" if len(self.weights) > 1 else ""
        return f"layer norm: (x − mean) ÷ √(variance + {self.options['eps']:g}){weight}{bias}"

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        x, eps, layer = e.value(self.inputs[0]), self.options["eps"], self.options["how"] == "layer"
        l2 = self.options["how"] == "l2"
        vectors = x.reshape(-1, x.shape[-1] // self.groups)
        head, column = divmod(index, vectors.shape[-1])
        vector = vectors[head]
        value = e.step("before", f"x[{column}]", vector[column])
        if layer:
            mean = e.step("mean", f"of x's {len(vector)} numbers", vector.mean())
            value = e.step("centred", "before − mean", value - mean)
            square = e.step("variance", "the mean of (x − mean)²", vector.var())
        else:
            squares, name = vector * vector, "sum of squares" if l2 else "mean square"
            square = e.step(name, f"of x's {len(vector)} numbers", squares.sum() if l2 else squares.mean())
        root = e.step("root", f"√({'variance' if layer else name} + {eps:g})", np.sqrt(square + eps))
        value = e.step("normed", "÷ root", value / root)
        if not self.weights:
            return
        column = index % self.width
        scale, bias = self.scale_and_bias(e.token(self).weights)
        offset = f" (stored as its difference from {self.options['offset']:g})" if self.options["offset"] else ""
        name, stored, number = self.weight_of(index, scale)
        weight = e.step("weight", f"{name}[{stored}]{offset}", number)
        value = e.step("result", "normed × weight", value * weight)
        if bias is not None:
            e.step("with bias", f"+ {bias[column]:.4f}", value + bias[column])

    def weight_of(self, index: int, scale: Array) -> tuple[str, int, float]:
        """What one number is multiplied by: the weight's name, the place in it, and the number."""
        column = index % self.width
        return self.weights[0].name, column % self.weights[0].shape[0], float(scale[column])

    def linear(self, x: Array, weights: WeightSource, held: Array | None) -> Array:
        scale, _ = self.scale_and_bias(weights, np.float64)
        return np.asarray(self.centred(x) * scale / (1 if held is None else self.divisor(held)), x.dtype)

    def backwards(self, g: Array, weights: WeightSource, width: int, held: Callable[[], Array]) -> Backwards:
        scale, bias = self.scale_and_bias(weights, np.float64)
        rows, x = len(g), held()
        g = g.reshape(x.shape)  # of heads: each is normed by itself
        constants = None if bias is None else (g @ bias.astype(g.dtype)).reshape(rows, -1).sum(-1)
        return Backwards((self.centred(g * scale) / self.divisor(x)).reshape(rows, -1), constants)

    def write_modules(self, derivation: Any, index: int) -> None:
        """Around its module; but the norm of a sum that nothing else reads is computed where the sum is."""
        path, (source,) = path_of(self.module), self.inputs
        if self.options["how"] == "l2":
            derivation.add(index, derivation.home_of_value(self), step(l2_norm, self.options["eps"]))
            return
        derivation.norm(self, path)
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
        weight, bias = (*(weight.name for weight in self.weights), None, None)[:2]
        repeats = self.width // self.weights[0].shape[0] if self.weights else 1
        kind, options = KINDS[self.options["how"]], self.options
        return NormRef(kind, weight, bias, options["offset"], options["eps"], self.width, self.groups, repeats)

    def lower(self, writer: ProgramWriter, index: int) -> None:
        if len(self.shape) == 4 or not self.has_value_at_token or writer.is_taken_apart(index):
            return  # of heads, or of distances' vectors: done by the attention that reads them
        readers = writer.readers(index)
        deferred = all(reader.applies_norm and reader.inputs == (index,) for reader in readers)
        if readers and deferred and self.site not in writer.watched:
            writer.deferred_norms[index] = (self.ref, self.inputs[0])
            return
        buffer = writer.allocate(self.width)
        writer.emit(StepKind.NORM, input=writer.buffer_of[self.inputs[0]], output=buffer, norm=self.ref)
        writer.set_result(index, buffer)


class HeadNorms(Norm):
    __slots__ = ()
    kind = "head_norms"

    def scale_and_bias(self, weights: WeightSource, dtype: npt.DTypeLike = np.float32) -> tuple[Array, Floats | None]:
        """(heads, head_size)"""
        return np.stack([stored_weight(weights, weight) for weight in self.weights]).astype(dtype), None

    def formula(self) -> str:
        return f"{super().formula()}, of its head"

    def weight_of(self, index: int, scale: Array) -> tuple[str, int, float]:
        head, column = divmod(index, self.width)
        return self.weights[head].name, column, float(scale[head, column])

    def write_modules(self, derivation: Any, index: int) -> None:
        paths = [path_of(weight.name)[:-1] for weight in self.weights]
        for path in paths:
            derivation.head_norm(self, path)
        derivation.add(index, paths[0][:-2], step(norm_each_head, tuple(map(At, paths))))

    @property
    def ref(self) -> NormRef:
        """Of all heads together."""
        first, *more = (weight.name for weight in self.weights)
        heads, size = self.head_shape
        return NormRef(NormKind.LAYER_NORM, first, None, 0.0, self.options["eps"], heads * size, heads, more=tuple(more))

    def split_heads(self, splitter: Any, heads: Sequence[range]) -> None:
        raise splitter.cannot_split(self, "each head has a norm of its own")


def norm_each_head(paths: tuple[Path, ...], read: int, write: int, m: Any, values: Values, p: Any) -> None:
    import torch

    x = values[read]  # (batch, heads, length, head_size)
    values[write] = torch.stack([part(m, path)(x[:, head]) for head, path in enumerate(paths)], 1)


def build_norm(
    b: Recorder, x: Value, module: str, eps: float, site: str | None = None, how: str = "rms", offset: float = 0.0,
    bias: bool = True, weight: bool = True, groups: int = 1, shared: bool = False,
) -> Value:  # fmt: skip
    """A norm; `weight`, `bias`: whether it has one, the latter of a layer norm; `groups`: parts that are normed apart;
    `shared`: with one weight for all of them."""
    size = (x.width // groups if shared else x.width,)
    weights = {f"{module}.weight": size} if weight else {}
    weights |= {f"{module}.bias": size} if weight and bias and how == "layer" else {}
    parts: dict[str, Any] = {} if groups == 1 else {"groups": groups}
    return b.record(Norm, module, (x,), x.shape, site, weights, eps=eps, how=how, offset=offset, **parts)


def build_head_norms(b: Recorder, x: Value, module: str, eps: float) -> Value:
    """A layer norm without a bias for each head, in a list of modules."""
    count, size = integer(x.shape[1]), x.width
    weights: dict[str, tuple[int, ...]] = {f"{module}.{head}.weight": (size,) for head in range(count)}
    return b.record(HeadNorms, module, (x,), x.shape, None, weights, eps=eps, how="layer", offset=0.0)


def build_l2_norm(b: Recorder, x: Value, module: str, eps: float, site: str | None = None) -> Value:
    """Each head as a vector of length one; `module`: what is around it."""
    return b.record(Norm, module, (x,), x.shape, site, eps=eps, how="l2", offset=0.0)


def l2_norm(eps: float, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    import torch

    x = values[read]
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    values[write] = (wide * (wide.square().sum(-1, keepdim=True) + eps).rsqrt()).to(x.dtype)
