"""position: add a vector per position or token type, or give a bias or a vector per distance. Options: how, first.

learned     a row of a table, from its `first` on
sinusoid    sines and cosines; `halves`: all sines come first; `stored`: a tensor that is taken where a file has it;
            `inclusive`: the last wavelength is the longest itself
segments    a row for the first or second of two texts
buckets     (1, heads, length, keys): a bias for each head and distance, added to attention scores (T5)
distances   (1, rows, hidden): a vector for each bucket of distances, which attention looks for (DeBERTa)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from glassformer.engine.program import Epilogue, MatrixRef, StepKind, Table
from glassformer.ground.errors import ExecutorError
from glassformer.ops.module_steps import At, Path, Values, part, path_of, step
from glassformer.ops.op import ArithmeticDraft, Array, Floats, Op, TokenContext
from glassformer.ops.positions import SinusoidTable
from glassformer.ops.products import matrix_ref
from glassformer.ops.program_writer import ProgramWriter
from glassformer.ops.recorder import Recorder, Value
from glassformer.ops.split import contiguous


class Position(Op):
    __slots__ = ()
    kind = "position"
    input_name = "distances"

    @property
    def is_plain(self) -> bool:
        return False

    @property
    def reads_table(self) -> bool:
        return self.options["how"] in ("learned", "sinusoid")

    def added(self, token: TokenContext) -> Floats:
        """What is added for the position, or for the first of two texts."""
        how = self.options["how"]
        if how == "sinusoid":
            stored = token.weights.weight(self.options["stored"], token.position) if "stored" in self.options else None
            return np.asarray(self.sinusoids(token.position + 1).values()[-1] if stored is None else stored)
        row = 0 if how == "segments" else token.position + self.options["first"]
        vector = token.weights.weight(self.weights[0].name, row)
        assert vector is not None
        return vector

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        return np.asarray(inputs[0] + self.added(token))

    def formula(self) -> str:
        return {
            "segments": "x + the vector of the first or second text",
            "buckets": "a bias for each distance",
        }.get(self.options["how"], "x + the vector of the position")

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        x = e.step("before", f"x[{index}]", e.value(self.inputs[0])[index])
        how = {"segments": "of the first text", "sinusoid": "the sinusoid's value here"}.get(
            self.options["how"], "this position's row"
        )
        added = e.step("position", how, self.added(e.token(self))[index])
        e.step("sum", "before + position", x + added)

    def write_modules(self, derivation: Any, index: int) -> None:
        how, path = self.options["how"], path_of(self.module)
        if how == "sinusoid" and not self.options.get("halves"):
            derivation.add_sinusoids(index, derivation.root(self))
            return
        if how == "sinusoid":
            derivation.sinusoid_table(path, self.sinusoids(derivation.config.max_position_embeddings))
        else:
            derivation.embedding(path, *self.weights[0].shape)
        if how == "buckets":
            derivation.prepare_biases(index, path)
        elif how == "distances":
            derivation.prepare_distances(index, path)
        elif how == "segments":
            derivation.add(index, path[:-1], step(add_token_type, At(path)))
        else:
            first = 0 if how == "sinusoid" else self.options["first"]  # whose table begins there
            derivation.add(index, path[:-1], step(add_position, At(path), first))

    def lower(self, writer: ProgramWriter, index: int) -> None:
        """Nothing mostly: an embedding adds vectors of positions, and attention what is for distances."""
        if not self.has_value_at_token:
            return
        if self.options["how"] != "learned":
            raise ExecutorError(f"native engines cannot add positions of the kind {self.options['how']!r} here.")
        buffer, source = writer.allocate(self.width), writer.buffer_of[self.inputs[0]]
        writer.emit(
            StepKind.EMBED, output=buffer, second_input=source, matrices=(matrix_ref(self),), epilogue=Epilogue.ADD,
            position_offset=self.options["first"],
        )  # fmt: skip
        writer.set_result(index, buffer)

    def table(self, positions: int) -> Table:
        """The rows that an embedding adds for these positions."""
        if self.options["how"] != "sinusoid":
            return matrix_ref(self)
        return self.sinusoids(positions)

    def sinusoids(self, positions: int) -> SinusoidTable:
        """The sines and cosines of these positions."""
        halves, stored = bool(self.options.get("halves")), self.options.get("stored", "")
        return SinusoidTable(
            (positions, self.width), halves, stored, self.options["first"], bool(self.options.get("inclusive"))
        )

    def matrices(self, source: Op | None) -> list[MatrixRef]:
        return [matrix_ref(self)] if self.has_value_at_token and self.weights else []

    def split_heads(self, splitter: Any, heads: Sequence[range]) -> None:
        splitter.split_weights(self.weights, contiguous(1, heads))


def add_position(path: Path, first: int, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    values[write] = values[read] + part(m, path)(p.positions + first if first else p.positions)


def add_token_type(path: Path, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    values[write] = values[read] + part(m, path)(p.segments)


def types_first(ops: Sequence[Op]) -> list[Op]:
    """Ops in which token types are added before positions, as some modules do; engines add them in the other order."""
    swapped = list(ops)
    for index, (one, other) in enumerate(pairwise(ops)):
        if isinstance(one, Position) and isinstance(other, Position) and other.options["how"] == "segments":
            swapped[index] = replace(one, module=other.module, weights=other.weights, options=other.options)
            swapped[index + 1] = replace(other, module=one.module, weights=one.weights, options=one.options)
    return swapped


def build_position(
    b: Recorder, x: Value, module: str, rows: int, site: str | None = None, how: str = "learned", first: int = 0,
    halves: bool = False, inclusive: bool = False,
) -> Value:  # fmt: skip
    """Add a row of a table to each token; a sinusoid needs none. `halves`: its sines come first, then its cosines; where
    a file stores such a table in `module`, that one is taken. `inclusive`: so too, with the longest wavelength as the last
    one; no file stores it."""
    weights = {} if how == "sinusoid" else {f"{module}.weight": (rows, x.width)}
    options: dict[str, Any] = {"halves": True, "stored": f"{module}.weight"} if halves else {}
    options |= {"halves": True, "inclusive": True} if inclusive else {}
    return b.record(Position, module, (x,), x.shape, site, weights, how=how, first=first, **options)


def build_relative_bias(b: Recorder, module: str, buckets: int, heads: int) -> Value:
    """A bias for each head and distance, out of a table of buckets; it is added to the attention scores."""
    weights = {f"{module}.weight": (buckets, heads)}
    return b.record(Position, module, (), (1, heads, b.length, b.keys), None, weights, how="buckets")


def build_distance_vectors(b: Recorder, module: str, rows: int) -> Value:
    """A vector for each bucket of distances between tokens, for attention to look for."""
    size = b.config.hidden_size
    return b.record(Position, module, (), (1, rows, size), None, {f"{module}.weight": (rows, size)}, how="distances")
