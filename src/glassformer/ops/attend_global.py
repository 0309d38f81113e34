"""attend_global: attention within a window, but for the global tokens, which all others see and which see all
(https://arxiv.org/abs/2004.05150). Options: those of attend.

A caller chooses which tokens of a source are global; without any it is attention within the window. Inputs: query, key and
value, by which tokens see what is near and the global ones; and the query, key and value (global_heads) by which global
tokens see all, which are computed only where there are any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from glassformer.engine.program import GlobalTokens
from glassformer.ops.attend import Attend, project_qkv, record_attention, trace_projection
from glassformer.ops.heads import ProjectToHeads, heads_shape, own_heads
from glassformer.ops.module_steps import At, Path, Values, path_of, step
from glassformer.ops.op import CachedShape, Op
from glassformer.ops.program_writer import ProgramWriter
from glassformer.ops.recorder import Recorder, Value, linear_weights


class GlobalHeads(ProjectToHeads):
    """Heads by which global tokens see all others."""

    __slots__ = ()
    kind = "global_heads"

    def write_modules(self, derivation: Any, index: int) -> None:
        if self.takes_part:  # of a sum with an adapter's update
            super().write_modules(derivation, index)
            return
        path = path_of(self.module)
        derivation.linear(self, path)
        derivation.add(index, path[:-1], step(global_heads, At(path), self.width))


class AttendGlobal(Attend):
    __slots__ = ()
    kind = "attend_global"

    def cached_shape(self, ops: Sequence[Op]) -> CachedShape:
        heads, size = ops[self.inputs[1]].head_shape
        return CachedShape(2 * heads, size)

    def notes(self, ops: Sequence[Op]) -> list[str]:
        chosen = "Global tokens, where a caller has chosen some, see all and are seen by all"
        return [*super().notes(ops), f"{chosen}; they have queries, keys and values of their own for it."]

    @property
    def biases(self) -> tuple[int, ...]:
        return ()

    def write_modules(self, derivation: Any, index: int) -> None:
        self.write_attention(derivation, index)
        derivation.add(index, path_of(self.module), step(attend_global))

    def lower(self, writer: ProgramWriter, index: int) -> None:
        """Attention of all tokens, and then that of global ones in its place."""
        if not writer.global_tokens:
            super().lower(writer, index)
            return
        heads, size = self.head_shape
        place = writer.kv_place(index)
        shape = {"heads": heads, "kv_heads": heads, "head_size": size}
        behind = {"kv_planes": place["kv_planes"] + heads, "kv_numbers": place["kv_numbers"] + heads * size}
        parts = []
        for operands, fields in (
            (self.inputs[:3], {**place, "global_tokens": GlobalTokens.SEEN}),
            (self.inputs[3:], {**place, **behind, "global_tokens": GlobalTokens.ALONE, "window": 0}),
        ):
            query, key, value = (trace_projection(writer.ops, operand) for operand in operands)
            buffer = project_qkv(writer, query, key, value, {**shape, **fields})
            parts.append({"input": buffer, **shape, **fields, "query_offset": 0})
        self.lower_heads(writer, index, *parts)

    def split_inputs(self, splitter: Any) -> None:
        for part in (self.inputs[:3], self.inputs[3:]):
            Attend.split_inputs(replace(self, inputs=part), splitter)


def global_heads(path: Path, size: int, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    if p.mask.global_tokens is None:
        values[write] = None
    else:
        own_heads(path, size, read, write, m, values, p)


def attend_global(query: int, key: int, value: int, *rest: Any) -> None:
    *of_global, write, m, values, p = rest
    own = values[query], values[key], values[value]
    values[write] = m.attend_global(*own, *(values[slot] for slot in of_global), p)


def build_global_heads(b: Recorder, x: Value, module: str, heads: int, size: int) -> Value:
    return b.record(
        GlobalHeads, module, (x,), heads_shape(x, heads, size), None, linear_weights(module, x, heads * size, True)
    )


def build_attend_global(
    b: Recorder, heads: Sequence[Value], of_global: Sequence[Value], module: str, window: int, dropout: float = 0.0
) -> Value:
    """`heads`: query, key and value; `of_global`: those by which global tokens see all."""
    return record_attention(b, AttendGlobal, module, (*heads, *of_global), causal=False, window=window, dropout=dropout)
