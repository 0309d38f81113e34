"""Norms. Root-mean-square norm (https://arxiv.org/abs/1910.07467): scale to unit mean square, then by a learned weight.

LayerNorm (https://arxiv.org/abs/1607.06450) is torch's own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.layers.part import Part


class RMSNorm(Part):
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
    """With a weight that is learnt as its distance from one, applied in float32 at least (Gemma)."""

    shown = "RMSNorm"

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        return F.rms_norm(x.to(wide), self.weight.shape, 1 + self.weight.to(wide), self.eps).to(x.dtype)


class LayerNorm(nn.LayerNorm):
    """torch's LayerNorm, printed the same and saved the same."""
