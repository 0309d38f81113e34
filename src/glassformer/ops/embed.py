"""embed: ids → vectors, rows of a table; ids beyond a table that blocks have beside have its first row. Options: scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from glassformer.engine.program import NO_POSITIONS, MatrixRef, StepKind, Table
from glassformer.ops.module_steps import At, Path, Values, part, path_of, scale, step
from glassformer.ops.op import ArithmeticDraft, Array, Floats, Op, TokenContext
from glassformer.ops.position import Position
from glassformer.ops.products import matrix_ref
from glassformer.ops.program_writer import ProgramWriter
from glassformer.ops.recorder import Recorder, Value


class Embed(Op):
    __slots__ = ()
    kind = "embed"
    weight_role = "table"

    @property
    def is_plain(self) -> bool:
        return self.has_own_weights and self.options["scale"] == 1

    def row(self, token: TokenContext) -> Floats:
        """The token's row of the table."""
        row = token.weights.weight(self.weights[0].name, token.id if token.id < self.weights[0].shape[0] else 0)
        assert row is not None
        return row

    def scaled(self, rows: Floats) -> Floats:
        return rows * np.float32(self.options["scale"])

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        return self.scaled(self.row(token))

    def formula(self) -> str:
        factor = self.options["scale"]
        return "the row of the table that the token's id names" + (f", × {factor:.4g}" if factor != 1 else "")

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        row = self.row(e.token(self))
        stored = e.step("in the table", f"{self.weights[0].name}, the token's row, number {index}", row[index])
        if (factor := self.options["scale"]) != 1:
            e.step("scaled", f"× {factor:.6g}", stored * factor)

    def write_modules(self, derivation: Any, index: int) -> None:
        """Its module scales vectors; or, where a caller's own are scaled too, a step of its own."""
        factor, later = self.options["scale"], derivation.scales_vectors
        if self.options.get("beside"):
            derivation.embedding(path_of(self.module), *self.weights[0].shape, factor)
            derivation.add(
                index, derivation.root(self), step(look_up, At(path_of(self.module)), self.weights[0].shape[0]), reads=()
            )
            return
        derivation.embedding(path_of(self.module), *self.weights[0].shape, 1.0 if later else factor)
        derivation.add(index, derivation.root(self), step(scale, factor) if later and factor != 1.0 else None)

    def lower(self, writer: ProgramWriter, index: int) -> None:
        """A sum of rows: of the token's, and of what is added for its position and its text."""
        tables: list[Table] = [matrix_ref(self)]
        first, last = 0, index
        while writer.ops[last].site not in writer.watched and len(writer.consumers.get(last, [])) == 1 and len(tables) < 3:
            added = writer.ops[writer.consumers[last][0]]
            if not isinstance(added, Position):
                break
            if added.options["how"] == "segments" and len(tables) == 1:
                first = NO_POSITIONS
            tables.append(added.table(writer.config.max_position_embeddings))
            first = added.options["first"] if added.options["how"] == "learned" else first
            (last,) = writer.consumers[last]
            writer.fused.add(last)
        buffer = writer.allocate(self.width)
        factor = self.options["scale"]
        writer.emit(StepKind.EMBED, output=buffer, matrices=tuple(tables), position_offset=first, scale=factor)
        writer.set_result(last, buffer)

    def matrices(self, source: Op | None) -> list[MatrixRef]:
        return [matrix_ref(self)]

    def split(self, splitter: Any, index: int) -> None:
        if self.options.get("beside"):
            raise splitter.cannot_split(self, "every block reads vectors of tokens beside the stream")
        splitter.divide_vocabulary(self)


def look_up(path: Path, rows: int, write: int, m: Any, values: Values, p: Any) -> None:
    values[write] = part(m, path)(p.ids.where(p.ids < rows, 0))


def build_embed(
    b: Recorder, module: str, site: str | None = "embedding", scale: float = 1.0, size: int | None = None,
    rows: int | None = None,
) -> Value:  # fmt: skip
    """Vectors of a size: by default the hidden one; `rows`: for how many ids, by default those of the vocabulary."""
    rows, size = rows or b.config.vocab_size, size or b.config.hidden_size
    weights = {f"{module}.weight": (rows, size)}
    return b.record(Embed, module, (), ("batch", b.length, size), site, weights, scale=scale)
