"""Multi-head latent attention (https://arxiv.org/abs/2405.04434): all heads' keys and values are made of one short vector.

head_columns   some columns of a vector, as a head, or of each head. Options: first
join_heads     heads side by side; one that is alone is beside all of them
expand         a latent → heads of a product
attend_latent  attention that remembers latents, and the part of the keys that all heads share

What is remembered of a token is its latent c and the part of its key that all heads share, r, which RoPE turns if there are
positions. A head's key is (K·c, r) and its
value V·c, so its scores are (Kᵀ·q, q′) · (c, r), and its output V · Σ pattern · c: with K and V absorbed into queries and
outputs, all heads attend to the latents themselves. Engines compute every token so; PyTorch those that look at remembered
ones.

Shapes: heads (batch, heads, length, head_size); a latent is one head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from glassformer.engine.program import NO_KEYS, LatentHeads, MatrixRef, SiteLocation, StepKind
from glassformer.ops.attend import Attend, project, rope_index, trace_projection
from glassformer.ops.heads import ProjectToHeads
from glassformer.ops.module_steps import At, Path, Values, part, path_of, step
from glassformer.ops.norm import Norm
from glassformer.ops.op import ArithmeticDraft, Array, Backwards, CachedShape, Op, TokenContext, WeightSource, integer
from glassformer.ops.products import explain_scaled_product, matrix_and_bias, product
from glassformer.ops.program_writer import ProgramWriter
from glassformer.ops.recorder import Recorder, Value, linear_weights
from glassformer.ops.rotate import Rotate


class HeadColumns(Op):
    __slots__ = ()
    kind = "head_columns"

    @property
    def of_heads(self) -> bool:
        """Whether what it reads are heads already."""
        return bool(self.options["of_heads"])

    @property
    def columns(self) -> slice:
        return slice(self.options["first"], self.options["first"] + self.width)

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        chosen = inputs[0][..., self.columns]
        return chosen if self.of_heads else chosen[..., None, :]

    def torch_value(self, x: Any) -> Any:
        return x[..., self.columns] if self.of_heads else x[:, None, :, self.columns]

    def formula(self) -> str:
        return f"numbers {self.columns.start} to {self.columns.stop - 1}{' of each head' if self.of_heads else ''}"

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        x = e.value(self.inputs[0])
        head, column = divmod(index, self.width)
        e.explain(self.inputs[0], (head * x.shape[-1] if self.of_heads else 0) + self.columns.start + column)

    def linear(self, x: Array, weights: WeightSource, held: Array | None) -> Array:
        chosen = x[..., self.columns]
        return chosen if self.of_heads else chosen[..., None, :]

    def backwards(self, g: Array, weights: WeightSource, width: int, held: Callable[[], Array]) -> Backwards:
        heads = g.reshape(len(g), -1, self.width)
        sent = np.zeros((*heads.shape[:2], width))
        sent[..., self.columns] = heads
        return Backwards(sent if self.of_heads else sent[:, 0])

    def lower(self, writer: ProgramWriter, index: int) -> None:
        """Nothing: done by the attention that reads it."""


class JoinHeads(Op):
    __slots__ = ()
    kind = "join_heads"

    def together(self, parts: Sequence[Array]) -> Array:
        heads = max(value.shape[-2] for value in parts)
        shapes = [(*value.shape[:-2], heads, value.shape[-1]) for value in parts]
        return np.concatenate([np.broadcast_to(value, shape) for value, shape in zip(parts, shapes, strict=True)], -1)

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        return self.together(inputs)

    def torch_value(self, *inputs: Any) -> Any:
        import torch

        heads = max(value.shape[1] for value in inputs)
        return torch.cat([value.expand(-1, heads, -1, -1) for value in inputs], -1)

    def formula(self) -> str:
        return "side by side, in each head"

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        head, column = divmod(index, self.width)
        for source in self.inputs:
            heads, size = e.value(source).shape
            if column < size:
                e.explain(source, (head if heads > 1 else 0) * size + column)
                return
            column -= size

    def linear(self, x: Array, weights: WeightSource, held: Array | None) -> Array:
        return x

    def lower(self, writer: ProgramWriter, index: int) -> None:
        """Nothing: done by the attention that reads it."""


class ExpandLatent(ProjectToHeads):
    """Keys and values of all heads; engines have its matrix in parts (`LatentHeads`)."""

    __slots__ = ()
    kind = "expand"
    updatable_matrices = 0
    applies_norm = False

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        x = inputs[0][..., 0, :]
        return product(self, x, token.weights).reshape(*x.shape[:-1], *self.head_shape)

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        explain_scaled_product(self, e, index)

    def linear(self, x: Array, weights: WeightSource, held: Array | None) -> Array:
        matrix, _ = matrix_and_bias(self, weights)
        return (x.reshape(len(x), -1) @ matrix.T).reshape(len(x), *self.head_shape)

    def backwards(self, g: Array, weights: WeightSource, width: int, held: Callable[[], Array]) -> Backwards:
        matrix, _ = matrix_and_bias(self, weights)
        return Backwards((g.reshape(len(g), -1) @ matrix)[:, None])

    def write_modules(self, derivation: Any, index: int) -> None:
        path, (heads, _) = path_of(self.module), self.head_shape
        derivation.linear(self, path)
        derivation.add(index, path[:-1], step(expand, At(path), heads))

    def matrices(self, source: Op | None) -> list[MatrixRef]:
        return []

    def rows(self, first: int, size: int, transposed: bool = False) -> LatentHeads:
        """Some rows of each head's part of its matrix."""
        (weight,), (heads, per_head) = self.weights, self.head_shape
        rank = weight.shape[1]
        shape = (heads * rank, size) if transposed else (heads * size, rank)
        return LatentHeads(weight.name, shape, heads, per_head, first, size, transposed)


