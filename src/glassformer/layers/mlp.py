"""The MLP: each token alone goes up to many neurons, and back.

In the gated kind (https://arxiv.org/abs/2002.05202) one projection is switched on and off by another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.layers.family_module import FamilyModule
from glassformer.layers.forward_pass import ForwardPass
from glassformer.layers.linear import Linear


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


class MLP(FamilyModule):
    """Up to the neurons and down again: a family says how each half is computed; the sites are the same for all."""

    def neurons(self, x: Tensor) -> Tensor:
        """(batch, length, hidden) → (batch, length, inner), activated."""
        raise NotImplementedError

    def down(self, neurons: Tensor) -> Tensor:
        """(batch, length, inner) → (batch, length, hidden)"""
        raise NotImplementedError

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        x = self.at_site("mlp.input", x, p)
        neurons = self.at_site("mlp.hidden", self.neurons(x), p)
        return self.at_site("mlp.update", self.down(neurons), p)


class GatedMLP(MLP):
    printed_name = "MLP"

    def __init__(self, hidden: int, inner: int, activation: str, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = Linear(hidden, inner, bias)
        self.up_proj = Linear(hidden, inner, bias)
        self.down_proj = Linear(inner, hidden, bias)
        self.act_fn = ActivationFunction(activation)

    def neurons(self, x: Tensor) -> Tensor:
        return self.act_fn(self.gate_proj(x)) * self.up_proj(x)

    def down(self, neurons: Tensor) -> Tensor:
        return self.down_proj(neurons)


class FusedGatedMLP(MLP):
    """The same with one projection for both."""

    printed_name = "MLP"

    def __init__(self, hidden: int, inner: int, activation: str, bias: bool = False) -> None:
        super().__init__()
        self.gate_up_proj = Linear(hidden, 2 * inner, bias)
        self.down_proj = Linear(inner, hidden, bias)
        self.activation_fn = ActivationFunction(activation)

    def neurons(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.activation_fn(gate) * up

    def down(self, neurons: Tensor) -> Tensor:
        return self.down_proj(neurons)
