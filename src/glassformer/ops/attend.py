"""attend: softmax(q · kᵀ · scale (+ bias), masked) · v, heads joined. Options: causal, window, scale, softcap, cross.

Two more, where a family has them: position_scale, by which scores grow with the query's position; slopes, a number for each
head that is multiplied by how far a key lies behind the query and taken off its score (ALiBi, https://arxiv.org/abs/2108.12409).

Inputs: query, key, value, and perhaps a bias for each head and distance (`position`, buckets). With `distances`, the buckets
b of tokens' distances, there are heads of the distances' vectors: softmax((q · kᵀ + q · key(b) + k · query(b)) · scale) · v.
A weight is the sinks: a score for each head that takes its part of the attention weights, and has no value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.engine.program import (
    NO_KEYS,
    Activation,
    BufferShape,
    DistanceBias,
    DistanceHeads,
    MatrixRef,
    PatternChange,
    SiteLocation,
    StepKind,
)
from glassformer.ground.errors import ExecutorError
from glassformer.ops.clip import Clip
from glassformer.ops.heads import ProjectToHeads
from glassformer.ops.module_steps import Values, path_of, step
from glassformer.ops.norm import HeadNorms, Norm
from glassformer.ops.op import ArithmeticDraft, CachedShape, Floats, Op, TokenContext, integer
from glassformer.ops.positions import DistanceBuckets, PositionScale, distance_biases
from glassformer.ops.products import product, stored_weight
from glassformer.ops.program_writer import ProgramWriter
from glassformer.ops.recorder import Recorder, Value
from glassformer.ops.rope import Rope
from glassformer.ops.rotate import Rotate
from glassformer.ops.split import contiguous, head_parts
from glassformer.ops.token_mixer import HeadValues, TokenMixer

GROWN = ("position_scale", "slopes", "chunk")  # options that few have: with position and distance
OPTIONS = ("causal", "window", "scale", "cross", "softcap", *GROWN, "shares", "shared")


class Attend(TokenMixer):
    __slots__ = ()
    kind = "attend"

    @property
    def caches_keys(self) -> bool:
        return "shares" not in self.options

    def _owner(self, writer: ProgramWriter, index: int) -> int:
        """The attention whose keys and values it looks at: itself, or that of the block that it shares them with."""
        if self.caches_keys:
            return index
        block = self.options["shares"]
        return next(n for n, op in enumerate(writer.ops) if isinstance(op, Attend) and op.block == block)

    @property
    def cross(self) -> bool:
        return bool(self.options["cross"])

    @property
    def biases(self) -> tuple[int, ...]:
        """What it reads beside queries, keys and values: biases by distance, or heads of distances."""
        return self.inputs[3:]

    def cached_sites(self, ops: Sequence[Op]) -> tuple[str | None, str | None]:
        """The sites of what is remembered: of its keys and its values."""
        key, value = (ops[source].site for source in self.inputs[1:3])
        return key, value

    def cached_shape(self, ops: Sequence[Op]) -> CachedShape:
        return CachedShape(*ops[self.inputs[1]].head_shape)

    # For people -------------------------------------------------------------------------------------------------

    def formula(self) -> str:
        score, bias = f"q · k × {self.options['scale']:.6g}", " + bias" if self.biases else ""
        if (softcap := self.options["softcap"]) is not None:
            score = f"{softcap:g} × tanh({score} ÷ {softcap:g})"
        return f"softmax({score}{bias}) · v"

    def notes(self, ops: Sequence[Op]) -> list[str]:
        """What is particular to it, each in a sentence."""
        query, key = (ops[source] for source in self.inputs[:2])
        heads, groups, options = query.shape[1], key.shape[1], self.options
        notes = []
        if heads != groups:
            notes.append(f"Grouped-query attention: {heads} query heads share {groups} key and value heads.")
        if options["cross"]:
            notes.append("Cross-attention: the queries are the text's, the keys and values the source's.")
        elif not options["causal"]:
            notes.append("Every token may look at every other.")
        else:
            notes.append("Causal: a token may look at itself and at what comes before it.")
        if (grown := options.get("position_scale")) is not None:
            notes.append(
                f"From position {grown.length - grown.first} on, scores are scaled up: "
                f"× 1 + {grown.beta:g} · ln(1 + ⌊{f'(position + {grown.first})' if grown.first else 'position'} ÷ "
                f"{grown.length}⌋)."
            )
        if options.get("slopes"):
            notes.append("ALiBi: each head takes a number of its own off a score for each token between the two.")
        if (block := options.get("shares")) is not None:
            notes.append(f"Shared keys and values: those that block {block} has made.")
        if options["window"]:
            way = "back" if options["causal"] else "away"
            notes.append(f"Sliding window: no further {way} than {options['window']} tokens, itself included.")
        if (chunk := options.get("chunk")) is not None:
            notes.append(f"In chunks of {chunk} tokens: a token sees none of an earlier chunk.")
        if isinstance(query, Rotate):
            theta = query.rope.theta
            notes.append(f"RoPE turns queries and keys by their positions (theta {theta:g}); scores are taken after it.")
        if options.get("distance_terms"):
            notes.append("Queries and keys also meet vectors of the distance between the two tokens; scores are the sums.")
        elif self.biases:
            notes.append("A learned bias for the distance between the two tokens is added to each score.")
        if self.weights:
            notes.append("A sink, a learned score that stands for no token, takes its part of each row's attention.")
        if options["softcap"]:
            cap = options["softcap"]
            notes.append(f"Soft cap: a score s becomes {cap:g} × tanh(s ÷ {cap:g}), so that none exceeds {cap:g}.")
        known = {*OPTIONS, "distances", "distance_terms"}
        return notes + [f"{name}: {value}" for name, value in options.items() if name not in known and value]

    # Its numbers ------------------------------------------------------------------------------------------------

    def scores(self, values: HeadValues, index: int, head: int) -> HeadScores:
        """A head's scores, from the position."""
        query, all_keys = values.value(self.inputs[0]), values.keys(index)
        key_head = head * len(all_keys) // len(query)
        keys = all_keys[key_head]
        products = keys @ query[head]
        biases = self._distance_bias(values, query, all_keys)
        bias = None if biases is None else biases[head]
        scores = products * np.float32(self.scale_at(values.token(self).position))
        if (softcap := self.options["softcap"]) is not None:
            scores = np.float32(softcap) * np.tanh(scores / np.float32(softcap))
        scores = scores + (0 if bias is None else bias)
        token = values.token(self)
        sink = float(stored_weight(token.weights, self.weights[0])[head]) if self.weights else -math.inf
        return HeadScores(
            self, query[head], keys, key_head, scores, bias, self._visible_keys(token.position, len(keys)), sink
        )

    def scale_at(self, position: int) -> float:
        """What products are multiplied by, for a query at a position."""
        grown = self.options.get("position_scale")
        return float(self.options["scale"] * (1.0 if grown is None else grown.at(position)))

    def _visible_keys(self, position: int, keys: int) -> npt.NDArray[np.bool_]:
        """Which keys a position may look at."""
        distances = np.arange(keys) - position
        visible = distances <= 0 if self.options["causal"] else np.ones(keys, bool)
        if (chunk := self.options.get("chunk")) is not None:
            visible &= np.arange(keys) // chunk == position // chunk
        return visible & (np.abs(distances) < self.options["window"]) if self.options["window"] else visible

    def _distance_bias(self, values: HeadValues, query: Floats, keys: Floats) -> Floats | None:
        """What is added to scores by distance: (heads, keys); None where nothing is."""
        token, count = values.token(self), keys.shape[1]
        if "distances" in self.options:
            return self._distance_terms(values, token, query, keys)
        if slopes := self.options.get("slopes"):
            return np.asarray(np.outer(slopes, np.arange(count) - token.position), np.float32)
        if not self.biases:
            return None
        table = stored_weight(token.weights, values.ops[self.inputs[3]].weights[0])
        furthest = values.config.relative_attention_max_distance
        biases = distance_biases(table, furthest, bidirectional=not self.options["causal"])
        distances = np.clip(np.arange(count) - token.position, -furthest, furthest)
        return biases[:, distances + furthest]

    def _distance_terms(self, values: HeadValues, token: TokenContext, query: Floats, keys: Floats) -> Floats:
        """What the query has with the keys of all distances, and the keys with the queries of theirs: (heads, keys)."""
        buckets: DistanceBuckets = self.options["distances"]
        furthest, count = buckets.max_distance, keys.shape[1]
        indices = buckets.numbers()[np.clip(token.position - np.arange(count), -furthest, furthest) + furthest]
        total = np.zeros((len(query), count), np.float32)
        for term, source in zip(self.options["distance_terms"], self.inputs[3:], strict=True):
            vectors = distance_heads(values.ops, source, token)[:, indices]  # (heads, keys, head_size)
            total += ((query[:, None] if term == "key" else keys) * vectors).sum(-1)
        return np.asarray(total * np.float32(self.options["scale"]))

    # In PyTorch -------------------------------------------------------------------------------------------------

    def write_modules(self, derivation: Any, index: int) -> None:
        path, options = path_of(self.module), self.options
        self.write_attention(derivation, index)
        if "shares" in options:
            derivation.add(index, path, step(attend_shared), reads=self.inputs[:1])
        elif self.cross:
            derivation.add(index, path, step(attend_source))
        elif "distances" in options:
            derivation.add(index, path, step(attend_apart, options["distance_terms"]))
        else:
            derivation.add(index, path, step(attend))

    def write_attention(self, derivation: Any, index: int) -> None:
        """Say what its container needs to know."""
        names = ("scale", "window", "softcap", *GROWN, "shares", "shared")
        fixed = {name: self.options[name] for name in names if name in self.options}
        sinks = self.weights[0] if self.weights else None
        derivation.attention(index, path_of(self.module), sinks, self.cross, fixed)

    # In an engine -----------------------------------------------------------------------------------------------

    def lower(self, writer: ProgramWriter, index: int) -> None:
        query, key, value = (trace_projection(writer.ops, operand) for operand in self.inputs[:3])
        (heads, size), (kv_heads, _) = query.heads.head_shape, key.heads.head_shape
        owner = self._owner(writer, index)
        shape = {**writer.kv_place(owner), "heads": heads, "kv_heads": kv_heads, "head_size": size}
        shape |= {"cross_attention": self.cross}
        if "shares" in self.options:
            buffer = project_query(writer, query, shape)
        elif self.cross:
            buffer = project(writer, [query], heads * size)
            writer.expose(query.site, SiteLocation(buffer, 0, heads * size, heads))
        else:
            buffer = project_qkv(writer, query, key, value, shape)
        apart = "distances" in self.options
        bias = self._lower_distance_terms(writer, buffer) if apart else self._lower_distance_bias(writer)
        if self.weights:  # a score for each head beside those of the keys
            bias["sinks"] = self.weights[0].name
        self.lower_heads(writer, index, {"input": buffer, **shape, **bias})

    def lower_heads(self, writer: ProgramWriter, index: int, *parts: Mapping[str, Any]) -> None:
        """Its result, from queries that nothing reads after it; `parts`: as `lower_attention` takes them."""
        heads, size = self.head_shape
        joined = self.lower_attention(writer, heads * size, *parts)
        for part in parts:
            for used in (part[name] for name in ("input", "query_distances", "key_distances") if name in part):
                writer.free(used)
        writer.expose(self.inner_site("heads"), SiteLocation(joined, 0, heads * size, heads))
        writer.set_result(index, joined)

    def lower_attention(self, writer: ProgramWriter, width: int, *parts: Mapping[str, Any]) -> int:
        """From queries to heads, and the pattern between them where it is watched: the buffer of the heads. `parts`: the
        fields of steps which follow one another, each in place of what the one before has for its tokens."""
        options, heads = self.options, parts[0]["heads"]
        mask = {"causal": bool(options["causal"]), "window": options["window"] or 0}
        mask |= {"scale": options["scale"], "softcap": options["softcap"] or 0.0}
        mask |= {name: options[name] for name in GROWN if name in options}
        joined, pattern = writer.allocate(width), self.inner_site("pattern")
        if pattern in writer.watched:
            weights = writer.add_pinned(BufferShape(heads, per_key=True))
            for part in parts:
                writer.emit(StepKind.ATTENTION_PATTERN, output=weights, **{**mask, **part})
            writer.expose(pattern, SiteLocation(weights, heads=heads, pattern=True))
        for part in parts:
            writer.emit(StepKind.ATTENTION, output=joined, **{**mask, **part})
        if pattern in writer.changes:
            changed = writer.allocate(width)
            for part in parts:
                writer.emit(StepKind.WEIGHTED_VALUES, second_input=weights, output=changed, **part)
            change = PatternChange(pattern, changed, joined)
            writer.program.pattern_changes.setdefault(len(writer.program.steps), []).append(change)
            writer.free(changed)
        return joined

    def lower_at_source(self, writer: ProgramWriter, index: int) -> None:
        """Keys and values for cross-attention, computed once, with the encoder's states."""
        if not self.cross:
            return
        key, value = (trace_projection(writer.ops, operand) for operand in self.inputs[1:3])
        heads, size = key.heads.head_shape
        buffer = project(writer, [key, value], 2 * heads * size)
        shape = {**writer.kv_place(index), "kv_heads": heads, "head_size": size, "cross_attention": True}
        writer.emit(StepKind.KV_STORE, input=buffer, key_offset=0, value_offset=heads * size, **shape)
        writer.free(buffer)

    def _lower_distance_bias(self, writer: ProgramWriter) -> dict[str, Any]:
        """A bias for each head and distance, if there is one; all blocks of a stack share it."""
        if not self.biases:
            return {}
        table, furthest = writer.ops[self.inputs[3]].weights[0].name, writer.config.relative_attention_max_distance
        return {"distance_bias": DistanceBias(table, furthest, bidirectional=not self.options["causal"])}

    def _lower_distance_terms(self, writer: ProgramWriter, projected: int) -> dict[str, Any]:
        """What queries have with the keys of each distance, and keys with the queries of each."""
        heads, size = self.head_shape
        fields: dict[str, Any] = {}
        for term, source in zip(self.options["distance_terms"], self.inputs[3:], strict=True):
            table = distance_heads_ref(writer.ops, source)
            scores = writer.allocate(table.shape[0])
            other, offset = ("query", 0) if term == "key" else ("key", heads * size)  # who meets it
            writer.emit(
                StepKind.HEAD_MATMUL, input=projected, output=scores, head_matrices=table, query_offset=offset,
                heads=heads, kv_heads=heads, head_size=size, scale=self.options["scale"],
            )  # fmt: skip
            fields[f"{other}_distances"] = scores
        return {**fields, "distances": self.options["distances"]} if fields else {}

    # On several ranks -------------------------------------------------------------------------------------------

    def split_inputs(self, splitter: Any) -> None:
        """Heads are divided along the groups that share a key and a value, back to where they are made."""
        query, key, value, *biases = self.inputs
        groups, _ = splitter.ops[key].head_shape
        queries, shared = head_parts(self.head_shape[0], groups, splitter.ranks)
        for source, parts in ((query, queries), (key, shared), (value, shared), *((bias, queries) for bias in biases)):
            splitter.heads[source] = parts
            while splitter.ops[source].keeps_heads:
                (source,) = splitter.ops[source].inputs
                splitter.heads[source] = parts

    def split(self, splitter: Any, index: int) -> None:
        if not self.caches_keys:
            raise splitter.cannot_split(self, "its keys and values are an earlier block's")
        if self.options.get("slopes") is not None:
            raise splitter.cannot_split(self, "each of its heads has a slope of its own")
        heads = splitter.heads[self.inputs[0]]
        for site in self.inner_sites:
            splitter.sites[site] = contiguous(1, heads)
        splitter.results[index] = contiguous(-1, heads, self.head_shape[1])


