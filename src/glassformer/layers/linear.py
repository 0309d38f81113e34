"""Linear layers, with the one product that all of a transformer's time goes into.

Most CPUs multiply float32 well and bfloat16 only if they have the instructions for it; without them torch falls to
a scalar loop that is fifty times slower. There, one row is multiplied by torch's matrix–vector kernel, and many rows
by widening the weights to float32 for the length of the product. Stored weights and results keep their dtype.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HALVES = (torch.bfloat16, torch.float16)


@cache
def multiplies_well(dtype: torch.dtype) -> bool:
    """Whether this CPU has fast products in a half-width dtype."""
    test = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}[dtype]
    try:
        return bool(getattr(torch.ops.mkldnn, test)())
    except (AttributeError, RuntimeError):  # built without oneDNN
        return False


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · Wᵀ + b, by the fastest way this machine has."""
    if weight.dtype not in HALVES or weight.device.type != "cpu" or multiplies_well(weight.dtype):
        return F.linear(x, weight, bias)
    if x.numel() == x.shape[-1] and weight.dtype is torch.bfloat16 and not torch.is_grad_enabled():
        out = torch.mv(weight, x.reshape(-1))
        return (out if bias is None else out + bias).view(*x.shape[:-1], -1)
    wide = F.linear(x.float(), weight.float(), None if bias is None else bias.float())
    return wide.to(weight.dtype)


class Linear(nn.Linear):
    """torch's Linear, printed the same and saved the same, with our product."""

    def reset_parameters(self) -> None:
        """Numbers come from a checkpoint, or from `loading.initialise`."""

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight, self.bias)


class Conv1D(nn.Module):
    """A Linear whose weight lies the other way round, (in, out), as GPT-2's files have it."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight.T, self.bias)

    def extra_repr(self) -> str:
        return f"nf={self.weight.shape[1]}, nx={self.weight.shape[0]}"


class Embedding(nn.Embedding):
    """torch's Embedding: a table from ids to vectors, which some families scale."""

    def __init__(self, rows: int, size: int, scale: float = 1.0) -> None:
        super().__init__(rows, size)
        self.scale = scale

    def reset_parameters(self) -> None:
        """Numbers come from a checkpoint, or from `loading.initialise`."""

    def forward(self, ids: Tensor) -> Tensor:
        vectors = super().forward(ids)
        return vectors if self.scale == 1.0 else vectors * rounded(self.scale, vectors.dtype)


@cache
def rounded(value: float, dtype: torch.dtype) -> float:
    """A constant as a dtype holds it."""
    return float(torch.tensor(value, dtype=dtype))
