"""Passes of the CPU engine: some tokens of some rows, prepared for one native call, and its results.

`NativeModel` is a model in the engine: weights, one program for each set of watched sites, and passes over them. The
executor and the reader build on it.

Shapes: buffers (tokens, width); logits (scored positions, vocabulary).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.blueprints import Blueprint, Config
from glassformer.checkpoint import StoredTensor
from glassformer.checkpoint.stored_tensors import main_kind
from glassformer.engine import checks
from glassformer.engine.cpu.kv_pages import PageTable, page_addresses
from glassformer.engine.cpu.library import (
    NO_BUFFER,
    NO_ROPE,
    ActivationRounding,
    Engine,
    KvDtype,
    MatrixKind,
    NativeFeed,
    NativeMatrix,
    NativeNorm,
    NativePass,
    NativeRope,
    NativeStep,
)  # fmt: skip
from glassformer.engine.cpu.weight_files import WeightFiles
from glassformer.engine.cpu.weights import NativeWeights, PackedMatrix
from glassformer.engine.lowering import required_matrices
from glassformer.engine.program import NormRef, Program, ProgramStep, Table
from glassformer.engine.program_executor import ProgramModel
from glassformer.engine.program_pass import FeedChunk, ProgramPass, TreeMask, entry_site, pass_sources, place_chunks, stops
from glassformer.engine.protocol import ACTIVATIONS, CACHES, Capabilities
from glassformer.ground.candidates import Candidates, top
from glassformer.ground.errors import ExecutorError
from glassformer.ground.ownership import NotCopied
from glassformer.ops.positions import SinusoidTable

Floats = npt.NDArray[np.float32]
KV_DTYPES: Mapping[str, KvDtype] = dict(zip(CACHES, KvDtype, strict=True))
OPTIONAL = ("rope", "query_distances", "key_distances", "state_norms")
NUMBERS = [step.name for step in fields(ProgramStep) if step.name in NativeStep.numbers and step.name not in OPTIONAL]
ROUNDINGS: Mapping[str, ActivationRounding] = dict(zip(ACTIVATIONS, ActivationRounding, strict=True))


class CpuLogits:
    def __init__(self, values: Floats, sites: dict[str, Any]) -> None:
        self.values = values  # (scored positions, vocabulary)
        self.sites = sites

    def with_values(self, values: Floats, sites: dict[str, Any]) -> CpuLogits:
        return CpuLogits(values, sites)

    def host(self, index: int = -1) -> Floats:
        if not len(self.values):
            raise ExecutorError(checks.NOT_SCORED)
        logits: Floats = self.values[index]
        return logits

    def top(self, k: int, index: int = -1) -> Candidates:
        return top(self.host(index), k)


class BufferMemory:
    """Lets one program at a time have buffers: that of the last pass, whose next one reuses them."""

    def __init__(self) -> None:
        self._owner: NativeProgram | None = None

    def claim(self, program: NativeProgram) -> None:
        if self._owner is not None and self._owner is not program:
            self._owner.release_buffers()
        self._owner = program


class NativeProgram(NotCopied):
    """A program and the memory that its passes use, which each pass reuses."""

    def __init__(
        self, program: Program, weights: NativeWeights, cache: str, activations: str, memory: BufferMemory,
        state_size: int = 0,
    ) -> None:  # fmt: skip
        self.program = program
        self.state_size = state_size  # numbers that a row keeps for layers with a state
        self._memory = memory
        self.rope_tables = (NativeRope * max(1, len(program.ropes)))()
        self._tables: list[Floats] = [np.empty(0, np.float32) for _ in program.ropes]
        self._frequencies = [np.ascontiguousarray(rope.frequencies(size)) for rope, size in program.ropes]
        self._buffers: list[Floats] = [np.empty(0, np.float32) for _ in program.buffers]
        self._addresses = np.zeros(max(1, len(program.buffers)), np.uint64)
        self.widths = np.array([shape.width(keys=0) for shape in program.buffers] or [0], np.int32)
        self._has_patterns = any(shape.per_key for shape in program.buffers)
        self._capacity = (0, 0)  # tokens, and scores
        self.native = NativePass(
            steps=native_steps(program, weights), rope_tables=self.rope_tables, buffers=self._addresses.ctypes.data,
            widths=self.widths.ctypes.data, rope_count=len(program.ropes), kv_dtype=KV_DTYPES[cache],
            activation_rounding=ROUNDINGS[activations],
        )  # fmt: skip

    def reserve(self, tokens: int, scored: int, keys: int, length: int) -> None:
        """Make room for a pass of this size; some kinds of RoPE depend on the length of the texts."""
        self._memory.claim(self)
        more = tokens > self._capacity[0] or scored > self._capacity[1]
        if self._has_patterns or self.program.depends_on_length or more:
            self._capacity = (max(tokens, self._capacity[0]), max(scored, self._capacity[1]))
            self._reserve_buffers(keys)
            self._reserve_rope_tables(length)

    def release_buffers(self) -> None:
        """Give the memory back that the next pass takes anew."""
        self._buffers = [np.empty(0, np.float32) for _ in self.program.buffers]
        self._capacity = (0, 0)

    def _reserve_buffers(self, keys: int) -> None:
        tokens, scored = self._capacity
        for index, shape in enumerate(self.program.buffers):
            rows = scored if index == self.program.scores else tokens
            width = shape.width(keys)
            self.widths[index] = width
            if self._buffers[index].size < rows * width:
                self._buffers[index] = np.empty(rows * width, np.float32)
                self._addresses[index] = self._buffers[index].ctypes.data

    def _reserve_rope_tables(self, length: int) -> None:
        for index, (rope, size) in enumerate(self.program.ropes):
            if rope.depends_on_length:
                self._frequencies[index] = np.ascontiguousarray(rope.frequencies(size, length))
            rotated = rope.rotary_size(size)
            if self._tables[index].size < self._capacity[0] * rotated:
                self._tables[index] = np.empty(self._capacity[0] * rotated, np.float32)
            table, frequencies = self._tables[index].ctypes.data, self._frequencies[index].ctypes.data
            self.rope_tables[index] = NativeRope(frequencies, table, rope.scale, rotated, rope.interleaved)

    @contextmanager
    def logits_in(self, logits: Floats) -> Iterator[None]:
        """Let passes write their logits to these rows, rather than to a buffer that they would be copied from."""
        index = self.program.scores
        assert index is not None
        address = self._addresses[index]
        self._addresses[index] = logits.ctypes.data
        try:
            yield
        finally:
            self._addresses[index] = address

    def buffer(self, index: int, rows: int) -> Floats:
        width = int(self.widths[index])
        return self._buffers[index][: rows * width].reshape(rows, width)


def native_steps(program: Program, weights: NativeWeights) -> Any:
    """All steps of a program, as one array."""
    steps = (NativeStep * len(program.steps))()
    for step, native in zip(program.steps, steps, strict=True):
        _fill(native, step, weights)
    return steps


def _fill(native: NativeStep, step: ProgramStep, weights: NativeWeights) -> None:
    """Write a step over one that is all zeros, so that only what differs needs to be written."""
    for name in NUMBERS:
        if value := getattr(step, name):
            setattr(native, name, value)
    native.scale, native.factor, native.softcap = step.scale, step.factor, step.softcap
    native.rope = NO_ROPE if step.rope is None else step.rope
    native.gate_limit, native.gate_offset, native.floor = step.gate_limit, step.gate_offset, step.floor
    native.matrix_count = len(step.matrices)
    for index, table in enumerate(step.matrices):
        native.matrices[index] = _matrix(table, weights)
    if step.experts:
        native.matrix_count = len(step.experts[0])
        native.experts = weights.matrices([table for expert in step.experts for table in expert])
    if step.slopes:
        native.slopes = weights.derived(("slopes", step.slopes), lambda: np.array(step.slopes, np.float32))
    if (grown := step.position_scale) is not None:
        native.position_beta, native.position_length, native.position_first = grown.beta, grown.length, grown.first
    if (learned := step.activation_numbers) is not None:
        values = weights.derived(learned, lambda: learned.values(lambda name: weights.stored(name).to_float32()))
        native.activation_numbers = values
    if step.correction is not None:
        native.correction = weights.vector(step.correction)
    if step.sinks is not None:
        native.sinks = weights.vector(step.sinks)
    for name in ("norm", "query_norm", "key_norm"):
        if (norm := getattr(step, name)) is not None:
            setattr(native, name, _norm(norm, weights))
    native.query_distances = NO_BUFFER if step.query_distances is None else step.query_distances
    native.key_distances = NO_BUFFER if step.key_distances is None else step.key_distances
    native.state_norms = NO_BUFFER if step.state_norms is None else step.state_norms
    native.least, native.most = step.least, step.most
    if (kernel := step.kernel) is not None:
        values = weights.derived(kernel, lambda: weights.floats(kernel).reshape(step.width, step.kernel_size).T)
        native.kernel, native.kernel_bias = values, step.kernel_bias and weights.vector(step.kernel_bias)
    if step.vector is not None:
        native.vector = _vector(step.vector, step.vector_repeats, weights)
    if (heads := step.head_matrices) is not None:
        values = weights.derived(heads, lambda: heads.values(lambda name: weights.stored(name).to_float32()))
        native.matrix_count, native.matrices[0] = 1, NativeMatrix(values, None, MatrixKind.F32, *heads.shape)
    if (buckets := step.distances) is not None:
        native.max_distance = buckets.max_distance
        native.distance_buckets = weights.derived(buckets, buckets.numbers)
    if (bias := step.distance_bias) is not None:
        native.max_distance = bias.max_distance
        native.distance_bias = weights.derived(bias, lambda: bias.values(weights.stored(bias.table).to_float32()))


def _matrix(table: Table, weights: NativeWeights) -> NativeMatrix:
    if isinstance(table, SinusoidTable):
        made = weights.derived(table, lambda: weights.stored_or(table.stored, table.shape, table.values))
        return NativeMatrix(made, None, MatrixKind.F32, *table.shape)
    return weights.matrix(table)


def _vector(name: str, repeats: int, weights: NativeWeights) -> int:
    if repeats == 1:
        return weights.vector(name)
    return weights.derived((name, repeats), lambda: np.repeat(weights.floats(name), repeats))


def _norm(norm: NormRef, weights: NativeWeights) -> NativeNorm:
    bias = weights.vector(norm.bias) if norm.bias else None
    if norm.weight is None:
        scale = weights.derived(("ones", norm.width), lambda: np.ones(norm.width, np.float32))
    elif (name := norm.weight) and norm.repeats > 1:
        scale = weights.derived(norm, lambda: np.tile(weights.floats(name, plus=norm.offset), norm.repeats))
    else:
        scale = weights.vector(norm.weight, *norm.more, plus=norm.offset)
    return NativeNorm(scale, bias, norm.eps, norm.kind, norm.groups)


class EnginePass(NotCopied, ProgramPass):
    """A pass prepared for the engine, and its results read back. All its texts have the same frequencies of RoPE."""

    def __init__(self, prepared: NativeProgram, chunks: Sequence[FeedChunk], steps: int = 1) -> None:
        """`steps`: how many tokens each chunk goes on for, where the engine chooses them."""
        self.prepared = prepared
        self.program = prepared.program
        self.chunks = chunks
        self.joined_count = len(chunks)
        self.tokens = sum(chunk.count for chunk in chunks)
        self.trees = [chunk.tree_mask() if chunk.feed.parents is not None else None for chunk in chunks]
        self.scored_counts = [chunk.scored() for chunk in chunks]
        ids, positions, scored = self._arrays = (array("i"), array("i"), array("i"))
        for chunk, tree, count in zip(chunks, self.trees, self.scored_counts, strict=True):
            end = chunk.offset + chunk.count
            ids.extend(chunk.feed.ids[chunk.offset : end])
            positions.extend(
                range(chunk.start + chunk.offset, chunk.start + end) if tree is None else tree[1][chunk.offset : end]
            )
            scored.extend(range(chunk.first + chunk.count - count, chunk.first + chunk.count))
        token_types = [chunk.token_types for chunk in chunks if chunk.token_types is not None]
        self.token_types = np.concatenate(token_types).astype(np.int32) if token_types else None
        keys = max(max(chunk.start + len(chunk.feed.ids) + steps - 1, len(chunk.row.source)) for chunk in chunks)
        length = max(chunk.text_length for chunk in chunks)  # or another one with the same frequencies
        prepared.reserve(self.tokens, len(scored), keys, length)
        self.sources = pass_sources(prepared.program, chunks)
        zeros = partial(np.zeros, prepared.state_size, np.float32)
        states = [None if chunk.row.state is None else chunk.row.state.writable(zeros) for chunk in chunks]
        self.states = [None if state is None else state.ctypes.data for state in states]
        self.feeds = (NativeFeed * len(chunks))(
            *map(_native_feed, chunks, self.sources, self.trees, self.scored_counts, self.states)
        )
        native = prepared.native
        native.feeds, native.feed_count = self.feeds, len(chunks)
        native.ids, native.positions, native.scored = (numbers.buffer_info()[0] for numbers in self._arrays)
        native.token_types = None if self.token_types is None else self.token_types.ctypes.data
        native.token_count, native.scored_count = self.tokens, len(scored)

    @property
    def joined(self) -> Sequence[FeedChunk]:
        return self.chunks[: self.joined_count]

    def join(self, step: int) -> int:
        """Let the chunks in that begin here, with what enters their block: the number of those that are in then.

        Chunks are in the order of the steps that they begin at, so that those in a pass are always its first tokens.
        """
        if not self.chunks[-1].begin_step:
            return self.joined_count
        self.joined_count = sum(chunk.begin_step <= step for chunk in self.chunks)
        for chunk in self.joined:
            if chunk.begin_step == step and (site := entry_site(chunk.feed)) is not None and chunk.feed.begin is not None:
                self.value(site, chunk)[...] = chunk.feed.begin.states[chunk.offset : chunk.offset + chunk.count]
        native = self.prepared.native
        native.feed_count = self.joined_count
        native.token_count = sum(chunk.count for chunk in self.joined)
        native.scored_count = sum(self.scored_counts[: self.joined_count])
        return self.joined_count

    def steps(self, begin: int, end: int) -> NativePass:
        """The pass from one step to another."""
        self.prepared.native.begin_step, self.prepared.native.end_step = begin, end
        return self.prepared.native

    def buffer(self, index: int) -> Floats:
        return self.prepared.buffer(index, self.tokens)

    def kept_value(self, site: str, chunk: FeedChunk) -> Floats:
        value: Floats = self.value(site, chunk).copy()
        return value

    def results(self) -> list[CpuLogits]:
        program = self.prepared.program
        empty = np.empty((0, 0), np.float32)
        logits = empty if program.scores is None else self.prepared.buffer(program.scores, sum(self.scored_counts))
        results, first = [], 0
        for chunk, source, count in zip(self.chunks, self.sources, self.scored_counts, strict=True):
            values = logits[first : first + count].copy()  # the next pass reuses the buffer
            results.append(CpuLogits(values, self.read_sites(chunk, source)))
            first += count
        return results


class NativeModel(ProgramModel[NativeProgram]):
    """A model in the engine."""

    def __init__(
        self, config: Config, blueprint: Blueprint, tensors: Mapping[str, StoredTensor], *, cache: str | None = None,
        activations: str | None = None, engine: Engine | None = None,
    ) -> None:  # fmt: skip
        super().__init__(config, blueprint, Capabilities(begins_at_blocks=blueprint.blocks_stand_alone))
        self._weight_kind = main_kind(tensors.values())
        self._cache = cache or default_cache(self._weight_kind)
        packed = any(tensor.packed for tensor in tensors.values())  # inputs of float matrices are not rounded
        self._activations = activations if activations and packed else ACTIVATIONS[0]
        self._engine = engine or Engine()
        self._weights = NativeWeights(tensors, {weight.name: weight.shape for weight in blueprint.weights}, self._engine)
        for matrix in required_matrices(blueprint):
            self._weights.require(matrix)
        self._files = WeightFiles(self._weights.prepare())
        self._memory = BufferMemory()
        self._formats = self._page_formats(self._cache)

    def _prepare(self, program: Program) -> NativeProgram:
        return NativeProgram(program, self._weights, self._cache, self._activations, self._memory, self.blueprint.state_size)

    def _new_pages(self, stack: str = "") -> PageTable:
        return PageTable(self._formats[stack])

    def packed_matrices(self) -> dict[str, PackedMatrix]:
        """Its packed matrices by name, for products outside of a program."""
        rounding = ROUNDINGS[self._activations]
        return {
            matrix.names[0]: PackedMatrix(
                self._weights.matrix(matrix), rounding, self._engine, self._lock, self._files, self._weights
            )
            for matrix in required_matrices(self.blueprint)
            if len(matrix.names) == 1 and matrix.part is None and self._weights.is_packed(matrix)
        }

    def _run_pass(self, prepared: NativeProgram, chunks: Sequence[FeedChunk]) -> list[CpuLogits]:
        """One pass over some tokens of some rows: each chunk's logits, and the sites that its watch reads."""
        place_chunks(chunks)
        engine_pass = EnginePass(prepared, chunks)
        program, begin = prepared.program, 0
        with self._files.checked():
            if chunks[-1].begin_step:
                self._engine.run(engine_pass.steps(0, 0))  # positions of all tokens, before the first of them join
            for step in stops(program):
                if engine_pass.join(begin):
                    self._engine.run(engine_pass.steps(begin, step))
                    engine_pass.apply_changes_before(step)
                begin = step
            engine_pass.join(begin)
            self._engine.run(engine_pass.steps(begin, len(program.steps)))
        engine_pass.change_states()
        return engine_pass.results()


def _native_feed(
    chunk: FeedChunk, source: PageTable | None, tree: TreeMask | None, scored: int, state: int | None
) -> NativeFeed:
    mask, positions = (None, None) if tree is None else (numbers.ctypes.data for numbers in tree)
    chosen = chunk.row.source.mask
    return NativeFeed(
        page_addresses(chunk.row.pages), page_addresses(source), mask, positions, state,
        None if chosen is None else chosen.ctypes.data, chunk.start, len(chunk.feed.ids), chunk.offset, chunk.first,
        chunk.count, len(chunk.row.source), scored, *chunk.row.source.global_range,
    )  # fmt: skip


def default_cache(weight_kind: str) -> str:
    """What keys and values are stored in, by the kind of the weights, unless a dtype is asked for."""
    return "f32" if weight_kind in ("F32", "F64") else "f16"