def attend(query: int, key: int, value: int, write: int, m: Any, values: Values, p: Any) -> None:
    values[write] = m.attend(values[query], values[key], values[value], p)


def attend_shared(query: int, write: int, m: Any, values: Values, p: Any) -> None:
    """Attention to keys and values that an earlier block has made."""
    values[write] = m.attend_shared(values[query], p)


def attend_apart(terms: tuple[str, ...], query: int, key: int, value: int, *rest: Any) -> None:
    """Attention that weighs content and distance apart; `terms`: whose heads the distances have."""
    *slots, write, m, values, p = rest
    distances = {f"distance_{term}": values[slot] for term, slot in zip(terms, slots, strict=True)}
    values[write] = m.attend(values[query], values[key], values[value], p, **distances)


def attend_source(query: int, write: int, m: Any, values: Values, p: Any) -> None:
    values[write] = m.attend_source(values[query], p)


@dataclass(frozen=True)
class HeadScores:
    """A head's scores and weights over all keys, from one position."""

    op: Attend
    query: Floats
    keys: Floats  # (keys, head_size)
    key_head: int
    scores: Floats  # scaled, soft-capped where the model does that, with their biases
    biases: Floats | None
    visible: npt.NDArray[np.bool_]
    sink: float = -math.inf  # a score beside those of the keys; minus infinity: none

    @property
    def weights(self) -> Floats:
        shown = np.where(self.visible, self.scores, -np.inf)
        exponentials = np.exp(shown - shown.max())
        return np.asarray(exponentials / (exponentials.sum() + np.exp(self.sink - shown.max())), np.float32)

    def explain(self, e: ArithmeticDraft, key: int) -> None:
        """How the weight of one key came to be."""
        options = self.op.options
        product = e.dot_product("q · k", ("q", self.query), ("k", self.keys[key]), every=True)
        score = e.step("q · k", f"{len(self.query)} terms", product)
        scale = self.op.scale_at(e.position)
        score = e.step("scaled", f"× {scale:.6g}" if scale != 1 else "× 1: this model does not scale", score * scale)
        if (softcap := options["softcap"]) is not None:
            score = e.step("soft-capped", f"{softcap:g} × tanh(score ÷ {softcap:g})", softcap * np.tanh(score / softcap))
        if self.biases is not None:
            score = e.step(
                "with bias", f"+ {self.biases[key]:.4f}, by the distance between the two", score + self.biases[key]
            )
        if not self.visible[key]:
            e.step("weight", "masked: this token may not look there", 0.0)
            return
        shown = self.scores[self.visible]
        top = float(shown.max())
        share = e.step("exponential", f"exp(score − the largest score here, which is {top:.4f})", np.exp(score - top))
        total = e.step(
            "sum", f"of the exponentials of the {len(shown)} tokens that it may look at", np.exp(shown - top).sum()
        )
        if self.sink > -math.inf:
            sink = f"+ exp({self.sink:.4f} − the largest score): the head's sink, which takes its part and has no value"
            total = e.step("sum with the sink", sink, total + np.exp(self.sink - top))
        e.step("weight", "exponential ÷ sum", share / total)


