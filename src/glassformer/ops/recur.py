"""recur: heads that keep a state, and read their values out of it.

At each token a head's state S, a matrix of (key_size, head_size), decays and is written to, and is then read:

    S ← decay · S;   S ← S + write · key ⊗ (value − key · S);   output = scale · query · S

This is the gated delta rule (https://arxiv.org/abs/2412.06464). Without `delta`, nothing is taken from the value before it
is written, as in Mamba-2 (https://arxiv.org/abs/2405.21060). Either way an output is a sum of the values so far, each times
a weight that follows from queries, keys, decays and writes alone: the effective pattern, whose weights may be negative.

With a weight, a number for each head, as much of a token's own value is added to its output as that says: what the pattern
has on its diagonal, too.

Inputs: query, key, value, decay, write. Options: delta, scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.engine.program import BufferShape, NormRef, PatternChange, SiteLocation, StateLocation, StepKind
from glassformer.ops.heads import ProjectToHeads
from glassformer.ops.module_steps import Values, path_of, step
from glassformer.ops.norm import Norm
from glassformer.ops.op import ArithmeticDraft, Array, Floats, Op, TokenContext, integer
from glassformer.ops.products import stored_weight
from glassformer.ops.program_writer import ProgramWriter
from glassformer.ops.recorder import Recorder, Value
from glassformer.ops.token_mixer import HeadValues, TokenMixer


class Recur(TokenMixer):
    __slots__ = ()
    kind = "recur"
    linear_values = False  # they come out of a convolution and its activation

    @property
    def key_size(self) -> int:
        return self.state_shape[1]

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """(heads, key_size, head_size)"""
        _, heads, rows, columns = self.inner_sites[self.inner_site("state")]
        return integer(heads), integer(rows), integer(columns)

    @property
    def state_size(self) -> int:
        heads, rows, columns = self.state_shape
        return heads * rows * columns

    # For people -------------------------------------------------------------------------------------------------

    def formula(self) -> str:
        written = "write · key ⊗ (value − key · state)" if self.options["delta"] else "write · key ⊗ value"
        read = f"query · state × {self.options['scale']:.6g}" + (" + skip · value" if self.weights else "")
        return f"state ← decay · state + {written};  {read}"

    def notes(self, ops: Sequence[Op]) -> list[str]:
        """What is particular to it, each in a sentence."""
        heads, rows, columns = self.state_shape
        keys = ops[self.inputs[1]].shape[1]
        notes = [
            f"Recurrent: each of {heads} heads keeps a state of {rows} × {columns} numbers, however long the text is.",
            "Its pattern is effective: how much of each earlier token's value is in the output; weights may be negative.",
        ]
        if keys != heads:
            notes.append(f"{heads} states share {keys} heads of queries and keys.")
        if self.options["delta"]:
            notes.append("Delta rule: what the state has for a key already is taken from a value before it is written.")
        if self.weights:
            notes.append(f"A part of each token's own value passes by the state: {self.weights[0].name} says how much.")
        return notes

    # Its numbers ------------------------------------------------------------------------------------------------

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        weights = self.pattern_row(inputs[0], token)
        assert token.everywhere is not None
        values = token.everywhere(self.inputs[2])[:, : weights.shape[1]]
        return np.asarray(np.einsum("ht,htd->hd", weights, values).reshape(-1))

    def pattern_row(self, query: Array, token: TokenContext) -> Array:
        """How much of each token's value so far is in the output at a token: (heads, tokens)."""
        return np.stack([reads.weights for reads in self._reads(query, token)])

    def scores(self, values: HeadValues, index: int, head: int) -> StateReads:
        """A head's effective weights, from the position."""
        return self._reads(values.value(self.inputs[0]), values.token(self), [head])[0]

    def _reads(self, query: Array, token: TokenContext, heads: Iterable[int] | None = None) -> list[StateReads]:
        """From a token back: what of a head's query is left when it comes to each one, and what it finds there."""
        assert token.everywhere is not None, "a state needs what was written at earlier tokens"
        count, (every, size) = token.position + 1, self.state_shape[:2]
        all_keys = token.everywhere(self.inputs[1])[:, :count].astype(np.float64)
        decays, writes = (token.everywhere(source)[:count].astype(np.float64) for source in self.inputs[3:])
        decays = np.maximum(decays, 0)
        skips = stored_weight(token.weights, self.weights[0]) if self.weights else np.zeros(every)
        reads = []
        for head in range(every) if heads is None else heads:
            key_head = head * len(all_keys) // every
            keys, kept = all_keys[key_head], decays.reshape(count, every, -1)[:, head]
            readings, left = np.zeros((count, size)), query[key_head].astype(np.float64) * self.options["scale"]
            for place in range(count - 1, -1, -1):
                readings[place] = left
                if self.options["delta"]:
                    left = left - writes[place, head] * (left @ keys[place]) * keys[place]
                left = left * kept[place]
            vector = np.asarray(query[key_head], np.float32)
            reads.append(StateReads(vector, keys, key_head, readings, writes[:, head], float(skips[head])))
        return reads

    # In PyTorch -------------------------------------------------------------------------------------------------

    def write_modules(self, derivation: Any, index: int) -> None:
        path = path_of(self.module)
        options = {name: self.options[name] for name in ("delta", "scale")} | {"site_prefix": self.site_prefix}
        for weight in self.weights:
            derivation.vector(weight, 1.0)
            options["skip_name"] = path_of(weight.name)[-1]
        derivation.recurrence(index, path, options)
        derivation.add(index, path, step(recur))

    # In an engine -----------------------------------------------------------------------------------------------

    def lower(self, writer: ProgramWriter, index: int) -> None:
        query, key, value = (_trace(writer, operand) for operand in self.inputs[:3])
        heads, key_size, size = self.state_shape
        keys, _ = writer.ops[self.inputs[1]].head_shape
        buffer, offsets = self._side_by_side(writer, (query, key, value))
        fields: dict[str, Any] = dict(zip(("query_offset", "key_offset", "value_offset"), offsets, strict=True))
        if query.norm is not None or key.norm is not None:
            normed = {"query_norm": query.norm, "key_norm": key.norm, "heads": keys, "kv_heads": keys, "head_size": key_size}
            writer.emit(StepKind.ROPE, input=buffer, **fields, **normed)
        for part, offset, count, width in zip(
            (query, key, value), offsets, (keys, keys, heads), (key_size, key_size, size), strict=True
        ):
            writer.expose(part.site, SiteLocation(buffer, offset, count * width, count))
        decay, write = (writer.buffer_of[source] for source in self.inputs[3:])
        fields |= {"input": buffer, "second_input": decay, "third_input": write, "heads": heads, "kv_heads": keys}
        fields |= {"head_size": size, "key_size": key_size, "delta": self.options["delta"], "scale": self.options["scale"]}
        fields["vector"] = self.weights[0].name if self.weights else None
        pattern, norms = self.inner_site("pattern"), self.inner_site("state_norm")
        if pattern in writer.watched:
            weights = writer.add_pinned(BufferShape(heads, per_key=True))
            writer.emit(StepKind.RECUR_PATTERN, output=weights, **fields)
            writer.expose(pattern, SiteLocation(weights, heads=heads, pattern=True))
        joined = writer.allocate(heads * size)
        measured = writer.add_pinned(BufferShape(heads)) if norms in writer.watched else None
        writer.emit(StepKind.RECUR, output=joined, state_offset=writer.state_offset(index), state_norms=measured, **fields)
        if measured is not None:
            writer.expose(norms, SiteLocation(measured, 0, heads))
        if (state := self.inner_site("state")) in writer.watched:
            writer.program.states[state] = StateLocation(writer.state_offset(index), heads, key_size, size)
        if pattern in writer.changes:
            changed = writer.allocate(heads * size)
            writer.emit(StepKind.RECUR_VALUES, output=changed, **{**fields, "second_input": weights})
            change = PatternChange(pattern, changed, joined)
            writer.program.pattern_changes.setdefault(len(writer.program.steps), []).append(change)
            writer.free(changed)
        if buffer not in (query.buffer, key.buffer, value.buffer):
            writer.free(buffer)
        writer.expose(self.inner_site("heads"), SiteLocation(joined, 0, heads * size, heads))
        writer.set_result(index, joined)

    @staticmethod
    def _side_by_side(writer: ProgramWriter, parts: Sequence[_Heads]) -> tuple[int, list[int]]:
        """The buffer that has queries, keys and values, and the columns where they begin."""
        if len({part.buffer for part in parts}) == 1:
            return parts[0].buffer, [part.column for part in parts]
        widths = [writer.program.buffers[part.buffer].columns for part in parts]
        starts = [sum(widths[:place]) for place in range(len(parts))]
        buffer = writer.allocate(sum(widths))
        for part, start in zip(parts, starts, strict=True):
            writer.emit(StepKind.COPY, input=part.buffer, output=buffer, output_offset=start)
        return buffer, [start + part.column for part, start in zip(parts, starts, strict=True)]

    # On several ranks -------------------------------------------------------------------------------------------

    def split(self, splitter: Any, index: int) -> None:
        raise splitter.cannot_split(self, "its state is not divided among processes")


