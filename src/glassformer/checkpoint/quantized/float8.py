"""Eight-bit floats (E4M3) with a scale for each block, each row or the whole matrix, as DeepSeek and Qwen publish them.

Shapes: weight (outputs, inputs), weight_scale_inv (outputs / block, inputs / block), rounded up. In spite of its name the
scale is multiplied by.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from glassformer.checkpoint.gguf_kinds import FLOAT8_KINDS
from glassformer.checkpoint.quantized.parts import FLOATS, MatrixParts, packed_stems, with_matrices
from glassformer.checkpoint.stored_tensors import Floats, StoredTensor, computed_tensor
from glassformer.ground.errors import CheckpointError
from glassformer.ground.typecheck import brief

SCALES = ("weight_scale_inv", "weight_scale")
UNUSED = ("input_scale", "activation_scale", "input_scale_ub", "k_scale", "v_scale", "q_scale")  # of activations


def expand(tensors: Mapping[str, StoredTensor], config: Mapping[str, Any], path: Path) -> dict[str, StoredTensor]:
    block = config.get("weight_block_size")
    if block is not None and not (
        isinstance(block, list) and len(block) == 2 and all(type(n) is int and n > 0 for n in block)
    ):
        raise CheckpointError(f"{path}: quantization_config has weight_block_size={brief(block)}. Fetch it again.")
    stems = {stem: ending for ending in SCALES for stem in packed_stems(tensors, ending) if f"{stem}.weight" in tensors}
    shape = None if block is None else tuple(block)
    makers = {stem: partial(scaled_floats, ending=ending, block=shape) for stem, ending in stems.items()}
    return with_matrices(tensors, path, makers, SCALES, UNUSED)


def scaled_floats(parts: MatrixParts, ending: str, block: tuple[int, ...] | None) -> StoredTensor:
    """A matrix of small floats with its scales: of blocks, or as many as there are rows and groups of columns."""
    values, scales = parts.need("weight", (*FLOAT8_KINDS, *FLOATS), 2), parts.need(ending, FLOATS)
    rows, columns = values.shape
    grid = scales.shape if len(scales.shape) == 2 else (scales.elements, 1)
    steps = (-(-rows // grid[0]), -(-columns // grid[1])) if block is None or scales.elements == 1 else block
    if grid != (-(-rows // steps[0]), -(-columns // steps[1])):
        raise parts.error(f"{ending} has the shape {scales.shape} for {values.shape} numbers in blocks of {list(steps)}")
    compute = partial(_multiply, values, scales, grid, steps)
    return computed_tensor(f"{parts.stem}.weight", values.shape, compute, [values, scales], f"scaled floats {steps}")


def _multiply(values: StoredTensor, scales: StoredTensor, grid: tuple[int, ...], steps: tuple[int, ...]) -> Floats:
    rows, columns = (np.arange(size) // step for size, step in zip(values.shape, steps, strict=True))
    numbers = values.to_float32()
    return np.asarray(numbers * scales.to_float32().reshape(grid)[rows[:, None], columns[None, :]])


def widened(tensor: StoredTensor) -> StoredTensor:
    """A tensor of eight-bit floats without a scale as float32; any other as it is."""
    if tensor.kind not in FLOAT8_KINDS:
        return tensor
    return computed_tensor(tensor.name, tensor.shape, tensor.to_float32, [tensor], "widened")