# Projections of heads, in a program ----------------------------------------------------------------------------------


@dataclass
class HeadProjection:
    """How queries, keys or values are computed: heads of a matmul, perhaps normed and rotated."""

    heads: ProjectToHeads  # the op that splits heads
    projection: int  # the op that multiplies: the same, or a fused one; or a result that is there already
    matrix: MatrixRef | None  # of the projection; None: it is a sum of a product and an adapter's update
    joint_norm: Norm | None  # of all heads together, before they are split, or of each with its own weight
    norm: Norm | None  # of each head
    rope: Rope | None
    norm_last: bool  # whether heads are normed after RoPE
    site: str | None
    clip: Clip | None = None  # of what is projected, before its heads are normed and turned


def trace_projection(ops: Sequence[Op], index: int) -> HeadProjection:
    """From what attention reads back to the matmul that it comes from."""
    site, norm, rope = ops[index].site, None, None
    joint_norm: Norm | None = None
    norm_last, clip = isinstance(ops[index], Norm), None
    while not isinstance(op := ops[index], ProjectToHeads):
        if isinstance(op, HeadNorms):
            joint_norm = op
        elif isinstance(op, Norm):
            norm = op
        elif isinstance(op, Rotate):
            rope = op.rope
        elif isinstance(op, Clip):
            clip = op
        index = op.inputs[0]
    if op.takes_part:
        (index,) = op.inputs
        if isinstance(joint := ops[index], Norm):
            joint_norm, (index,) = joint, joint.inputs
    matrix = op.matrix(ops[index]) if ops[index].weights else None
    return HeadProjection(op, index, matrix, joint_norm, norm, rope, norm_last and rope is not None, site, clip)


