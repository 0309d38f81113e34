"""Norms. Root-mean-square norm (https://arxiv.org/abs/1910.07467): scale to unit mean square, then by a learned weight.

LayerNorm (https://arxiv.org/abs/1607.06450) is torch's own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.layers.family_module import FamilyModule


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


class OffsetRMSNorm(RMSNorm):
    """RMSNorm whose weight is stored as its offset from one, applied in float32 at least (Gemma)."""

    printed_name = "RMSNorm"

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)
        return F.rms_norm(x.to(dtype), self.weight.shape, 1 + self.weight.to(dtype), self.eps).to(x.dtype)


class LayerNorm(nn.LayerNorm):
    """torch's LayerNorm, printed the same and saved the same."""

    printed_name = "LayerNorm"

    def _get_name(self) -> str:
        return self.printed_name
