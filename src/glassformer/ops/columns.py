"""columns: some of the numbers of a projection that makes several things, side by side.

Options: first, step, size (where the first run of `size` numbers begins, and how far on the next).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from glassformer.engine.program import MatrixRef, RowRuns
from glassformer.ops.module_steps import Values, path_of, step
from glassformer.ops.op import ArithmeticDraft, Array, Backwards, Op, TokenContext, WeightSource, integer
from glassformer.ops.products import matrix_ref, part_of
from glassformer.ops.program_writer import ProgramWriter
from glassformer.ops.recorder import Recorder, Value


class Columns(Op):
    __slots__ = ()
    kind = "columns"
    applies_norm = True

    @property
    def takes_part(self) -> bool:
        return True

    @property
    def divides_matrix(self) -> bool:
        return True

    @property
    def is_plain(self) -> bool:
        return False

    @property
    def runs(self) -> RowRuns:
        """Which of the projection's numbers they are."""
        size = integer(self.options["size"])
        return RowRuns(size, self.options["first"], self.options["step"], self.width // size)

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        return np.asarray(inputs[0][..., self.runs.rows])

    def formula(self) -> str:
        return f"{self.width} numbers of the projection"

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        e.explain(self.inputs[0], int(self.runs.rows[index]))

    def linear(self, x: Array, weights: WeightSource, held: Array | None) -> Array:
        return np.asarray(x[:, self.runs.rows])

    def backwards(self, g: Array, weights: WeightSource, width: int, held: Callable[[], Array]) -> Backwards:
        sent = np.zeros((len(g), width))
        sent[:, self.runs.rows] = g
        return Backwards(sent)

    def write_modules(self, derivation: Any, index: int) -> None:
        path, runs = path_of(self.module), self.runs
        home = path[:-1] if path in derivation.leaves else path
        derivation.add(index, home, step(take_columns, runs.first, runs.step, runs.size, runs.runs))

    def lower(self, writer: ProgramWriter, index: int) -> None:
        writer.matmul(writer.ops[self.inputs[0]].inputs[0], self.matrices(writer.ops[self.inputs[0]]), self.width, index)

    def matrices(self, source: Op | None) -> list[MatrixRef]:
        return [part_of(matrix_ref(source), self.runs)] if source is not None and source.weights else []


def take_columns(
    first: int, every: int, size: int, count: int, read: int, write: int, m: Any, values: Values, p: Any
) -> None:
    runs = values[read][..., first : first + (count - 1) * every + size].unfold(-1, size, every)
    values[write] = runs.reshape(*runs.shape[:-2], count * size)


def build_columns(
    b: Recorder, x: Value, module: str, first: int, size: int, runs: int = 1, every: int = 0, site: str | None = None
) -> Value:
    """Runs of a projection's numbers: each begins `every` after the one before; `module`: the projection, or what is around
    it."""
    return b.record(Columns, module, (x,), (*x.shape[:-1], size * runs), site, first=first, step=every or size, size=size)