@dataclass(frozen=True)
class StateReads:
    """What a head reads of what each token wrote to its state, from one position."""

    query: Floats
    keys: Array  # (tokens, key_size)
    key_head: int
    readings: Array  # (tokens, key_size): the scaled query, as it comes to each token's write
    writes: Array  # (tokens)
    skip: float = 0.0  # how much of the last token's value passes by the state
    sink: float = -math.inf

    @property
    def scores(self) -> Floats:
        return np.asarray((self.readings * self.keys).sum(-1), np.float32)

    @property
    def weights(self) -> Floats:
        weights = (self.readings * self.keys).sum(-1) * self.writes
        weights[-1] += self.skip
        return np.asarray(weights, np.float32)

    @property
    def visible(self) -> npt.NDArray[np.bool_]:
        return np.ones(len(self.keys), bool)

    def explain(self, e: ArithmeticDraft, key: int) -> None:
        """How the weight of one token's value came to be."""
        name = "q, decayed and cleared on its way back"
        product = e.dot_product("q · k", (name, self.readings[key]), ("k", self.keys[key]), every=True)
        score = e.step("q · k", f"{len(self.query)} terms, of what the tokens between have left of q", product)
        weight = e.step("weight", f"× {self.writes[key]:.4f}, how strongly this token was written", score * self.writes[key])
        if self.skip and key == len(self.keys) - 1:
            e.step("with its own value", f"+ {self.skip:.4f}, which passes by the state", weight + self.skip)