def project(writer: ProgramWriter, projections: Sequence[HeadProjection], width: int) -> int:
    """Projections of one input, side by side in one buffer: matmuls, or results that are there already (sums of a
    matmul and an adapter's update)."""
    shared = projections[0].heads.takes_part  # one matrix for all, or for several
    matrices = [part.matrix for part in projections]
    matrices = list(dict.fromkeys(matrices)) if shared else matrices
    if None not in matrices:
        source = writer.ops[projections[0].projection].inputs[0]
        return writer.matmul(source, [matrix for matrix in matrices if matrix is not None], width, None)
    buffer, column = writer.allocate(width), 0
    for part in {part.projection: part for part in projections}.values():
        op = writer.ops[part.projection]
        if part.matrix is None and part.heads.divides_matrix:
            raise ExecutorError("native engines cannot take turns in a sum's heads: merge the adapter instead.")
        columns = math.prod(size for size in op.shape if isinstance(size, int))
        if part.matrix is None:
            writer.emit(StepKind.COPY, input=writer.buffer_of[part.projection], output=buffer, output_offset=column)
        else:
            product = writer.matmul(op.inputs[0], [part.matrix], columns, None)
            writer.emit(StepKind.COPY, input=product, output=buffer, output_offset=column)
            writer.free(product)
        column += columns
    return buffer


