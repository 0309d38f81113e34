"""Modules with weights, and activations: matrix products, tables, norms.

Most of a transformer's time goes into matrix products. Most CPUs multiply float32 well, and bfloat16 only if they have the
instructions for it; without them torch falls back to a scalar loop that is fifty times slower. There, one row is multiplied
by torch's matrix–vector kernel, and many rows by widening the weights to float32 for the length of the product. Stored
weights and results keep their dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.ground.transformers_isinstance import FamiliarClass
from glassformer.ops.activate import ACTIVATIONS, torch_activation
from glassformer.torch.container import FamilyModule

Product: TypeAlias = Callable[[Tensor], Tensor]
HALF_DTYPES = (torch.bfloat16, torch.float16)


@cache
def has_fast_matmul(dtype: torch.dtype) -> bool:
    """Whether this CPU has fast products in a half-width dtype."""
    query = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}[dtype]
    try:
        return bool(getattr(torch.ops.mkldnn, query)())
    except (AttributeError, RuntimeError):  # built without oneDNN
        return False


def fast_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · Wᵀ + b, by the fastest kernel this machine has."""
    if weight.dtype not in HALF_DTYPES or weight.device.type != "cpu" or has_fast_matmul(weight.dtype):
        return F.linear(x, weight, bias)
    if x.numel() == x.shape[-1] and weight.dtype is torch.bfloat16 and not torch.is_grad_enabled():
        out = torch.mv(weight, x.reshape(-1))
        return (out if bias is None else out + bias).view(*x.shape[:-1], -1)
    return F.linear(x.float(), weight.float(), None if bias is None else bias.float()).to(weight.dtype)


class Linear(nn.Linear):
    """torch's Linear, printed the same and saved the same, with `fast_linear`."""

    product: Product | None = None  # of the inputs with a weight that is not in PyTorch

    def reset_parameters(self) -> None:
        """Numbers come from a checkpoint, or from `compat.pretrained.initialize`."""

    def forward(self, x: Tensor) -> Tensor:
        if self.product is not None:
            return self.product(x) if self.bias is None else self.product(x) + self.bias
        return fast_linear(x, self.weight, self.bias)


class OutputLayer(Linear):
    """A head's last layer, printed as a Linear."""

    reads = "states"  # what it takes, where it is the whole head

    def _get_name(self) -> str:
        return "Linear"

    @property
    def output(self) -> Linear:
        return self


class Conv1D(FamiliarClass, nn.Module):
    """A Linear whose weight is transposed, (in, out), as GPT-2's files have it."""

    transformers_classes = ("transformers.pytorch_utils.Conv1D",)
    product: Product | None = None

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return fast_linear(x, self.weight.T, self.bias) if self.product is None else self.product(x) + self.bias

    @property
    def nx(self) -> int:
        return self.weight.shape[0]

    @property
    def nf(self) -> int:
        return self.weight.shape[1]

    def extra_repr(self) -> str:
        return f"nf={self.nf}, nx={self.nx}"


class LowRankUpdate(nn.Module):
    """What an adapter puts beside a layer: scale · B·(A·x). The base's dtype stays that of the result."""

    scale: float = 1.0  # a loaded adapter has it in B
    dropout: float = 0.0  # of what A reads, in training

    def make_update(self, inputs: int, outputs: int, rank: int) -> None:
        self.lora_A = Linear(inputs, rank, bias=False)
        self.lora_B = Linear(rank, outputs, bias=False)

    def add_update(self, x: Tensor, product: Tensor) -> Tensor:
        """The layer's product with the update added to it."""
        x = F.dropout(x.to(self.lora_A.weight.dtype), self.dropout, self.training)
        update = self.lora_B(self.lora_A(x))
        return (update if self.scale == 1.0 else update * self.scale).to(product.dtype) + product


class AdaptedLinear(LowRankUpdate, Linear):
    """A Linear with a low-rank update beside it: W·x + B·(A·x)."""

    def __init__(self, inputs: int, outputs: int, bias: bool, rank: int) -> None:
        super().__init__(inputs, outputs, bias)
        self.make_update(inputs, outputs, rank)

    def forward(self, x: Tensor) -> Tensor:
        return self.add_update(x, super().forward(x))


