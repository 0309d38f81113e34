"""A live model's parameters as the CPU engine's weights, and whether they have changed since.

Floats are read where they lie in the parameters. What the checkpoint holds packed was expanded into them when it was loaded:
as long as those numbers are unchanged, the engine reads the packed ones, mapped from the file. Weights can change in ways
that torch does not count (`parameter.data.mul_(2)`), so nothing but their bytes can say that they have not: a digest of
all of them takes about as long as reading them once.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from glassformer.checkpoint import StoredTensor
from glassformer.checkpoint.stored_tensors import BufferedFile, Bytes, Floats
from glassformer.engine.cpu.weights import PackedMatrix
from glassformer.ops.split import TensorPart
from glassformer.torch.layers import Conv1D, Embedding, Linear

KINDS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}  # of the dtypes that an engine reads
ROW, PIECE = 1 << 11, 1 << 19  # bytes of one sum, and of a square of them that stays in a core's cache
Place = tuple[int, int]  # an address, and how many bytes

_expanded: WeakKeyDictionary[nn.Module, dict[str, tuple[StoredTensor, bytes]]] = WeakKeyDictionary()


def remember_expanded(model: Any, stored: Mapping[str, StoredTensor]) -> None:
    """Remember from which packed tensors the parameters of a model were expanded just now."""
    named = dict(model.named_parameters(remove_duplicate=False))
    digests = digests_of(named[name] for name in stored)
    sources = {id(named[name]): (tensor, digests[_place(named[name])]) for name, tensor in stored.items()}
    for module in {model, model.base_model}:
        parameters = module.named_parameters(remove_duplicate=False)
        _expanded[module] = {name: sources[id(value)] for name, value in parameters if id(value) in sources}


class LiveWeights:
    """The tensors of a model at one moment."""

    def __init__(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        self._places = {name: _place(value) for name, value in tensors.items()}
        self._digests = digests_of(tensors.values())
        expanded = _expanded.get(model, {})
        self.stored = {
            name: expanded[name][0]
            if name in expanded and expanded[name][1] == self._digests[self._places[name]]
            else live_tensor(name, value)
            for name, value in tensors.items()
        }

    def unchanged(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether these are the same tensors at the same addresses, with the same bytes."""
        places = {name: _place(value) for name, value in tensors.items()}
        return places == self._places and digests_of(tensors.values()) == self._digests


def live_tensor(name: str, value: Tensor) -> StoredTensor:
    """A parameter as a stored tensor whose bytes are the parameter's own memory."""
    data = _bytes(value)
    return StoredTensor(
        name, KINDS[value.dtype], tuple(value.shape), BufferedFile(Path(name), data, live=True), 0, data.size
    )


def digests_of(values: Iterable[Tensor]) -> dict[Place, bytes]:
    """A digest of each tensor's bytes, by place."""
    places = {_place(value): value for value in values}
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # numpy releases the interpreter's lock
        return dict(zip(places, pool.map(digest, places.values()), strict=True))


def digest(value: Tensor) -> bytes:
    """Sums of the bytes' 64-bit numbers along the rows and along the columns of squares of them, hashed: a number that
    changes, or changes places with another, changes them."""
    data = _bytes(value)
    whole = data.size // ROW * ROW
    result = hashlib.blake2b(data[whole:].tobytes(), digest_size=16)
    for begin in range(0, whole, PIECE):
        square = data[begin : min(begin + PIECE, whole)].view(np.uint64).reshape(-1, ROW // 8)
        for axis in (0, 1):
            result.update(np.add.reduce(square, axis=axis).tobytes())
    return result.digest()


def _bytes(value: Tensor) -> Bytes:
    array: Bytes = value.detach().reshape(-1).view(torch.uint8).numpy()
    return array


def _place(value: Tensor) -> Place:
    return value.data_ptr(), value.nbytes


# The other way round: packed matrices in a model's layers ----------------------------------------------------------------


Layer: TypeAlias = Linear | Conv1D | Embedding
NOT_LOADED = TensorPart(0, ())


def packable_layers(model: nn.Module, matrices: Mapping[str, PackedMatrix]) -> dict[str, tuple[Layer, PackedMatrix]]:
    """The layers of a model that can have packed matrices, by the names of their weights."""
    weights = dict(model.named_parameters(remove_duplicate=False))
    by_weight = {id(weights[name]): matrix for name, matrix in matrices.items() if name in weights}
    return {
        f"{name}.weight": (layer, by_weight[id(layer.weight)])
        for name, layer in model.named_modules(remove_duplicate=False)
        if isinstance(layer, Layer) and id(layer.weight) in by_weight
    }


def use_packed(layer: Layer, matrix: PackedMatrix) -> None:
    """Give a layer whose weight was not loaded its matrix."""
    if isinstance(layer, Embedding):
        layer.lookup = lambda ids: torch.from_numpy(matrix.rows(ids.flatten().tolist())).view(*ids.shape, matrix.shape[1])
        layer.weight = nn.Parameter(torch.empty(0, matrix.shape[1]))  # says which dtype, device and size there are
    else:
        layer.product = lambda x: _Product.apply(x, matrix)  # type: ignore[no-untyped-call]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: PackedMatrix) -> Tensor:
        ctx.matrix = matrix
        return _by_row(matrix.outputs, x, matrix.shape[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _by_row(ctx.matrix.input_gradients, gradient, ctx.matrix.shape[1]), None


def _by_row(function: Callable[[Floats], Floats], x: Tensor, size: int) -> Tensor:
    """What a function of rows makes of the last axis, which has another size then."""
    return torch.from_numpy(function(x.detach().reshape(-1, x.shape[-1]).numpy())).view(*x.shape[:-1], size)