def project_qkv(
    writer: ProgramWriter, query: HeadProjection, key: HeadProjection, value: HeadProjection, shape: dict[str, Any]
) -> int:
    """Queries, keys and values of one input: projected, normed, rotated, and stored in the KV cache."""
    heads, kv_heads, size = shape["heads"], shape["kv_heads"], shape["head_size"]
    offsets = {"query_offset": 0, "key_offset": heads * size, "value_offset": (heads + kv_heads) * size}
    buffer = project(writer, [query, key, value], (heads + 2 * kv_heads) * size)
    for projection, column, width in ((query, 0, heads * size), (key, offsets["key_offset"], kv_heads * size)):
        if projection.joint_norm is not None:
            columns = {"column": column, "width": width}
            writer.emit(StepKind.NORM, input=buffer, output=buffer, norm=projection.joint_norm.ref, **columns)
    if (clip := query.clip) is not None:  # all three are clipped alike
        limits = {"least": -clip.limit, "most": clip.limit}
        writer.emit(StepKind.ACTIVATE, input=buffer, output=buffer, activation=Activation.CLIP, **limits)
    if value.norm is not None:
        for head in range(kv_heads):
            columns = {"column": offsets["value_offset"] + head * size, "width": size}
            writer.emit(StepKind.NORM, input=buffer, output=buffer, norm=value.norm.ref, **columns)
    rope = rope_index(writer, query.rope, size)
    norms = {"query_norm": query.norm and query.norm.ref, "key_norm": key.norm and key.norm.ref}
    if query.norm_last:  # RoPE by itself, and the norms with the step that stores
        writer.emit(StepKind.ROPE, input=buffer, **shape, **offsets, rope=rope)
        rope = None
    fields = {"input": buffer, **shape, **offsets, **norms, "rope": rope}
    sites = {
        query.site: SiteLocation(buffer, 0, heads * size, heads),
        key.site: SiteLocation(buffer, offsets["key_offset"], kv_heads * size, kv_heads),
        value.site: SiteLocation(buffer, offsets["value_offset"], kv_heads * size, kv_heads),
    }
    changed = any(site in writer.changes for site in sites)  # between RoPE and the cache
    writer.emit(StepKind.ROPE if changed else StepKind.ROPE_KV_STORE, **fields)
    for site, location in sites.items():
        writer.expose(site, location)
    if changed:
        writer.emit(StepKind.KV_STORE, **fields)
    return buffer


