"""Matrices in 8 bits, as safetensors hold them: whole numbers of a byte, and beside them a scale for each row or column.

A quarter of float32's space, for what comes with the package: dictionaries of features and tuned lenses. A matrix NAME has
its scales in NAME.scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.checkpoint.stored_tensors import StoredTensor
from glassformer.ground.errors import CheckpointError

Floats: TypeAlias = npt.NDArray[np.float32]
SCALE = ".scale"
MOST = 127  # the largest number of a byte
TINY = np.finfo(np.float32).tiny  # the smallest scale: rows of zeros have it


def pack_matrices(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """The arrays, of which matrices have 8 bits: scaled by rows or by columns, whichever loses less."""
    packed: dict[str, npt.NDArray[Any]] = {}
    for name, array in arrays.items():
        if array.ndim != 2 or not array.size:
            packed[name] = array
            continue
        largest = (np.abs(array).max(axis=axis, keepdims=True).astype(np.float32) for axis in (0, 1))
        scales = [np.maximum(each / MOST, TINY) for each in largest]
        pairs = [(np.rint(array / scale).astype(np.int8), scale) for scale in scales]
        packed[name], packed[name + SCALE] = min(pairs, key=lambda pair: float(((pair[0] * pair[1] - array) ** 2).sum()))
    return packed


def unpack_matrices(tensors: Mapping[str, StoredTensor], where: Path) -> dict[str, Floats]:
    """A file's tensors in float32, each multiplied by its scales if it has some; its bytes are not kept."""
    values = {}
    for name, stored in tensors.items():
        if name.endswith(SCALE) and name.removesuffix(SCALE) in tensors:
            continue
        tensor, scale = stored.in_memory(), tensors.get(name + SCALE)
        if scale is None:
            values[name] = tensor.to_float32()
            continue
        fits = len(tensor.shape) == 2 and scale.shape in ((tensor.shape[0], 1), (1, tensor.shape[1]))
        if tensor.kind != "I8" or not fits:
            found = f"{tensor.kind} of the shape {list(tensor.shape)} with scales of {list(scale.shape)}"
            raise CheckpointError(f"{where}: {name} is {found}, which is no matrix in 8 bits. Fetch it again.")
        values[name] = tensor.bytes.view(np.int8).reshape(tensor.shape) * scale.in_memory().to_float32()
    return values
