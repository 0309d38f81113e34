"""Matrices that stay packed in PyTorch's modules, for passes and gradients of activations, but not of weights.

PyTorch has no products with packed matrices: expanded to float32, they take up to eight times the memory, and longer to
compute. Here the CPU engine computes the products, forward and backward; all that is between them is PyTorch's.

Shapes: x (…, inputs).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from glassformer.engine.cpu.packed_matrix import Floats, PackedMatrix
from glassformer.layers import Conv1D, Linear
from glassformer.layers.linear import Embedding
from glassformer.ops.split import Part

Layer: TypeAlias = Linear | Conv1D | Embedding
NOT_LOADED = Part(0, ())


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
