"""Attention's ops as steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from glassformer.blueprints import Op, Rope
from glassformer.engine.lowering.program_writer import Allocation, ProgramWriter
from glassformer.engine.lowering.weight_refs import head_matrix, head_shape, norm_ref
from glassformer.engine.program import (
    BufferShape,
    DistanceBias,
    DistanceHeads,
    MatrixRef,
    PatternChange,
    SiteLocation,
    StepKind,
)
from glassformer.ground.errors import ExecutorError


@dataclass
class HeadProjection:
    """How queries, keys or values are computed: heads of a matmul, perhaps normed and rotated."""

    heads: int  # the op that splits heads
    projection: int  # the op that multiplies: the same, or a fused one; or a result that is there already
    matrix: MatrixRef | None  # of the projection; None: it is a sum of a product and an adapter's update
    joint_norm: Op | None  # of all heads together, before they are split
    norm: Op | None  # of each head
    rope: Rope | None
    site: str | None


class AttentionLowering(ProgramWriter):
    """Attention, with all that comes before it: projections, norms of heads, RoPE and the store to the KV cache."""

    def _lower_attend(self, number: int, op: Op) -> None:
        query, key, value = (self._trace_projection(operand) for operand in op.inputs[:3])
        heads, size = head_shape(self.ops[query.heads].shape)
        kv_heads, _ = head_shape(self.ops[key.heads].shape)
        options, cross = op.options, bool(op.options["cross"])
        shape = {"layer": op.block, "heads": heads, "kv_heads": kv_heads, "head_size": size, "cross_attention": cross}
        mask = {"causal": bool(options["causal"]), "window": options["window"] or 0}
        mask |= {"scale": options["scale"], "softcap": options["softcap"] or 0.0}
        if cross:
            buffer = self._project([query], heads * size)
            self._expose(query.site, SiteLocation(buffer, 0, heads * size, heads))
        else:
            buffer = self._project_qkv(query, key, value, shape)
        bias = self._distance_scores(op, buffer, shape) if "distances" in options else self._distance_bias(op)
        if op.weights:  # a score for each head beside those of the keys
            bias["sinks"] = op.weights[0].name
        joined = self._allocate(heads * size)
        pattern, outputs = (
            next((site for site in op.inner_sites if site.endswith(end)), None) for end in (".pattern", ".heads")
        )
        if pattern in self.watched:
            weights = self._add_buffer(BufferShape(heads, per_key=True), Allocation(pinned=True))
            self._emit(StepKind.ATTENTION_PATTERN, input=buffer, output=weights, **shape, **mask, **bias)
            self._expose(pattern, SiteLocation(weights, heads=heads, pattern=True))
        self._emit(StepKind.ATTENTION, input=buffer, output=joined, **shape, **mask, **bias)
        if pattern is not None and pattern in self.changes:
            changed = self._allocate(heads * size)
            self._emit(StepKind.WEIGHTED_VALUES, input=buffer, second_input=weights, output=changed, **shape)
            change = PatternChange(pattern, changed, joined)
            self.program.pattern_changes.setdefault(len(self.program.steps), []).append(change)
            self._free(changed)
        for used in (buffer, *(bias[name] for name in ("query_distances", "key_distances") if name in bias)):
            self._free(used)
        self._expose(outputs, SiteLocation(joined, 0, heads * size, heads))
        self._set_result(number, joined)

    def _project_qkv(self, query: HeadProjection, key: HeadProjection, value: HeadProjection, shape: dict[str, Any]) -> int:
        """Queries, keys and values of one input: projected, normed, rotated, and stored in the KV cache."""
        heads, kv_heads, size = shape["heads"], shape["kv_heads"], shape["head_size"]
        offsets = {"query_offset": 0, "key_offset": heads * size, "value_offset": (heads + kv_heads) * size}
        buffer = self._project([query, key, value], (heads + 2 * kv_heads) * size)
        for projection, column, width in ((query, 0, heads * size), (key, offsets["key_offset"], kv_heads * size)):
            if projection.joint_norm is not None:
                columns = {"column": column, "width": width}
                self._emit(StepKind.NORM, input=buffer, output=buffer, norm=norm_ref(projection.joint_norm), **columns)
        rope = None
        if query.rope is not None:
            table = (query.rope, size)
            if table not in self.program.ropes:
                self.program.ropes.append(table)
            rope = self.program.ropes.index(table)
        norms = {"query_norm": query.norm and norm_ref(query.norm), "key_norm": key.norm and norm_ref(key.norm)}
        fields = {"input": buffer, **shape, **offsets, **norms, "rope": rope}
        sites = {
            query.site: SiteLocation(buffer, 0, heads * size, heads),
            key.site: SiteLocation(buffer, offsets["key_offset"], kv_heads * size, kv_heads),
            value.site: SiteLocation(buffer, offsets["value_offset"], kv_heads * size, kv_heads),
        }
        changed = any(site in self.changes for site in sites)  # between RoPE and the cache
        self._emit(StepKind.ROPE if changed else StepKind.ROPE_KV_STORE, **fields)
        for site, location in sites.items():
            self._expose(site, location)
        if changed:
            self._emit(StepKind.KV_STORE, **fields)
        return buffer

    def _distance_bias(self, op: Op) -> dict[str, Any]:
        """A bias for each head and distance, if there is one; all blocks of a stack share it."""
        if len(op.inputs) < 4:
            return {}
        table, furthest = self.ops[op.inputs[3]].weights[0].name, self.config.relative_attention_max_distance
        return {"distance_bias": DistanceBias(table, furthest, bidirectional=not op.options["causal"])}

    def _distance_scores(self, op: Op, projected: int, shape: dict[str, Any]) -> dict[str, Any]:
        """What queries have with the keys of each distance, and keys with the queries of each."""
        heads, size = shape["heads"], shape["head_size"]
        fields: dict[str, Any] = {}
        for term, number in zip(op.options["distance_terms"], op.inputs[3:], strict=True):
            table = self._distance_heads(number, heads, size)
            scores = self._allocate(table.shape[0])
            own, offset = ("query", 0) if term == "key" else ("key", heads * size)  # who meets it
            self._emit(
                StepKind.DISTANCE_SCORES, input=projected, output=scores, distance_heads=table, query_offset=offset,
                heads=heads, head_size=size, scale=op.options["scale"],
            )  # fmt: skip
            fields[f"{own}_distances"] = scores
        return {**fields, "distances": op.options["distances"]} if fields else {}

    def _distance_heads(self, number: int, heads: int, size: int) -> DistanceHeads:
        op, source = self.ops[number], self.ops[self.ops[number].inputs[0]]
        norm = norm_ref(source) if source.kind == "norm" else None
        vectors = (self.ops[source.inputs[0]] if norm else source).weights[0]
        projection, bias = (weight.name for weight in op.weights)
        return DistanceHeads((heads * vectors.shape[0], size), heads, vectors.name, norm, projection, bias)

    def _store_source_keys(self) -> None:
        """Keys and values for the decoder's cross-attention, computed once, with the encoder's states."""
        for op in self.ops:
            if op.kind == "attend" and op.options["cross"]:
                key, value = (self._trace_projection(operand) for operand in op.inputs[1:3])
                heads, size = head_shape(self.ops[key.heads].shape)
                width = heads * size
                buffer = self._project([key, value], 2 * width)
                shape = {"layer": op.block, "kv_heads": heads, "head_size": size, "cross_attention": True}
                self._emit(StepKind.KV_STORE, input=buffer, key_offset=0, value_offset=width, **shape)
                self._free(buffer)

    def _trace_projection(self, number: int) -> HeadProjection:
        """From what attention reads back to the matmul that it comes from."""
        op, norm, rope, site = self.ops[number], None, None, self.ops[number].site
        while op.kind != "heads":
            if op.kind == "norm":
                norm = op
            elif op.kind == "rotate":
                rope = op.options["rope"]
            number = op.inputs[0]
            op = self.ops[number]
        heads, joint_norm = number, None
        if not op.weights:
            number = op.inputs[0]
            if self.ops[number].kind == "norm":
                joint_norm, number = self.ops[number], self.ops[number].inputs[0]
        matrix = head_matrix(op, self.ops[number]) if self.ops[number].weights else None
        return HeadProjection(heads, number, matrix, joint_norm, norm, rope, site)

    def _project(self, projections: Sequence[HeadProjection], width: int) -> int:
        """Projections of one input, side by side in one buffer: matmuls, or results that are there already (sums of a
        matmul and an adapter's update)."""
        matrices = list(dict.fromkeys(part.matrix for part in projections))
        if None not in matrices:
            source = self.ops[projections[0].projection].inputs[0]
            return self._matmul(source, [matrix for matrix in matrices if matrix is not None], width, None)
        buffer, column = self._allocate(width), 0
        for part in {part.projection: part for part in projections}.values():
            op, heads = self.ops[part.projection], self.ops[part.heads]
            if part.matrix is None and heads.options["step"] != 1:
                raise ExecutorError("native engines cannot take turns in a sum's heads: merge the adapter instead.")
            own = math.prod(size for size in op.shape if isinstance(size, int))
            if part.matrix is None:
                self._emit(StepKind.COPY, input=self._buffer_of[part.projection], output=buffer, output_offset=column)
            else:
                product = self._matmul(op.inputs[0], [part.matrix], own, None)
                self._emit(StepKind.COPY, input=product, output=buffer, output_offset=column)
                self._free(product)
            column += own
        return buffer