def rope_index(writer: ProgramWriter, rope: Rope | None, size: int) -> int | None:
    """Which of the program's RoPEs turns heads of this size."""
    if rope is None:
        return None
    if (rope, size) not in writer.program.ropes:
        writer.program.ropes.append((rope, size))
    return writer.program.ropes.index((rope, size))


def project_query(writer: ProgramWriter, query: HeadProjection, shape: dict[str, Any]) -> int:
    """Queries alone, normed and rotated: their keys and values are an earlier block's."""
    heads, size = shape["heads"], shape["head_size"]
    buffer = project(writer, [query], heads * size)
    norm, rope = query.norm and query.norm.ref, rope_index(writer, query.rope, size)
    writer.emit(StepKind.ROPE, input=buffer, **shape, key_offset=NO_KEYS, query_norm=norm, rope=rope)
    writer.expose(query.site, SiteLocation(buffer, 0, heads * size, heads))
    return buffer


# Heads of the vectors that stand for distances -----------------------------------------------------------------------


def distance_heads(ops: Sequence[Op], index: int, token: TokenContext) -> Floats:
    """(heads, buckets, head_size)"""
    op, source = ops[index], ops[ops[index].inputs[0]]
    table = (ops[source.inputs[0]] if isinstance(source, Norm) else source).weights[0]
    vectors = stored_weight(token.weights, table)
    vectors = source.value([vectors], token) if isinstance(source, Norm) else vectors
    heads, size = op.head_shape
    return np.asarray(product(op, vectors, token.weights).reshape(len(vectors), heads, size).transpose(1, 0, 2))