class AdaptedConv1D(LowRankUpdate, Conv1D):
    """A low-rank update beside a `Conv1D`."""

    def __init__(self, outputs: int, inputs: int, rank: int) -> None:
        super().__init__(outputs, inputs)
        self.make_update(inputs, outputs, rank)

    def forward(self, x: Tensor) -> Tensor:
        return self.add_update(x, super().forward(x))


def with_low_rank_update(layer: Linear | Conv1D, rank: int) -> AdaptedLinear | AdaptedConv1D:
    """A layer of the same size with an update of this rank beside it, whose numbers are still to come."""
    if isinstance(layer, Conv1D):
        inputs, outputs = layer.weight.shape
        return AdaptedConv1D(outputs, inputs, rank)
    return AdaptedLinear(layer.in_features, layer.out_features, layer.bias is not None, rank)


class Embedding(nn.Embedding):
    """torch's Embedding: a table from ids to vectors, which some families scale."""

    lookup: Product | None = None  # of ids in a table that is not in PyTorch

    def __init__(self, rows: int, size: int, scale: float = 1.0) -> None:
        super().__init__(rows, size)
        self.scale = scale

    @property
    def embed_scale(self) -> float:
        """The scale, by the name that adapters look for."""
        return self.scale

    def reset_parameters(self) -> None:
        """Numbers come from a checkpoint, or from `compat.pretrained.initialize`."""

    def forward(self, ids: Tensor) -> Tensor:
        vectors = super().forward(ids) if self.lookup is None else self.lookup(ids)
        return vectors if self.scale == 1.0 else vectors * rounded(self.scale, vectors.dtype)


@cache
def rounded(value: float, dtype: torch.dtype) -> float:
    """A constant, rounded to a dtype."""
    return float(torch.tensor(value, dtype=dtype))


class RMSNorm(FamilyModule):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}, eps={self.eps}"


class GroupedRMSNorm(RMSNorm):
    """Parts of the last axis, each normed by itself; they may share one weight."""

    printed_name = "RMSNormGated"

    def __init__(self, size: int, eps: float, groups: int) -> None:
        super().__init__(size, eps)
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        parts = x.reshape(*x.shape[:-1], self.groups, -1)
        shared = len(self.weight) == parts.shape[-1]
        normed = F.rms_norm(parts, parts.shape[-1:], None, self.eps) * self.weight.view(1 if shared else self.groups, -1)
        return normed.flatten(-2)


class OffsetRMSNorm(RMSNorm):
    """RMSNorm whose weight is stored as its offset from one, applied in float32 at least (Gemma)."""

    printed_name = "RMSNorm"

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)
        return F.rms_norm(x.to(dtype), self.weight.shape, 1 + self.weight.to(dtype), self.eps).to(x.dtype)


class UnweightedRMSNorm(FamilyModule):
    printed_name = "RMSNorm"

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.size, self.eps = size, eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (self.size,), None, self.eps)

    def extra_repr(self) -> str:
        return f"({self.size},), eps={self.eps}"


class LayerNorm(nn.LayerNorm):
    """torch's LayerNorm, printed the same and saved the same."""

    printed_name = "LayerNorm"

    def _get_name(self) -> str:
        return self.printed_name


class OffsetLayerNorm(LayerNorm):
    """LayerNorm whose weight is stored as its offset from one (Nemotron)."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight + 1, self.bias, self.eps)


class ActivationFunction(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, (_, self.printed_name) = name, ACTIVATIONS[name]

    def _get_name(self) -> str:
        return self.printed_name

    def forward(self, x: Tensor) -> Tensor:
        return torch_activation(self.name, x)


class XIELUActivation(nn.Module):
    """xIELU: two of its numbers are learned, two stay as they are (https://arxiv.org/abs/2411.13010)."""

    beta: Tensor
    eps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.alpha_p, self.alpha_n = nn.Parameter(torch.empty(1)), nn.Parameter(torch.empty(1))
        self.register_buffer("beta", torch.tensor(0.5, device="cpu"))
        self.register_buffer("eps", torch.tensor(-1e-6, device="cpu"))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for number, start in ((self.alpha_p, 0.8), (self.alpha_n, 0.3)):
            nn.init.constant_(number, math.log(math.expm1(start)))

    def forward(self, x: Tensor) -> Tensor:
        above, below = F.softplus(self.alpha_p), self.beta + F.softplus(self.alpha_n)
        curved = torch.where(x > 0, above * x * x, (torch.expm1(torch.min(x, self.eps)) - x) * below)
        return curved + self.beta * x