class AttendLatent(Attend):
    """Inputs: query, key, value, latent, and the part of the key that all heads share."""

    __slots__ = ()
    kind = "attend_latent"

    @property
    def biases(self) -> tuple[int, ...]:
        return ()

    def cached_sites(self, ops: Sequence[Op]) -> tuple[str | None, str | None]:
        latent, shared = (ops[source].site for source in self.inputs[3:])
        return latent, shared

    def cached_shape(self, ops: Sequence[Op]) -> CachedShape:
        latent, shared = (ops[source].width for source in self.inputs[3:])
        return CachedShape(1, latent + shared, latent)

    def notes(self, ops: Sequence[Op]) -> list[str]:
        latent, shared = (ops[source].width for source in self.inputs[3:])
        heads, size = self.head_shape
        key = ops[self.inputs[1]].width
        kept = f"{latent} + {shared} numbers of a token are remembered, in place of {heads * (key + size)}."
        return [*super().notes(ops), f"Latent attention: all heads' keys and values are made of one vector; {kept}"]

    def write_modules(self, derivation: Any, index: int) -> None:
        path = path_of(self.module)
        self.write_attention(derivation, index)
        expanded = derivation.ops[derivation.ops[self.inputs[2]].inputs[0]]
        derivation.add(index, path, step(attend_latent, At(path_of(expanded.module))))

    def lower(self, writer: ProgramWriter, index: int) -> None:
        """Queries and outputs with the keys' and the values' matrix absorbed, and attention to latents between them."""
        ops = writer.ops
        query, key, value, latent, shared = (ops[source] for source in self.inputs)
        (heads, size), (_, own) = query.head_shape, value.head_shape
        rank, turned = latent.width, shared.width
        expanded = ops[value.inputs[0]]
        assert isinstance(expanded, ExpandLatent)
        untouched, place = size - turned, writer.kv_place(index)
        turn: dict[str, Any] | None = None
        if isinstance(shared, Rotate):
            turn = {"kv_heads": 1, "key_offset": NO_KEYS, "rope": rope_index(writer, shared.rope, turned)}

        queries = project(writer, [trace_projection(ops, self.inputs[0])], heads * size)
        if turn is not None:
            writer.emit(StepKind.ROPE, input=queries, heads=heads, head_size=size, query_offset=untouched, **turn)
        writer.expose(query.site, SiteLocation(queries, 0, heads * size, heads))

        latents = self._lower_latents(writer, latent, shared, turn, place)
        matrix = {"input": latents, "heads": heads, "kv_heads": 1}
        watched: list[int] = []
        if key.site in writer.watched:
            watched.append(keys := writer.allocate(heads * size))
            table = expanded.rows(0, untouched)
            writer.emit(StepKind.HEAD_MATMUL, **matrix, output=keys, head_size=rank + turned, head_matrices=table)
            writer.expose(key.site, SiteLocation(keys, 0, heads * size, heads))
        values = expanded.rows(untouched, own)
        if value.site in writer.watched:
            watched.append(made := writer.allocate(heads * own))
            writer.emit(StepKind.HEAD_MATMUL, **matrix, output=made, head_size=rank, head_matrices=values)
            writer.expose(value.site, SiteLocation(made, 0, heads * own, heads))

        absorbed = writer.allocate(heads * (rank + turned))
        of_heads = {"heads": heads, "kv_heads": heads}
        table = expanded.rows(0, untouched, transposed=True)
        writer.emit(StepKind.HEAD_MATMUL, input=queries, output=absorbed, head_size=size, head_matrices=table, **of_heads)
        shape = {**place, "heads": heads, "kv_heads": 1, "head_size": rank + turned, "latent": rank}
        mixed = self.lower_attention(writer, heads * rank, {"input": absorbed, **shape})
        joined = writer.allocate(heads * own)
        writer.emit(StepKind.HEAD_MATMUL, input=mixed, output=joined, head_size=rank, head_matrices=values, **of_heads)
        for used in (queries, absorbed, mixed, *watched):
            writer.free(used)
        writer.expose(self.inner_site("heads"), SiteLocation(joined, 0, heads * own, heads))
        writer.set_result(index, joined)

    def _lower_latents(
        self, writer: ProgramWriter, latent: Op, shared: Op, turn: Mapping[str, Any] | None, place: Mapping[str, int]
    ) -> int:
        """The latents and what all heads share, in the buffer of their projection; stored in the cache. `turn`: of RoPE's
        step, where there is one."""
        assert isinstance(latent, Norm)
        rank, turned = latent.width, shared.width
        buffer = writer.buffer_of[writer.ops[latent.inputs[0]].inputs[0]]
        writer.emit(StepKind.NORM, input=buffer, output=buffer, norm=latent.ref, column=0, width=rank)
        if turn is not None:
            writer.emit(StepKind.ROPE, input=buffer, heads=1, head_size=turned, query_offset=rank, **turn)
        writer.expose(latent.site, SiteLocation(buffer, 0, rank, 1))
        writer.expose(shared.site, SiteLocation(buffer, rank, turned, 1))
        shape = {**place, "kv_heads": 1, "head_size": rank + turned, "latent": rank}
        writer.emit(StepKind.KV_STORE, input=buffer, key_offset=0, **shape)
        return buffer

    def split_inputs(self, splitter: Any) -> None:
        raise splitter.cannot_split(self, "all heads read one latent")