def distance_heads_ref(ops: Sequence[Op], index: int) -> DistanceHeads:
    """What a program computes `distance_heads` from."""
    op, source = ops[index], ops[ops[index].inputs[0]]
    norm = source.ref if isinstance(source, Norm) else None
    vectors = (ops[source.inputs[0]] if norm else source).weights[0]
    projection, *bias = (weight.name for weight in op.weights)
    heads, size = op.head_shape
    return DistanceHeads((heads * vectors.shape[0], size), heads, vectors.name, norm, projection, bias[0] if bias else None)


def build_attend(
    b: Recorder, query: Value, key: Value, value: Value, module: str, window: int | None = None, causal: bool = True,
    scale: float | None = None, bias: Value | None = None, site_prefix: str = "attention", sinks: str | None = None,
    softcap: float | None = None, distances: DistanceBuckets | None = None, distance_key: Value | None = None,
    distance_query: Value | None = None, dropout: float = 0.0, dropout_module: str = "",
    position_scale: PositionScale | None = None, slopes: tuple[float, ...] | None = None, shares: int | None = None,
    shared: bool = False, chunk: int | None = None,
) -> Value:  # fmt: skip
    """Attention, with sites for its pattern and its heads' outputs; the heads come out joined.

    `sinks`: a score for each head that takes its part of the attention weights, and has no value.
    `distance_key`, `distance_query`: heads of the distances' vectors; `distances` says which of them two tokens have.
    `position_scale`: by which scores grow with the query's position; `slopes`: what heads take off for distance.
    `chunk`: tokens see none of another chunk of so many.
    `shares`: the block that has made the keys and values; `shared`: whether later blocks share this one's.
    `dropout`: of the pattern, in training; `dropout_module`: its name in PyTorch, where it has one.
    """
    terms = {"key": distance_key, "query": distance_query} if distances is not None else {}
    others = [value for value in (bias, *terms.values()) if value is not None]
    options = {} if distances is None else {
        "distances": distances, "distance_terms": tuple(name for name, value in terms.items() if value is not None)
    }  # fmt: skip
    grown: dict[str, Any] = {"position_scale": position_scale, "slopes": slopes, "chunk": chunk}
    grown |= {"shares": shares, "shared": shared or None}
    options |= {name: value for name, value in grown.items() if value is not None}
    return record_attention(
        b, Attend, module, (query, key, value, *others), causal, window, dropout, dropout_module, scale, site_prefix, sinks,
        softcap=softcap, **options,
    )  # fmt: skip


def record_attention(
    b: Recorder, kind: type[Attend], module: str, reads: tuple[Value, ...], causal: bool, window: int | None, dropout: float,
    dropout_module: str = "", scale: float | None = None, site_prefix: str = "attention", sinks: str | None = None,
    softcap: float | None = None, **options: Any,
) -> Value:  # fmt: skip
    """An op of a kind of attention, of which the first thing that it reads is the query."""
    query, *_ = reads
    batch, heads, length, size = query.shape
    cross = site_prefix == "cross"
    keys = "source" if cross else b.keys
    inner_sites = {f"{site_prefix}.pattern": (batch, heads, length, keys), f"{site_prefix}.heads": query.shape}
    joined = (batch, length, integer(heads) * integer(size))
    scale = integer(size) ** -0.5 if scale is None else scale
    result = b.record(
        kind, module, reads, joined, None, {} if sinks is None else {sinks: (integer(heads),)}, inner_sites, causal=causal,
        window=window, scale=scale, cross=cross, softcap=softcap, **options,
    )  # fmt: skip
    return b.dropout(result, dropout, dropout_module)
