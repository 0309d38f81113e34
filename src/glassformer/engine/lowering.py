"""A blueprint to a program: which ops are fused, in which buffer each result lies, and where sites are.

Ops are fused where nobody watches in between: norm and matmuls of one input; head norms, RoPE and the store to the KV cache;
a matmul and the activation, gate or sum that follows it. A site that is read or changed is simply not fused away, so that
every site can be had from an engine itself, and the numbers stay the same bit for bit.

Results lie in buffers, (tokens, width) each, which are reused when nothing needs them any more; those of watched sites are
not. A program is made once for each set of sites, and kept. It is for every engine: needs neither torch nor ctypes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from glassformer.blueprints import Blueprint, Op, Rope, Weight
from glassformer.blueprints.blueprint import EXPERT_OPS
from glassformer.engine.program import (
    Activation,
    BufferShape,
    DistanceBias,
    DistanceHeads,
    Epilogue,
    MatrixRef,
    NormKind,
    NormRef,
    PatternChange,
    Program,
    RowRuns,
    SinusoidTable,
    SiteLocation,
    Step,
    StepKind,
    Table,
    TokenScope,
)  # fmt: skip
from glassformer.errors import ExecutorError

ACTIVATIONS: Mapping[str, Activation] = {
    **dict.fromkeys(("silu", "swish"), Activation.SILU),
    **dict.fromkeys(("gelu", "gelu_python"), Activation.GELU),
    **dict.fromkeys(
        ("gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh", "gelu_python_tanh"), Activation.GELU_TANH
    ),
    "quick_gelu": Activation.QUICK_GELU, "relu": Activation.RELU, "tanh": Activation.TANH,
}  # fmt: skip
MATMUL_OPS = ("heads", "linear", "gate", "scores")


@dataclass
class Allocation:
    """What still needs a buffer of a program that is being written."""

    results: set[int] = field(default_factory=set)  # ops whose results lie in it and are still to be read
    reserved: bool = False  # allocated, and not yet or never an op's result
    pinned: bool = False  # read after the pass: a site, or the scores

    @property
    def free(self) -> bool:
        return not (self.results or self.reserved or self.pinned)


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


class Lowering:
    """Writes the program of one stack: the model, or one of the two stacks of an encoder-decoder."""

    def __init__(
        self, blueprint: Blueprint, stack: str, reads: frozenset[str], changes: frozenset[str], config: Any
    ) -> None:
        self.ops = blueprint.ops
        self.stack = stack
        self.config = config
        self.changes = changes
        self.watched = reads | changes
        self.program = Program()
        self.consumers: dict[int, list[int]] = {}
        for number, op in enumerate(self.ops):
            for operand in op.inputs:
                self.consumers.setdefault(operand, []).append(number)
        self._buffer_of: dict[int, int] = {}  # by op: the buffer of its result
        self._allocations: list[Allocation] = []  # by buffer
        self._deferred_norms: dict[int, Op] = {}  # done by the matmul that reads them
        self._fused: set[int] = set()  # ops that an earlier one has done
        self._last_watched_step = 0

    # Program ----------------------------------------------------------------------------------------------------

    def lower(self) -> Program:
        for number, op in enumerate(self.ops):
            if op.stack != self.stack or number in self._fused:
                continue
            getattr(self, f"_lower_{op.kind}")(number, op)
            self._free_unneeded(number)
        if self.stack:
            self._store_source_keys()
        if self.program.scores is not None:
            self._restrict_to_scored()
        return self.program

    def _restrict_to_scored(self) -> None:
        """After the last keys and values are stored, only scored tokens are needed, unless a later site is watched."""
        steps = self.program.steps
        last = max(number for number, step in enumerate(steps) if step.kind in (StepKind.ROPE_KV_STORE, StepKind.KV_STORE))
        for step in steps[last + 1 :]:
            step.after_cache = True
            if self._last_watched_step <= last + 1:
                step.scope = step.scope or TokenScope.SCORED

    def _store_source_keys(self) -> None:
        """Keys and values for the decoder's cross-attention, computed once, with the encoder's states."""
        for op in self.ops:
            if op.kind == "attend" and op.options["cross"]:
                key, value = (self._trace_projection(operand) for operand in op.inputs[1:3])
                heads, size = _head_shape(self.ops[key.heads].shape)
                width = heads * size
                buffer = self._project([key, value], 2 * width)
                shape = {"layer": op.block, "kv_heads": heads, "head_size": size, "cross_attention": True}
                self._emit(StepKind.KV_STORE, input=buffer, key_offset=0, value_offset=width, **shape)
                self._free(buffer)

    def _emit(self, kind: StepKind, **fields: Any) -> None:
        self.program.steps.append(Step(kind, **fields))

    # Buffers ----------------------------------------------------------------------------------------------------

    def _allocate(self, width: int) -> int:
        """A buffer of this width: one that is free again, or a new one."""
        shape = BufferShape(width)
        for number, allocation in enumerate(self._allocations):
            if allocation.free and self.program.buffers[number] == shape:
                allocation.reserved = True
                return number
        return self._add_buffer(shape, Allocation(reserved=True))

    def _add_buffer(self, shape: BufferShape, allocation: Allocation) -> int:
        self.program.buffers.append(shape)
        self._allocations.append(allocation)
        return len(self._allocations) - 1

    def _assign(self, op: int, buffer: int) -> None:
        self._buffer_of[op] = buffer
        self._allocations[buffer].reserved = False
        self._allocations[buffer].results.add(op)

    def _free(self, buffer: int) -> None:
        """Give a buffer back that holds no op's result."""
        self._allocations[buffer].reserved = False

    def _is_needed(self, op: int, after: int) -> bool:
        """Whether an op's result is still to be read: by a later op, or by a watcher."""
        return any(
            consumer > after and consumer not in self._fused for consumer in self._all_consumers(op)
        ) or self._is_watched(op)

    def _all_consumers(self, op: int) -> list[int]:
        """The ops that read a result, directly or through a deferred norm or what attention does with heads."""
        ops = []
        for consumer in self.consumers.get(op, []):
            later = consumer in self._deferred_norms or len(self.ops[consumer].shape) == 4
            ops += self._all_consumers(consumer) if later else [consumer]
        return ops

    def _is_watched(self, op: int) -> bool:
        return self.ops[op].site in self.watched

    def _free_unneeded(self, now: int) -> None:
        for allocation in self._allocations:
            allocation.results = {op for op in allocation.results if self._is_needed(op, now)}

    def _width(self, op: Op) -> int:
        width = op.shape[-1]
        assert isinstance(width, int)
        return width

    def _set_result(self, number: int, buffer: int) -> None:
        """An op's result lies in this buffer; so does its site, if it is watched."""
        self._assign(number, buffer)
        self._expose(self.ops[number].site, SiteLocation(buffer, 0, self.program.buffers[buffer].columns))

    def _expose(self, site: str | None, location: SiteLocation) -> None:
        if site is None or site not in self.watched:
            return
        self.program.sites[site] = location
        self._last_watched_step = len(self.program.steps)
        self._allocations[location.buffer].pinned = True
        if site in self.changes:
            self.program.changed_sites.setdefault(len(self.program.steps), []).append(site)

    # Ops --------------------------------------------------------------------------------------------------------

    def _lower_embed(self, number: int, op: Op) -> None:
        tables: list[Table] = [_matrix(op)]
        first, last = 0, number
        while self.ops[last].site not in self.watched and len(self.consumers.get(last, [])) == 1 and len(tables) < 3:
            consumer = self.ops[self.consumers[last][0]]
            if consumer.kind != "position":
                break
            how = consumer.options["how"]
            if how == "sinusoid":
                shape = (self.config.max_position_embeddings, self._width(op))
                tables.append(SinusoidTable(shape, bool(consumer.options.get("halves"))))
            elif how == "segments" and len(tables) == 1:
                raise ExecutorError("native engines cannot add token types to vectors without positions.")
            elif how in ("learned", "segments"):
                tables.append(_matrix(consumer))
                first = consumer.options["first"] if how == "learned" else first
            last = self.consumers[last][0]
            self._fused.add(last)
        buffer = self._allocate(self._width(op))
        self._emit(StepKind.EMBED, output=buffer, matrices=tuple(tables), position_offset=first, scale=op.options["scale"])
        self._set_result(last, buffer)

    def _lower_position(self, number: int, op: Op) -> None:
        if op.options["how"] not in ("buckets", "distances"):
            raise ExecutorError(f"native engines cannot add positions of the kind {op.options['how']!r} here.")

    def _lower_norm(self, number: int, op: Op) -> None:
        if (
            len(op.shape) == 4
            or self._is_split_into_heads(number)
            or self.ops[op.inputs[0]].options.get("how") == "distances"
        ):
            return  # of heads, or of distances' vectors: done by the attention that reads them
        readers = [self.ops[consumer] for consumer in self.consumers.get(number, [])]
        if readers and all(consumer.kind in MATMUL_OPS for consumer in readers) and op.site not in self.watched:
            self._deferred_norms[number] = op
            return
        source = self._buffer_of[op.inputs[0]]
        buffer = self._allocate(self._width(op))
        self._emit(StepKind.NORM, input=source, output=buffer, norm=_norm(op))
        self._set_result(number, buffer)

    def _lower_heads(self, number: int, op: Op) -> None:
        """Nothing yet: done by the attention that reads them."""

    _lower_rotate = _lower_heads

    def _lower_identity(self, number: int, op: Op) -> None:
        if len(op.shape) == 4:
            return  # of heads: done by the attention that reads them
        buffer = self._buffer_of[op.inputs[0]]
        if op.site in self.changes:  # a change is seen by those who read it here, and by nobody else
            copy = self._allocate(self._width(op))
            self._emit(StepKind.COPY, input=buffer, output=copy)
            buffer = copy
        self._set_result(number, buffer)

    def _lower_linear(self, number: int, op: Op) -> None:
        consumers = self.consumers.get(number, [])
        norms = (consumer for consumer in consumers if self.ops[consumer].kind == "norm")
        if any(self._is_split_into_heads(result) for result in (number, *norms)):
            return  # a fused projection: done by the attention that reads its parts
        if any(self.ops[consumer].kind == "gate" and len(self.ops[consumer].inputs) == 1 for consumer in consumers):
            return  # a fused projection too: done by the gate
        fusable = len(consumers) == 1 and op.site not in self.watched
        follower = self.ops[consumers[0]] if fusable else None
        width, scale = self._width(op), op.options["scale"]
        if follower is not None and follower.kind == "activate":
            fused = {"epilogue": Epilogue.ACTIVATE, "activation": ACTIVATIONS[follower.options["how"]]}
            self._matmul(op.inputs[0], [_matrix(op)], width, consumers[0], scale=scale, **fused)
        elif (
            follower is not None and follower.kind == "add" and self._other_operand(number, consumers[0]) in self._buffer_of
        ):
            self._matmul_add(number, op, consumers[0])
        else:
            self._matmul(op.inputs[0], [_matrix(op)], width, number, scale=scale)

    def _is_split_into_heads(self, number: int) -> bool:
        """Whether a result is all heads of a projection side by side: a linear's, or that of a norm of all of them."""
        return len(self.ops[number].shape) == 3 and any(
            self.ops[consumer].kind == "heads" and not self.ops[consumer].weights
            for consumer in self.consumers.get(number, [])
        )

    def _matmul_add(self, number: int, op: Op, add: int) -> None:
        """A matmul and the residual sum that follows it; in place, unless the residual is still needed."""
        residual = self._other_operand(number, add)
        buffer = self._buffer_of[residual]
        allocation = self._allocations[buffer]
        self._fused.add(add)
        unshared = allocation.results <= {residual} and not allocation.reserved and not allocation.pinned
        into = buffer if unshared and not self._is_needed(residual, number) else None
        fused = {"epilogue": Epilogue.ADD, "second_input": buffer, "scale": op.options["scale"]}
        self._matmul(op.inputs[0], [_matrix(op)], self._width(op), add, into=into, **fused)

    def _other_operand(self, number: int, add: int) -> int:
        """What is added to an op's result by a sum."""
        return next(operand for operand in self.ops[add].inputs if operand != number)

    def _lower_activate(self, number: int, op: Op) -> None:
        buffer = self._allocate(self._width(op))
        how = ACTIVATIONS[op.options["how"]]
        self._emit(StepKind.ACTIVATE, input=self._buffer_of[op.inputs[0]], output=buffer, activation=how)
        self._set_result(number, buffer)

    def _lower_gate(self, number: int, op: Op) -> None:
        how, width = ACTIVATIONS[op.options["how"]], self._width(op)
        projection = op if op.weights else self.ops[op.inputs[0]]
        if len(op.inputs) == 2 or not projection.weights:  # of results that are there already: two, or the halves of one
            gate, up = self._buffer_of[op.inputs[0]], self._buffer_of[op.inputs[-1]]
            column = 0 if len(op.inputs) == 2 else width
            buffer = self._allocate(width)
            self._emit(StepKind.GATE, input=gate, second_input=up, column=column, output=buffer, activation=how)
            self._set_result(number, buffer)
            return
        matrices = _gate_matrices(op, projection)
        norm, source = self._matmul_input(projection.inputs[0])
        buffer = self._allocate(self._width(op))
        fused = {"norm": norm, "epilogue": Epilogue.GATE, "activation": how}
        self._emit(StepKind.MATMUL, input=source, output=buffer, matrices=matrices, **fused)
        self._set_result(number, buffer)

    def _lower_route(self, number: int, op: Op) -> None:
        buffer = self._allocate(self._width(op))
        options = {"chosen": op.options["chosen"], "normalized": op.options["normalized"]}
        source = self._buffer_of[op.inputs[0]]
        self._emit(StepKind.ROUTE, input=source, output=buffer, expert_count=self._width(op), **options)
        self._set_result(number, buffer)

    def _lower_expert_gate(self, number: int, op: Op) -> None:
        options = op.options
        gate = {
            "epilogue": Epilogue.GATE, "activation": ACTIVATIONS[options["how"]], "gate_limit": options["limit"] or 0.0,
            "gate_offset": options["offset"],
        }  # fmt: skip
        self._set_result(number, self._expert_matmul(op, self._width(op), gate))

    def _lower_expert_linear(self, number: int, op: Op) -> None:
        """Each chosen expert's product, and their sum; the residual sum that follows is done with it."""
        width, shares = self._width(op), self._buffer_of[op.inputs[1]]
        products = self._expert_matmul(op, op.options["chosen"] * width, {})
        consumers = self.consumers.get(number, [])
        fused = {}
        if len(consumers) == 1 and self.ops[consumers[0]].kind == "add" and op.site not in self.watched:
            residual = next(operand for operand in self.ops[consumers[0]].inputs if operand != number)
            fused = {"epilogue": Epilogue.ADD, "third_input": self._buffer_of[residual]}
            self._fused.add(consumers[0])
        buffer = self._allocate(width)
        counts = {"expert_count": op.options["experts"], "chosen": op.options["chosen"]}
        self._emit(StepKind.EXPERT_SUM, input=products, second_input=shares, output=buffer, **counts, **fused)
        self._free(products)
        self._set_result(consumers[0] if fused else number, buffer)

    def _expert_matmul(self, op: Op, width: int, fields: dict[str, Any]) -> int:
        """A product of each chosen expert, side by side in one buffer."""
        source, shares = (self._buffer_of[operand] for operand in op.inputs)
        experts = tuple(tuple(_matrix(op, part) for part in parts) for parts in _expert_weights(op))
        counts = {"expert_count": len(experts), "chosen": op.options["chosen"]}
        buffer = self._allocate(width)
        self._emit(
            StepKind.EXPERT_MATMUL, input=source, second_input=shares, output=buffer, experts=experts, **counts, **fields
        )  # fmt: skip
        return buffer

    def _lower_add(self, number: int, op: Op) -> None:
        first, second = (self._buffer_of[operand] for operand in op.inputs)
        buffer = self._allocate(self._width(op))
        self._emit(StepKind.ADD, input=second, second_input=first, output=buffer)
        self._set_result(number, buffer)

    def _lower_sum(self, number: int, op: Op) -> None:
        buffer = self._buffer_of[op.inputs[0]]
        self._emit(StepKind.SUM_OVER_RANKS, input=buffer, output=buffer)
        self._set_result(number, buffer)

    def _lower_scores(self, number: int, op: Op) -> None:
        norm, source = self._matmul_input(op.inputs[0])
        buffer = self._add_buffer(BufferShape(self._width(op)), Allocation(pinned=True))  # its own: it has fewer rows
        scale, softcap = op.options.get("scale", 1.0), op.options.get("softcap") or 0.0
        self._emit(
            StepKind.MATMUL, input=source, output=buffer, norm=norm, matrices=(_matrix(op),), scale=scale, softcap=softcap,
            scope=TokenScope.GATHERED,
        )  # fmt: skip
        self.program.scores = buffer

    def _lower_attend(self, number: int, op: Op) -> None:
        query, key, value = (self._trace_projection(operand) for operand in op.inputs[:3])
        heads, size = _head_shape(self.ops[query.heads].shape)
        kv_heads, _ = _head_shape(self.ops[key.heads].shape)
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
                self._emit(StepKind.NORM, input=buffer, output=buffer, norm=_norm(projection.joint_norm), **columns)
        rope = None
        if query.rope is not None:
            table = (query.rope, size)
            if table not in self.program.ropes:
                self.program.ropes.append(table)
            rope = self.program.ropes.index(table)
        norms = {"query_norm": query.norm and _norm(query.norm), "key_norm": key.norm and _norm(key.norm)}
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
        norm = _norm(source) if source.kind == "norm" else None
        vectors = (self.ops[source.inputs[0]] if norm else source).weights[0]
        projection, bias = (weight.name for weight in op.weights)
        return DistanceHeads((heads * vectors.shape[0], size), heads, vectors.name, norm, projection, bias)

    def _lower_pool(self, number: int, op: Op) -> None:
        raise ExecutorError("native engines have no heads that pool.")

    # Matmuls ----------------------------------------------------------------------------------------------------

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
        matrix = _head_matrix(op, self.ops[number]) if self.ops[number].weights else None
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

    def _matmul(
        self, source: int, matrices: Sequence[MatrixRef], width: int, result: int | None, into: int | None = None,
        **fields: Any,
    ) -> int:  # fmt: skip
        """Matmuls of one input, side by side in one buffer; `result`: the op whose result that is."""
        norm, buffer = self._matmul_input(source)
        output = self._allocate(width) if into is None else into
        self._emit(StepKind.MATMUL, input=buffer, output=output, norm=norm, matrices=tuple(matrices), **fields)
        if result is not None:
            self._fused.add(result)
            self._set_result(result, output)
        return output

    def _matmul_input(self, number: int) -> tuple[NormRef | None, int]:
        """The norm before a matmul, if there is a deferred one, and the buffer of its input."""
        if (norm := self._deferred_norms.get(number)) is not None:
            return _norm(norm), self._buffer_of[norm.inputs[0]]
        return None, self._buffer_of[number]


