"""columns: some of the numbers of a projection that makes several things, side by side.

Options: parts (`RowRuns`: which numbers they are, at most three runs of runs), scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.engine.program import MatrixRef, RowRuns
from glassformer.ops.module_steps import Values, path_of, step
from glassformer.ops.op import ArithmeticDraft, Array, Backwards, Op, TokenContext, WeightSource
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
    def places(self) -> npt.NDArray[np.intp]:
        """Where each of them stands in the projection."""
        return np.concatenate([part.rows for part in self.options["parts"]])

    @property
    def scale(self) -> float:
        return float(self.options.get("scale", 1.0))

    def value(self, inputs: Sequence[Array], token: TokenContext) -> Array:
        return np.asarray(inputs[0][..., self.places] * inputs[0].dtype.type(self.scale))

    def formula(self) -> str:
        taken = f"{self.width} numbers of the projection"
        return taken if self.scale == 1 else f"{taken} × {self.scale:.4g}"

    def explain(self, e: ArithmeticDraft, index: int) -> None:
        made = e.explain(self.inputs[0], int(self.places[index]))
        if self.scale != 1:
            e.step("scaled", f"× {self.scale:.6g}", made * self.scale)

    def linear(self, x: Array, weights: WeightSource, held: Array | None) -> Array:
        return np.asarray(x[:, self.places] * self.scale)

    def backwards(self, g: Array, weights: WeightSource, width: int, held: Callable[[], Array]) -> Backwards:
        sent = np.zeros((len(g), width))
        sent[:, self.places] = g * self.scale
        return Backwards(sent)

    def write_modules(self, derivation: Any, index: int) -> None:
        path = path_of(self.module)
        home = path[:-1] if path in derivation.leaves else path
        derivation.add(index, home, step(take_columns, self.options["parts"], self.scale))

    def lower(self, writer: ProgramWriter, index: int) -> None:
        source = writer.ops[self.inputs[0]]
        writer.matmul(source.inputs[0], self.matrices(source), self.width, index, scale=self.scale)

    def matrices(self, source: Op | None) -> list[MatrixRef]:
        if source is None or not source.weights:
            return []
        return [part_of(matrix_ref(source), part) for part in self.options["parts"]]


def take_columns(parts: tuple[RowRuns, ...], scale: float, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    import torch

    x, taken = values[read], []
    for size, first, every, runs in parts:
        numbers = x[..., first : first + (runs - 1) * every + size].unfold(-1, size, every)
        taken.append(numbers.reshape(*numbers.shape[:-2], runs * size))
    made = taken[0] if len(taken) == 1 else torch.cat(taken, -1)
    values[write] = made if scale == 1 else made * scale


def build_columns(
    b: Recorder, x: Value, module: str, *parts: tuple[int, int, int, int], site: str | None = None, scale: float = 1.0
) -> Value:
    """Some of a projection's numbers, in this order; `parts`: as of `RowRuns`; `module`: the projection, or what is around
    it; `scale`: what they are multiplied by."""
    runs = tuple(RowRuns(*part) for part in parts)
    width = sum(part.size * part.runs for part in runs)
    scaled: dict[str, Any] = {} if scale == 1 else {"scale": scale}
    return b.record(Columns, module, (x,), (*x.shape[:-1], width), site, parts=runs, **scaled)
