"""A model's weights under the names that its blueprint has for them, for every engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from glassformer.checkpoint.gguf_kinds import block_size
from glassformer.checkpoint.legacy_names import resolve_names
from glassformer.checkpoint.stored_tensors import (
    PLAIN_KINDS,
    Floats,
    HasKind,
    Layout,
    RowPermutation,
    StoredTensor,
    TiledColumns,
    Transposed,
)
from glassformer.engine.program import MatrixRef, RowRuns
from glassformer.ground.errors import CheckpointError

OPTIONAL_ZEROS = ("final_logits_bias",)  # zeros where a file lacks them


class WeightTensor(HasKind, Protocol):
    """A weight, wherever it lies: a `StoredTensor` of a file, or what stands for a live parameter."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def size(self) -> int: ...

    @property
    def layout(self) -> Layout | None: ...

    @property
    def label(self) -> str:
        """What errors call it."""

    def to_float32(self) -> Floats: ...


AnyTensor = TypeVar("AnyTensor", bound=WeightTensor)


class NamedWeights(Generic[AnyTensor]):
    """The weights of one model by name.

    `expected` has the shapes that follow from the config: kernels read by them without a check, so a tensor of
    another shape is refused here, before anything is read.
    """

    def __init__(self, tensors: Mapping[str, AnyTensor], expected: Mapping[str, tuple[int, ...]]) -> None:
        self._tensors = resolve_names(tensors, tuple(expected))
        self._shapes = dict(expected)
        self._files = tensors
        for name in expected:
            if name in self._tensors or name not in OPTIONAL_ZEROS:
                self.stored(name)

    def stored(self, name: str) -> AnyTensor:
        tensor, shape = self._tensors.get(name), self._shapes[name]
        if tensor is None:
            raise CheckpointError(f"the weights lack {name}. Is this the config of these weights?")
        if tensor.shape != shape:
            raise CheckpointError(
                f"{tensor.label} has shape {tensor.shape}, but the config makes {name!r} {shape}. "
                "Is this the config of these weights?"
            )
        return tensor

    def checked(self, matrix: MatrixRef) -> list[AnyTensor]:
        """A matrix's tensors, whose sizes fit their kinds and shapes."""
        tensors = [self.stored(name) for name in matrix.names]
        for tensor in tensors:
            check_size(tensor)
        return tensors

    def stored_or(self, name: str, shape: tuple[int, ...], make: Callable[[], Floats]) -> Floats:
        """A tensor that a file may hold, or what is made where it does not."""
        if not name or not (found := resolve_names(self._files, (name,))):
            return make()
        self._tensors |= found
        self._shapes[name] = shape
        return self.floats(name).reshape(shape)

    def read(self, name: str) -> AnyTensor:
        """A tensor whose bytes are to be read now: an engine may copy them first."""
        return self.stored(name)

    @property
    def kinds(self) -> set[str]:
        return {tensor.kind for tensor in self._tensors.values()}

    def floats(self, *names: str, plus: float = 0.0) -> Floats:
        """A small tensor in float32, or several after one another; `plus`: an offset."""
        return np.concatenate([self._flat(name) for name in names]) + np.float32(plus)

    def _flat(self, name: str) -> Floats:
        if name in OPTIONAL_ZEROS and name not in self._tensors:
            return np.zeros(math.prod(self._shapes[name]), np.float32)
        return self.read(name).to_float32().reshape(-1)


def is_packed(tensors: Sequence[WeightTensor], matrix: MatrixRef, kinds: Collection[str]) -> bool:
    """Whether a matrix is one tensor of some packed kinds, and its rows are whole blocks of them."""
    tensor = tensors[0]
    return (
        len(tensors) == 1
        and tensor.kind in kinds
        and (not matrix.transposed or isinstance(tensor.layout, Transposed))
        and not isinstance(tensor.layout, TiledColumns)  # whose blocks run along other columns
        and matrix.shape[1] % block_size(tensor.kind)[0] == 0
    )


def row_order(tensor: StoredTensor, part: RowRuns | None) -> npt.NDArray[np.intp] | None:
    """For each row of a matrix the row of the file that holds it; None: as they lie there."""
    order = tensor.layout.rows(tensor.shape[0]) if isinstance(tensor.layout, RowPermutation) else None
    if part is None:
        return order
    return part.rows if order is None else order[part.rows]


def check_size(tensor: WeightTensor) -> None:
    """Refuse a tensor whose bytes do not match its kind and shape: kernels rely on them."""
    elements, size = (1, PLAIN_KINDS[tensor.kind]) if tensor.kind in PLAIN_KINDS else block_size(tensor.kind)
    count = tensor.elements if tensor.layout is None else math.prod(tensor.layout.stored_shape(tensor.shape))
    if count % elements or tensor.size != count // elements * size:
        raise CheckpointError(
            f"{tensor.label} has {tensor.size} bytes, "
            f"which do not make {tensor.kind} of shape {tensor.shape}. "
            "Fetch the file again."
        )
