"""Activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: Mapping[str, tuple[str, Callable[[Tensor], Tensor]]] = {  # name: (printed name, function)
    "silu": ("SiLUActivation", F.silu),
    "swish": ("SiLU", F.silu),
    "gelu": ("GELUActivation", F.gelu),
    "gelu_python": ("GELUActivation", F.gelu),
    "gelu_new": ("NewGELUActivation", gelu_tanh),
    "gelu_fast": ("FastGELUActivation", gelu_tanh),
    "gelu_accurate": ("AccurateGELUActivation", gelu_tanh),
    "gelu_pytorch_tanh": ("GELUTanh", gelu_tanh),
    "gelu_python_tanh": ("GELUTanh", gelu_tanh),
    "quick_gelu": ("QuickGELUActivation", quick_gelu),
    "relu": ("ReLU", F.relu),
    "tanh": ("Tanh", lambda x: x.tanh()),
}


class ActivationFunction(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.printed_name, self.function = ACTIVATIONS[name]

    def _get_name(self) -> str:
        return self.printed_name

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)
