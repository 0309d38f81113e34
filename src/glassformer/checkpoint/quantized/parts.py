"""What the formats share: a matrix's parts by their endings, whole numbers out of words, and scales by group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.checkpoint.stored_tensors import Floats, StoredTensor
from glassformer.ground.errors import CheckpointError
from glassformer.ground.typecheck import brief

Integers = npt.NDArray[np.integer[Any]]
DTYPES: Mapping[str, str] = {"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1"}
WORD = 32  # bits
FLOATS = ("F32", "F16", "BF16")  # of scales and tables


class MatrixParts:
    """The tensors of one packed matrix: `model.layers.0.mlp.up_proj`, and `qweight`, `scales`, … below it."""

    def __init__(self, stem: str, tensors: Mapping[str, StoredTensor], path: Path) -> None:
        self.stem, self._tensors, self._path = stem, tensors, path

    def get(self, ending: str) -> StoredTensor | None:
        return self._tensors.get(f"{self.stem}.{ending}")

    def need(self, ending: str, kinds: Sequence[str] = (), dimensions: int | None = None) -> StoredTensor:
        """A part that must be there, in one of these kinds and with this many dimensions."""
        tensor = self.get(ending)
        if tensor is None:
            raise CheckpointError(f"{self._path}: the weights lack {self.stem}.{ending}. Fetch them again.")
        if kinds and tensor.kind not in kinds:
            raise self.error(f"{ending} is of dtype {tensor.kind}, not {' or '.join(kinds)}")
        if (dimensions is not None and len(tensor.shape) != dimensions) or not tensor.elements:
            raise self.error(f"{ending} has the shape {tensor.shape}")
        return tensor

    def maybe(self, ending: str, kinds: Sequence[str], dimensions: int | None = None) -> StoredTensor | None:
        """A part that may be missing."""
        return None if self.get(ending) is None else self.need(ending, kinds, dimensions)

    def expect(self, ending: str, tensor: StoredTensor, shape: tuple[int, ...]) -> None:
        if tensor.shape != shape:
            raise self.error(f"{ending} has the shape {tensor.shape}, and {shape} fits the other parts")

    def error(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self._path}: the packed matrix {self.stem!r} cannot be read: {why}. Fetch it again.")


def with_matrices(
    tensors: Mapping[str, StoredTensor], path: Path, makers: Mapping[str, Callable[[MatrixParts], StoredTensor]],
    endings: Sequence[str], unused: tuple[str, ...] = (),
) -> dict[str, StoredTensor]:  # fmt: skip
    """A folder's tensors, with whole matrices in place of the parts that have these endings; `makers`: by the parts' stem.

    `unused`: endings of what is of no use to anybody.
    """
    used = {f"{stem}.{ending}" for stem in makers for ending in endings}
    kept = {name: tensor for name, tensor in tensors.items() if name not in used and not name.endswith(unused)}
    made = [make(MatrixParts(stem, tensors, path)) for stem, make in makers.items()]
    return kept | {tensor.name: tensor for tensor in made}


def packed_stems(tensors: Mapping[str, StoredTensor], ending: str) -> Iterator[str]:
    """The modules that have a tensor of this ending."""
    return (name.removesuffix(f".{ending}") for name in tensors if name.endswith(f".{ending}"))


def integers(tensor: StoredTensor) -> Integers:
    """A tensor of whole numbers."""
    return np.asarray(tensor.bytes.view(DTYPES[tensor.kind]).reshape(tensor.shape))


def unpacked(words: Integers, bits: int, axis: int) -> npt.NDArray[np.uint8]:
    """The numbers of `bits` bits that lie in 32-bit words along an axis, the lowest bits first.

    Three bits do not divide a word: thirty-two numbers run on through three words.
    """
    moved = np.ascontiguousarray(np.moveaxis(words.astype("<i4", copy=False), axis, -1))
    if WORD % bits == 0:
        shifts = np.arange(0, WORD, bits, dtype=np.uint32)
        numbers = ((moved.view(np.uint32)[..., None] >> shifts) & np.uint32((1 << bits) - 1)).astype(np.uint8)
    else:
        stream = np.unpackbits(moved.view(np.uint8), axis=-1, bitorder="little").reshape(*moved.shape[:-1], -1, bits)
        numbers = np.packbits(stream, axis=-1, bitorder="little")
    return np.moveaxis(numbers.reshape(*moved.shape[:-1], -1), -1, axis)


def groups_of(columns: int, groups: int) -> npt.NDArray[np.intp]:
    """The group of each column, where groups are columns side by side."""
    return np.arange(columns) // -(-columns // groups)


def checked_groups(numbers: Integers, groups: int, parts: MatrixParts) -> npt.NDArray[np.intp]:
    """The groups that a file names for each column, refused where one does not exist."""
    if numbers.min(initial=0) < 0 or numbers.max(initial=0) >= groups:
        raise parts.error(f"it names a group beyond its {groups}")
    return numbers.astype(np.intp)


def scaled(numbers: Integers | Floats, zeros: Integers | Floats | None, scales: Floats) -> Floats:
    """(numbers − zeros) · scales: whole numbers are taken from each other before anything is rounded."""
    wide = numbers.astype(np.float32)
    if zeros is not None:
        wide -= zeros.astype(np.float32)
    wide *= scales
    return wide


def whole_number(config: Mapping[str, Any], name: str, allowed: Sequence[int], path: Path) -> int:
    """A field of `quantization_config` that is one of some numbers."""
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value not in allowed:
        raise CheckpointError(
            f"{path}: quantization_config has {name}={brief(value)}, and {', '.join(map(str, allowed))} can be read. "
            "Take the model unpacked, or as a .gguf file."
        )
    return value
