"""AWQ (https://arxiv.org/abs/2306.00978), in the order of its matmul kernel ("gemm").

Shapes: qweight (inputs, outputs / 8), qzeros (groups, outputs / 8), scales (groups, outputs). A group is inputs side by
side. The eight numbers of a word are not in their own order: the kernel reads even ones and odd ones apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from glassformer.checkpoint.quantized.parts import (
    FLOATS,
    Integers,
    MatrixParts,
    groups_of,
    integers,
    packed_stems,
    scaled,
    unpacked,
    whole_number,
    with_matrices,
)
from glassformer.checkpoint.stored_tensors import Floats, StoredTensor, computed_tensor
from glassformer.ground.errors import CheckpointError
from glassformer.ground.typecheck import brief

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the column, of each eight, that a word's numbers belong to
VERSIONS = ("gemm", "exllama")  # the same in the file
ENDINGS = ("qweight", "qzeros", "scales")


def expand(tensors: Mapping[str, StoredTensor], config: Mapping[str, Any], path: Path) -> dict[str, StoredTensor]:
    whole_number({"bits": config.get("bits", config.get("w_bit"))}, "bits", (4,), path)
    version = config.get("version") or "gemm"
    if not isinstance(version, str) or version.lower() not in VERSIONS:
        raise CheckpointError(
            f"{path}: quantization_config has version={brief(version)}, and gemm can be read. Take the model so, unpacked, "
            "or as a .gguf file."
        )
    return with_matrices(tensors, path, dict.fromkeys(packed_stems(tensors, "qweight"), _matrix), ENDINGS)


def _matrix(parts: MatrixParts) -> StoredTensor:
    numbers, zeros = (parts.need(ending, ("I32",), 2) for ending in ("qweight", "qzeros"))
    scales = parts.need("scales", FLOATS, 2)
    inputs, (groups, outputs) = numbers.shape[0], scales.shape
    parts.expect("qweight", numbers, (inputs, outputs // len(ORDER)))
    parts.expect("qzeros", zeros, (groups, outputs // len(ORDER)))
    if outputs % len(ORDER) or inputs % groups:
        raise parts.error(f"{outputs} outputs and {groups} groups of {inputs} inputs do not come out even")
    compute = partial(_unpack, numbers, zeros, scales)
    return computed_tensor(f"{parts.stem}.weight", (outputs, inputs), compute, [numbers, zeros, scales], "awq")


def _unpack(numbers: StoredTensor, zeros: StoredTensor, scales: StoredTensor) -> Floats:
    group = groups_of(numbers.shape[0], scales.shape[0])
    return scaled(_columns(integers(numbers)), _columns(integers(zeros))[group], scales.to_float32()[group]).T


def _columns(words: Integers) -> Integers:
    """The numbers of each word in the order of their columns."""
    numbers = unpacked(words, 4, 1).reshape(len(words), -1, len(ORDER))
    return np.asarray(numbers[..., np.argsort(ORDER)].reshape(len(words), -1))