def expand(path: Path, heads: int, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    x = part(m, path)(values[read].squeeze(1))
    values[write] = x.unflatten(-1, (heads, -1)).transpose(1, 2)


def attend_latent(
    expanded: Path, query: int, key: int, value: int, latent: int, shared: int, write: int, m: Any, values: Values, p: Any
) -> None:
    own, remembered = (values[query], values[key], values[value]), (values[latent], values[shared])
    values[write] = m.attend_latent(*own, *remembered, expanded, p)


def build_head_columns(b: Recorder, x: Value, module: str, first: int, size: int, site: str | None = None) -> Value:
    """Some columns of x as one head; of each head, if x is heads."""
    of_heads = len(x.shape) == 4
    shape = (*x.shape[:3], size) if of_heads else (x.shape[0], 1, x.shape[1], size)
    return b.record(HeadColumns, module, (x,), shape, site, first=first, of_heads=of_heads)


def build_join_heads(b: Recorder, parts: Sequence[Value], module: str, site: str | None = None) -> Value:
    heads = max(integer(value.shape[1]) for value in parts)
    batch, _, length, _ = parts[0].shape
    return b.record(JoinHeads, module, (*parts,), (batch, heads, length, sum(value.width for value in parts)), site)


def build_expand(b: Recorder, latent: Value, module: str, heads: int, size: int) -> Value:
    batch, _, length, _ = latent.shape
    weights = linear_weights(module, latent, heads * size)
    return b.record(ExpandLatent, module, (latent,), (batch, heads, length, size), None, weights)


def build_attend_latent(
    b: Recorder, query: Value, key: Value, value: Value, latent: Value, shared: Value, module: str, scale: float,
    dropout: float = 0.0,
) -> Value:  # fmt: skip
    batch, heads, length, _ = query.shape
    inner_sites = {
        "attention.pattern": (batch, heads, length, b.keys),
        "attention.heads": (batch, heads, length, value.width),
    }
    shape = (batch, length, integer(heads) * value.width)
    result = b.record(
        AttendLatent, module, (query, key, value, latent, shared), shape, None, {}, inner_sites, causal=True, window=None,
        scale=scale, cross=False, softcap=None,
    )  # fmt: skip
    return b.dropout(result, dropout)
