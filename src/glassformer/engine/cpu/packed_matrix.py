"""A packed matrix of a model in the engine, by itself: products with it outside of a program, and their gradients.

Shapes: inputs (tokens, columns); outputs (tokens, rows).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from glassformer.engine.cpu.library import ActivationRounding, Engine, NativeMatrix, dequantize_row
from glassformer.engine.cpu.weight_files import WeightFiles
from glassformer.engine.cpu.weights import NativeWeights
from glassformer.ground.locks import ForkSafeLock
from glassformer.ground.ownership import Shared

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class PackedMatrix(Shared):
    native: NativeMatrix
    rounding: ActivationRounding  # of inputs
    engine: Engine
    lock: ForkSafeLock  # of the engine's passes
    files: WeightFiles
    weights: NativeWeights  # in whose memory it lies

    @property
    def shape(self) -> tuple[int, int]:
        return self.native.rows, self.native.columns

    def outputs(self, inputs: Floats) -> Floats:
        """The product with each token's inputs, in the bits of a pass."""
        with self.lock:
            outputs = self.engine.matmul(self.native, self.rounding, np.ascontiguousarray(inputs, np.float32))
        self.files.check_reads()
        return outputs

    def input_gradients(self, gradients: Floats) -> Floats:
        """From the gradients of outputs."""
        with self.lock:
            inputs = self.engine.input_gradients(self.native, np.ascontiguousarray(gradients, np.float32))
        self.files.check_reads()
        return inputs

    def rows(self, numbers: Iterable[int]) -> Floats:
        """Some rows as floats, as of a table of embeddings."""
        rows = [dequantize_row(self.native, number) for number in numbers]
        self.files.check_reads()
        return np.stack(rows) if rows else np.empty((0, self.native.columns), np.float32)