def _norm(op: Op) -> NormRef:
    weight, *bias = (weight.name for weight in op.weights)
    kind = NormKind.LAYER_NORM if op.options["how"] == "layer" else NormKind.RMS_NORM
    return NormRef(kind, weight, bias[0] if bias else None, op.options["offset"], op.options["eps"])


def _matrix(op: Op, weights: Sequence[Weight] | None = None) -> MatrixRef:
    """The matrix of an op, or of a part of its weights."""
    weights = op.weights if weights is None else weights
    matrices = [weight for weight in weights if len(weight.shape) == 2 and not weight.name.endswith("bias")]
    biases = tuple(weight.name for weight in weights if weight not in matrices)
    rows, columns = matrices[0].shape
    transposed = bool(op.options.get("columns"))
    if transposed:
        rows, columns = columns, rows
    return MatrixRef(tuple(weight.name for weight in matrices), (rows * len(matrices), columns), biases, transposed)


def _head_matrix(heads: Op, projection: Op) -> MatrixRef:
    """The matrix whose outputs are some heads: one of their own, or that of all heads, unless these take turns in it."""
    matrix = _matrix(projection)
    if heads.weights or heads.options["step"] == 1:
        return matrix
    count, size = _head_shape(heads.shape)
    return _part_of(matrix, RowRuns(size, heads.options["first"], heads.options["step"], count))