@dataclass
class _Heads:
    """Where heads of queries, keys or values lie in a program."""

    buffer: int
    column: int
    norm: NormRef | None
    site: str | None


def _trace(writer: ProgramWriter, index: int) -> _Heads:
    """From what the state reads back to the buffer that it lies in."""
    site, norm = writer.ops[index].site, None
    while not isinstance(op := writer.ops[index], ProjectToHeads):
        norm = op.ref if isinstance(op, Norm) else norm
        (index,) = op.inputs
    return _Heads(writer.buffer_of[op.inputs[0]], op.options["first"], norm, site)


def recur(query: int, key: int, value: int, decay: int, write: int, out: int, m: Any, values: Values, p: Any) -> None:
    values[out] = m.recur(values[query], values[key], values[value], values[decay], values[write], p)


def build_recur(
    b: Recorder, query: Value, key: Value, value: Value, decay: Value, write: Value, module: str, delta: bool,
    scale: float = 1.0, skip: str = "", site_prefix: str = "attention",
) -> Value:  # fmt: skip
    """Heads that keep a state, joined, with the sites of an attention and those of the state.

    `skip`: the name of what says how much of a token's own value passes by the state.
    """
    batch, heads, length, size = value.shape
    state = (batch, heads, key.shape[-1], size)
    inner_sites = {
        f"{site_prefix}.pattern": (batch, heads, length, b.keys),
        f"{site_prefix}.state_norm": (batch, length, heads),
        f"{site_prefix}.state": state,
        f"{site_prefix}.heads": value.shape,
    }
    joined = (batch, length, integer(heads) * integer(size))
    inputs = (query, key, value, decay, write)
    weights = {skip: (integer(heads),)} if skip else {}
    return b.record(Recur, module, inputs, joined, None, weights, inner_sites, delta=delta, scale=scale)