def _gate_matrices(gate: Op, projection: Op) -> tuple[MatrixRef, MatrixRef]:
    """The matrices of a gate's two products: its own, or the two halves of a fused one."""
    half = len(projection.weights) // 2
    if gate.weights:
        return _matrix(gate, gate.weights[:half]), _matrix(gate, gate.weights[half:])
    matrix = _matrix(projection)
    gates, ups = (_part_of(matrix, RowRuns(matrix.shape[0] // 2, part, 1, 1)) for part in (0, 1))
    return gates, ups


def _part_of(matrix: MatrixRef, part: RowRuns) -> MatrixRef:
    return matrix._replace(shape=(part.size * part.runs, matrix.shape[1]), part=part)


def _takes_part(op: Op) -> bool:
    """Whether an op takes parts of the projection before it: a gate its halves, heads their turns."""
    return not op.weights and ((op.kind == "gate" and len(op.inputs) == 1) or op.options.get("step", 1) != 1)


def _expert_weights(op: Op) -> list[list[tuple[Weight, ...]]]:
    """The weights of each expert's matrices, with their biases: gate and up, or one alone."""
    per_expert = len(op.weights) // op.options["experts"]
    matrices = 2 if op.kind == "expert_gate" else 1
    per_matrix = per_expert // matrices
    parts = [op.weights[at : at + per_matrix] for at in range(0, len(op.weights), per_matrix)]
    return [parts[at : at + matrices] for at in range(0, len(parts), matrices)]


def required_matrices(blueprint: Blueprint) -> list[MatrixRef]:
    """All matrices that a blueprint's matmuls and tables need, without their biases."""
    required: list[MatrixRef] = []
    takes_part = [_takes_part(op) for op in blueprint.ops]
    fused = {op.inputs[0] for op, part in zip(blueprint.ops, takes_part, strict=True) if part}
    for number, op in enumerate(blueprint.ops):
        projection = blueprint.ops[op.inputs[0]] if takes_part[number] else op
        if op.kind == "gate":
            required += _gate_matrices(op, projection) if projection.weights else ()
        elif op.kind in EXPERT_OPS:
            required += [_matrix(op, part) for parts in _expert_weights(op) for part in parts]
        elif takes_part[number]:
            required.append(_head_matrix(op, projection))
        elif number in fused or not op.weights:
            continue
        elif op.kind in ("embed", "linear", "heads", "scores") or (
            op.kind == "position" and op.options["how"] not in ("buckets", "distances")
        ):
            required.append(_matrix(op))
    return list(dict.fromkeys(matrix._replace(biases=()) for matrix in required))


def _head_shape(shape: Sequence[Any]) -> tuple[int, int]:
    return int(shape[1]), int(shape[3])
